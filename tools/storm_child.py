"""A run of `norewind` that reports its phase in shared memory, for tools/storm.py to kill."""

import mmap
import os
import subprocess
import sys
from typing import Any

PHASES = (
    "starting Python",
    "importing",
    "opening and reading again",
    "building",
    "compiling",
    "learning",
    "training shards",
    "drawing and ending",
)
WRITING = "writing a checkpoint, keys or waiting rows"


def main(place: str, feed: str, arguments: list[str]) -> None:
    """Run a command.

    Args:
        place: a file of two bytes: the phase, and whether a checkpoint is being written.
        feed: a file to send through a pipe to standard input; empty for none.
        arguments: the arguments of the command.
    """
    os.setsid()  # so that it can be killed together with its children
    with open(place, "r+b") as file:
        shared = mmap.mmap(file.fileno(), 2)
    shared[0] = 1
    if feed:
        sending = subprocess.Popen(["cat", feed], stdout=subprocess.PIPE).stdout
        assert sending is not None
        os.dup2(sending.fileno(), 0)
        sending.close()
    watch(shared)
    from norewind.__main__ import main as command

    sys.argv[1:] = arguments
    command()


def watch(shared: mmap.mmap) -> None:
    import norewind.cli.train_session
    import norewind.fleets.store
    import norewind.serving.late_labels
    import norewind.storage.checkpoint
    import norewind.training.train_folder
    import norewind.training.training_loop

    def during(owner: Any, name: str, before: int, after: int, byte: int = 0) -> None:
        inner = getattr(owner, name)

        def outer(*arguments, **options):
            # The first call compiles. The phase never goes back to an earlier one.
            shared[byte] = before if byte else max(shared[0], before)
            try:
                return inner(*arguments, **options)
            finally:
                shared[byte] = after

        setattr(owner, name, outer)

    during(norewind.training.train_folder, "open_stream", 2, 2)
    during(norewind.training.train_folder, "build", 3, 4)
    during(norewind.training.training_loop.Training, "learn", 4, 5)
    during(norewind.cli.train_session, "train_shards", 6, 6)
    during(norewind.cli.train_session, "draw_curves", 7, 7)
    during(norewind.storage.checkpoint, "_write", 1, 0, byte=1)
    during(norewind.fleets.store.KeyStore, "write", 1, 0, byte=1)
    during(norewind.serving.late_labels.LateLabels, "save", 1, 0, byte=1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
