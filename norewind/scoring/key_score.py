"""Scores of the rows of many keys: over all keys, and per key."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from norewind.fleets.store import KeyErrors, Store
from norewind.scoring.metrics import counted
from norewind.scoring.row_score import NumberScore
from norewind.scoring.score import place_of
from norewind.streams.stream import Samples

# The number of keys listed at the end, and the minimum number of their scored rows.
WORST, FEWEST = 5, 20


class KeyScore(NumberScore):
    """Scores forecasts of the rows of many keys, each standardised by its own past.

    The outputs end with the standardised samples, because the fleet standardises them.

    Args:
        columns: the names of the targets.
        loss: "squared" or "gaussian".
        steps: the forecast steps, in rows (of the same key) ahead.
        name: converts a key to its name.
    """

    def __init__(self, columns: Sequence[str], loss: str, steps: Sequence[int], name: Callable[[bytes], Any]):
        super().__init__(columns, loss, steps)
        self.name = name

    def add(self, samples: Samples, outputs: Any = None) -> int:
        return super().add(outputs[2])

    def predictions(self, first: int, samples: Samples, outputs: Any) -> Iterator[dict[str, Any]]:
        """Yield predictions as for a single series, with the key.

        There is no `for` entry, because the future rows of a key have no number yet.

        Args:
            first: the number of the first row.
            samples: consecutive rows with their keys.
            outputs: the outputs of the fleet: `(made, due, samples)`.
        """
        made, due, scaled = outputs
        described = scaled._replace(keys=samples.keys, lines=samples.lines, copied=samples.copied)
        return super().predictions(first, described, (made, due) if self.horizon else made)

    def place(self, number: int, samples: Samples, i: int) -> dict[str, Any]:
        assert samples.keys is not None
        return {"sample": number, "key": self.name(samples.keys[i])} | place_of(samples, i)

    def closing(self, lines: Sequence[dict[str, Any]], folder: Path) -> str:
        """Describe the keys with the largest errors.

        Args:
            lines: unused.
            folder: the run folder.
        """
        return worst_keys([folder], self.name)


def worst_keys(folders: Iterable[Path], name: Callable[[bytes], Any]) -> str:
    """Describe the keys with the largest errors, compared with simple forecasts, as text.

    Args:
        folders: run folders, each with some of the keys.
        name: converts a key to its name.
    """
    worst: list[KeyErrors] = []
    keys = 0
    for folder in folders:
        store = Store(folder, None, write=False)
        worst += store.worst(WORST, FEWEST)
        keys += len(store)
        store.close()
    if not worst:
        return f"{counted(keys, 'key')}; none has {FEWEST} scored rows yet."
    words = "Those with the largest squared errors (this model, the last value, the mean so far):"
    lines = [f"{counted(keys, 'key')}. {words}"]
    for key, rows, model, persistence, average in sorted(worst, key=lambda key: -key.model)[:WORST]:
        lines.append(f"  {name(key)!s:.40}: {model:.4f}, {persistence:.4f}, {average:.4f} ({counted(rows, 'row')})")
    return "\n".join(lines)
