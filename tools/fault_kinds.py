"""Short runs of every kind, in this process, for tools/faults.py to disturb at every change of a file."""

import asyncio
import contextlib
import io
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from norewind.cli import main
from norewind.errors import NorewindError
from norewind.forecasting.models import Classifier, load
from norewind.plotting import figures
from norewind.serving import service
from norewind.serving.bodies import RequestError
from norewind.storage import checkpoint
from norewind.sweeps import shards
from norewind.sweeps.shards import shard_folders
from norewind.training import build
from norewind.training.settings import Settings
from tools.same_end import difference
from tools.storm_kinds import KEYS, LEVEL, LIGHT, UORO, stream

ROWS = 60
COMMON = ("--predictions", "file", "--metrics-every", 25, "--checkpoint-every", 20, "--keep", 2, "--quiet")
SHARDS = 2
# In a service, at regular intervals the label comes late, and rows that wait for theirs are saved.
LATE, AHEAD, SAVED = 3, 12, 10
# `mark(text)` adds a remark to the record of changes.
Mark = Callable[[str], None]


class Disturbed(Exception):
    """The run has ended with one of our own messages."""


class Kind:
    """A short run: what it does in its folder, from the start or from what a crash has left.

    Args:
        name: the name of the kind.
        streams: a folder for its stream.
        mark: adds a remark to the record.
    """

    def __init__(self, name: str, streams: Path, mark: Mark):
        self.name, self.mark = name, mark
        kind, self.options = TRAINED.get(name, ("jsonl", ()))
        self.source = streams / f"{name}.{kind}"
        self.source.write_bytes(stream(kind, 2 * ROWS if kind == "text" else ROWS))

    def prepare(self, run: Path) -> None:
        """Make what must be there before the run."""

    def act(self, run: Path) -> None:
        """Start or continue the run, and let it end.

        Raises:
            Disturbed: it has ended with a message.
        """
        resumes = (run / "settings.toml").exists()
        if resumes:
            self.command(run, "resume", run, "--quiet")
        else:
            self.command(run, "train", self.source, "--out", run, *self.options)

    def command(self, run: Path, *arguments: Any) -> None:
        """Let a command of the command line end.

        Args:
            run: the run folder, which its messages must name.
            arguments: the command.

        Raises:
            Disturbed: it has ended with a message.
        """
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), running(self.name):
                main([str(argument) for argument in arguments])
        except SystemExit as ended:
            if ended.code not in (None, 0):
                assert "Traceback" not in said.getvalue(), said.getvalue()
                assert str(run.parent) in said.getvalue(), f"it does not name the file: {said.getvalue()}"
                raise Disturbed(said.getvalue().strip() or f"exit code {ended.code}") from None

    def lost(self, run: Path, marks: Sequence[str]) -> str | None:
        """Return which promise a crash has broken; None if it has kept all.

        Args:
            run: the run folder after the crash.
            marks: the remarks before the crash.
        """
        for folder in shard_folders(run, SHARDS) if self.name == "shards" else [run]:
            name = folder.relative_to(run)
            written = [int(mark.split()[-1]) for mark in marks if mark.startswith(f"checkpoint {name} ")]
            found = [checkpoint.samples_of(path) for path in checkpoint.checkpoints(folder / "checkpoints")]
            if written and max(found, default=0) < written[-1]:
                return f"the checkpoint at {written[-1]} of {name} is gone, although it was reported as written"
        return None

    def differs(self, run: Path, whole: Path) -> str | None:
        """Return the part of the ended run that differs from the undisturbed one."""
        if self.name == "shards":
            pairs = zip(shard_folders(run, SHARDS), shard_folders(whole, SHARDS), strict=True)
            return next((lost for pair in pairs if (lost := difference(*pair))), None)
        return difference(run, whole)


class Served(Kind):
    """A service with late labels, without its network."""

    options: tuple

    def prepare(self, run: Path) -> None:
        options = (*LIGHT, "--method", "snap1", *UORO, *COMMON)
        before = self.source.with_name("before.jsonl")
        before.write_bytes(b"".join(self.source.read_bytes().splitlines(keepends=True)[: ROWS // 3]))
        self.command(run, "train", before, "--out", run, *options)

    def act(self, run: Path) -> None:
        try:
            with running(self.name):
                asyncio.run(self._serve(run))
        except (OSError, NorewindError) as error:
            raise Disturbed(str(error)) from None

    async def _serve(self, run: Path) -> None:
        served = await asyncio.to_thread(service.Service, run)
        served.loop = asyncio.get_running_loop()
        rows = rows_in(self.source)
        try:
            for number in range(served.accepted, len(rows)):
                await self._send(served, rows, number)
                self.mark(f"durable {served.durable}")
        except RequestError:
            pass  # the run no longer learns, for the reason below
        finally:
            await served.stop()
        if served.error is not None:
            raise served.error

    async def _send(self, served: service.Service, rows: Sequence[dict[str, Any]], number: int) -> None:
        later = number + AHEAD
        if later % LATE == 0 and later < len(rows):
            await served.predict([{"level": rows[later]["level"]}], [str(later)])
        try:
            served.learn([{"light": rows[number]["light"]}], [str(number)])
        except RequestError as error:
            if error.status != 404:
                raise
            served.learn([rows[number]], [None])
        await served.wait_until_learned(served.accepted)
        if number % SAVED == 0:
            await asyncio.to_thread(served.labels.save)
            waiting = list(served.labels._waiting)
            self.mark(f"waiting {' '.join(waiting)}")

    def lost(self, run: Path, marks: Sequence[str]) -> str | None:
        announced = [int(mark.split()[1]) for mark in marks if mark.startswith("durable")]
        waiting = [mark.split()[1:] for mark in marks if mark.startswith("waiting")]
        latest = checkpoint.samples_of(checkpoint.checkpoints(run / "checkpoints")[-1])
        if announced and latest < announced[-1]:
            return f"row {announced[-1]} was announced as durable, but the latest checkpoint has {latest}"
        if waiting:
            labels = service.LateLabels(run, ["level", "light"], most=1000, durable=latest)
            gone = [id for id in waiting[-1] if int(id) >= latest and id not in labels._waiting]
            if gone:
                return f"rows {gone} waited for their labels, were saved, and are gone"
        return None


class Saved(Kind):
    """A Python model that is saved, loaded and saved again in the same folder."""

    def act(self, run: Path) -> None:
        rows = rows_in(self.source)
        if run.exists() and not checkpoint.checkpoints(run / "checkpoints"):
            shutil.rmtree(run)  # `save` asks for another folder
        try:
            with running(self.name):
                model = load(run) if (run / "settings.toml").exists() else Classifier("light", **MODEL)
                for row in rows[model.samples :]:
                    model.learn_one({**row, "light": row["light"] == "red"})
                    if model.samples in (ROWS // 3, ROWS * 2 // 3):
                        model.save(run)
                        self.mark(f"checkpoint . {model.samples}")
                # Also after a kill in the last call, which writes the line of the unfinished interval at its end.
                model.save(run)
                self.mark(f"checkpoint . {model.samples}")
        except (OSError, NorewindError) as error:
            raise Disturbed(str(error)) from None

    def differs(self, run: Path, whole: Path) -> str | None:
        if (run / "model.json").read_bytes() != (whole / "model.json").read_bytes():
            return "the model's labels"
        return difference(run, whole)


MODEL: dict[str, Any] = {"inputs": "level", "method": "snap1", "cell": "rnn", "hidden": 4, "metrics_every": 25}
# Every run would otherwise allocate much memory for keys that do not come.
MANY = (*KEYS, "--method", "uoro", "--resident", 50)
TRAINED: dict[str, tuple[str, tuple]] = {
    "windows": ("text", ("--format", "text", "--method", "uoro:window=3", *UORO, *COMMON)),
    "rows": ("csv", (*LEVEL, "--horizon", 3, "--method", "uoro:window=2", *UORO, *COMMON)),
    "auto on rows": ("csv", (*LEVEL, "--horizon", 2, *COMMON)),
    "classes": ("csv", (*LIGHT, *COMMON)),
    "fleet": ("csv", (*MANY, *COMMON)),
    "shards": ("csv", (*MANY, "--shards", SHARDS, *COMMON)),
}
KINDS: dict[str, type[Kind]] = {**dict.fromkeys(TRAINED, Kind), "service": Served, "saved model": Saved}
_built: dict[str, Any] = {}


def rows_in(source: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in source.read_bytes().splitlines()]


@contextlib.contextmanager
def running(name: str):
    """All runs of a kind share their compiled programs: almost all of their time would be compiling."""

    def once(make: Callable) -> Callable:
        def made(settings: Settings, shape: Any) -> Any:
            if name not in _built:
                built = _built[name] = make(settings, shape)
                if settings.key is not None:
                    program = built.learner.for_keys(built.run, share=settings.share)
                    built.learner.for_keys = lambda *_, **__: program
            return _built[name]

        return made

    def one_by_one(work: Callable, tasks: dict[str, Any], progress: Any, **_: Any) -> None:
        for shard, task in tasks.items():
            work(shard, *task)

    with contextlib.ExitStack() as stack:

        def patch(owner: Any, attribute: str, value: Any) -> None:
            stack.callback(setattr, owner, attribute, getattr(owner, attribute))
            setattr(owner, attribute, value)

        patch(build, "_network", once(build._network))
        patch(build, "_auto", once(build._auto))
        patch(shards, "train_in_processes", one_by_one)
        patch(figures, "curves_figure", lambda *_: None)
        patch(figures, "rows_figure", lambda *_, **__: None)
        patch(figures, "classes_figure", lambda *_: None)
        patch(figures, "by_step_figure", lambda *_: None)
        patch(figures, "save", lambda figure, path: path)
        yield


def watch_checkpoints(library: Any) -> None:
    """Add a remark to the record whenever a checkpoint has been written.

    Args:
        library: the library that records.
    """
    write = checkpoint._write

    def noting(folder: Path, samples: int, *others: Any) -> Path:
        path = write(folder, samples, *others)
        parts = folder.parent.parts
        name = "/".join(parts[parts.index("root") + 2 :]) if "root" in parts else ""
        library.faults_mark(f"checkpoint {name or '.'} {samples}".encode())
        return path

    checkpoint._write = noting
