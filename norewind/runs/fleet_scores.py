"""How the forecasts of a fleet are scored: over all keys, and key by key."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from norewind.fleets.store import KeyErrors, Store
from norewind.runs.metrics import counted, mean
from norewind.runs.row_scores import RowScore
from norewind.streams.stream import Samples

# Keys that are named at the end, and the scored rows that they have at least.
WORST, FEWEST = 5, 20


class FleetScore(RowScore):
    """Forecasts of the rows of many keys, each standardised by its own past.

    As `RowScore`, but the model's outputs come with the samples that were forecast, since the
    fleet standardises them, and nothing is compared with rows a period ago. `name(key)` is how
    a key is written.
    """

    def __init__(self, columns: Sequence[str], loss: str, steps: Sequence[int], name: Callable[[bytes], Any]):
        super().__init__(columns, loss, steps)
        self.name = name
        self.state = {"baseline": [0, 0.0], "persistence": [0, 0.0], "recent": np.zeros((0, 1, 3))}

    def add(self, samples: Samples, outputs: Any = None) -> int:
        return super().add(outputs[2])

    def take(self) -> dict[str, Any]:
        baseline, persistence = mean(self.state["baseline"]), mean(self.state["persistence"])
        self.state["baseline"], self.state["persistence"] = [0, 0.0], [0, 0.0]
        if self.gaussian:
            return {"baseline": None if baseline is None else (baseline + np.log(2 * np.pi)) / 2}
        return {"baseline": baseline, "persistence": persistence}

    def predictions(self, first: int, samples: Samples, outputs: Any) -> Iterator[dict[str, Any]]:
        """As of one series, with the key; `for` is left out, as the key's rows to come have no number yet."""
        made, due, scaled = outputs
        assert samples.keys is not None
        described = scaled._replace(lines=samples.lines, copied=samples.copied)
        entries = super().predictions(first, described, (made, due) if self.horizon else made)
        for key, entry in zip(samples.keys, entries, strict=True):
            entry.pop("for", None)
            yield {"sample": entry.pop("sample"), "key": self.name(key), **entry}


def worst_in(folder: Path, name: Callable[[bytes], Any]) -> str:
    """The keys of a run folder with the largest errors, in words."""
    store = Store(folder, None, write=False)
    try:
        return worst_words(store.worst(WORST, FEWEST), len(store), name)
    finally:
        store.close()


def worst_words(worst: list[KeyErrors], keys: int, name: Callable[[bytes], Any]) -> str:
    """The keys with the largest errors, compared with simple forecasts."""
    if not worst:
        return f"{counted(keys, 'key')}; none has {FEWEST} scored rows yet."
    lines = [
        f"{counted(keys, 'key')}. Those with the largest squared errors (this model, the last value, the mean so far):"
    ]
    for key, rows, model, persistence, average in worst:
        lines.append(f"  {name(key)!s:.40}: {model:.4f}, {persistence:.4f}, {average:.4f} ({counted(rows, 'row')})")
    return "\n".join(lines)
