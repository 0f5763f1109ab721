"""A disk that remembers what was synchronised: what a recorded run leaves behind when it crashes.

Nothing is durable unless it must be: the content of a file is that of its last fsync, and the names in a folder are
those of the folder's last fsync. Real file systems keep more, but none has to.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HEADER = struct.Struct("=cQqII")
# What a crash leaves: everything (the process is killed); what was synchronised (the power fails); or all names, of
# files with only the content that was synchronised, as on a file system that writes names before contents.
KILLED, POWER_LOST, NAMES_KEPT = "killed", "power lost", "power lost, names kept"
CRASHES = (KILLED, POWER_LOST, NAMES_KEPT)
# SQLite makes it again from its log.
REBUILT = "-shm"


class Change(NamedTuple):
    """A change of a file or a folder, or a remark.

    Attributes:
        kind: c(reate), w(rite), t(runcate), s(ync), r(ename), u(nlink), m(kdir), d (rmdir), or ! for a remark.
        inode: the number of the file, where the change has one.
        number: the offset of a write, or the length of a truncated file.
        a: the path, the data of a write, or the text of a remark.
        b: the new path of a renamed file.
    """

    kind: str
    inode: int
    number: int
    a: bytes
    b: bytes


def read_trace(trace: bytes) -> Iterator[Change]:
    """Decode what tools/faults.c has recorded."""
    place = 0
    while place < len(trace):
        kind, inode, number, first, second = HEADER.unpack_from(trace, place)
        place += HEADER.size
        a = trace[place : place + first]
        b = trace[place + first : place + first + second]
        place += first + second
        yield Change(kind.decode(), inode, number, a, b)


class File:
    """A file: its content now, and at its last fsync."""

    def __init__(self):
        self.content, self.durable = bytearray(), b""

    def sync(self) -> None:
        self.durable = bytes(self.content)

    def write(self, offset: int, data: bytes) -> None:
        self.content.extend(bytes(max(0, offset - len(self.content))))
        self.content[offset : offset + len(data)] = data

    def truncate(self, length: int) -> None:
        del self.content[length:]
        self.content.extend(bytes(length - len(self.content)))


class Folder:
    """A folder: its entries now, and at its last fsync."""

    def __init__(self):
        self.entries: dict[str, File | Folder] = {}
        self.durable: dict[str, File | Folder] = {}

    def sync(self) -> None:
        self.durable = dict(self.entries)


class Disk:
    """The files and folders below a root, to which recorded changes are applied one after the other.

    Args:
        root: the path of the folder that is recorded. It and what is in it are durable.
    """

    def __init__(self, root: Path):
        self.prefix = f"{root}/"
        self.by_inode: dict[int, File | Folder] = {}
        self.root = self._read(root)

    def _read(self, path: Path) -> Folder:
        folder = Folder()
        for entry in path.iterdir():
            if entry.is_dir():
                folder.entries[entry.name] = self._read(entry)
            else:
                folder.entries[entry.name] = self.by_inode[entry.stat().st_ino] = file = File()
                file.write(0, entry.read_bytes())
                file.sync()
        folder.sync()
        self.by_inode[path.stat().st_ino] = folder
        return folder

    def _place(self, path: bytes) -> tuple[Folder, str]:
        *parents, name = path.decode().removeprefix(self.prefix).split("/")
        folder = self.root
        for parent in parents:
            found = folder.entries[parent]
            assert isinstance(found, Folder)
            folder = found
        return folder, name

    def apply(self, change: Change, *, half: bool = False) -> None:
        """Apply a change.

        Args:
            change: the change.
            half: of a write, only the first half.
        """
        kind = change.kind
        if kind in "cm":
            folder, name = self._place(change.a)
            made = File() if kind == "c" else Folder()
            folder.entries[name] = self.by_inode[change.inode] = made
        elif kind in "ud":
            folder, name = self._place(change.a)
            del folder.entries[name]
        elif kind == "r":
            (folder, name), (other, new) = self._place(change.a), self._place(change.b)
            other.entries[new] = folder.entries.pop(name)
        elif kind == "s":
            self.by_inode[change.inode].sync()
        elif kind in "wt":
            file = self.by_inode[change.inode]
            assert isinstance(file, File)
            if kind == "w":
                file.write(change.number, change.a[: len(change.a) // 2] if half else change.a)
            else:
                file.truncate(change.number)

    def after(self, crash: str) -> dict[str, bytes | None]:
        """Return what a crash leaves: the content of each file by its path below the root, and None for a folder.

        Args:
            crash: one of `CRASHES`.
        """
        found: dict[str, bytes | None] = {}

        def visit(folder: Folder, path: str) -> None:
            for name, entry in sorted((folder.durable if crash == POWER_LOST else folder.entries).items()):
                if isinstance(entry, Folder):
                    found[path + name] = None
                    visit(entry, f"{path}{name}/")
                elif not name.endswith(REBUILT):
                    found[path + name] = bytes(entry.content) if crash == KILLED else entry.durable

        visit(self.root, "")
        return found
