"""Whether two runs have ended the same, which tools/storm.py and tools/faults.py ask."""

from pathlib import Path

from norewind.fleets.store import KEYS, KeyStore
from norewind.storage.checkpoint import checkpoints, read
from norewind.training.log import METRICS, PREDICTIONS, read_log


def difference(run: Path, first: Path) -> str | None:
    """Return the part of a run that differs from another one; None if all are equal, except for times.

    Args:
        run: a run folder.
        first: the run folder to compare with.
    """
    ours, theirs = (read(checkpoints(folder / "checkpoints")[-1]) for folder in (run, first))
    if ours[1]["samples"] != theirs[1]["samples"]:
        return "samples"
    if {name: array.tobytes() for name, array in ours[0].items()} != {n: a.tobytes() for n, a in theirs[0].items()}:
        return "parameters"
    lines = [[{**line, "seconds": None} for line in read_log(folder / METRICS)] for folder in (run, first)]
    if lines[0] != lines[1]:
        return "metrics"
    logs = [(folder / PREDICTIONS).read_bytes() for folder in (run, first) if (first / PREDICTIONS).exists()]
    if logs[:1] != logs[1:]:
        return "predictions"
    return "keys" if (first / KEYS).exists() and _keys_of(run) != _keys_of(first) else None


def _keys_of(run: Path) -> dict[bytes, bytes]:
    store = KeyStore(run, None, write=False)
    found = dict(store.all())
    store.close()
    return found
