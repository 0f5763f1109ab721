"""Classification of rows: one forecast of 0 or 1 for each label."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from norewind.people.feed import row_of, rows_of
from norewind.people.live import Live
from norewind.people.models import NO_HOOKS, Model, names_of, settings_of
from norewind.runs.fit import Hooks
from norewind.streams import StreamError

LEAST = 1e-3
"""No label that was seen is impossible."""


class Classifier(Model):
    """Says which label a row has, and how sure that is, and learns while labelled rows come.

    For each label it forecasts whether it comes, as a number from 0 to 1, from the row, the
    rows before it and the label learned before. A row whose label is None or absent is seen
    but teaches nothing.

    Args:
        label: the column that holds the label: text, a number, or a boolean.
        inputs: the columns to look at; by default all numeric ones.
        classes: the largest number of different labels.
        settings: other settings of `norewind train`.

    Example (the first call compiles for some seconds)::

        model = norewind.Classifier("light", classes=2)
        for second in range(300):
            model.learn_one({"second": second % 30, "light": "red" if second % 30 < 20 else "green"})
        model.predict_one({"second": 5})
    """

    def __init__(self, label: str, *, inputs: Sequence[str] = (), classes: int = 10, **settings: Any):
        self.label, self.classes = label, classes
        self.labels: list[Any] = []
        self.counts: Counter[int] = Counter()
        self.before: int | None = None
        self.slots = [f"{label} #{number}" for number in range(1, classes + 1)]
        self.slots_before = [f"{slot} before" for slot in self.slots]
        names = (*names_of(inputs), *self.slots_before) if inputs else ()
        self.live = Live(settings_of(settings, targets=tuple(self.slots), inputs=names, horizon=0))

    def fit(self, data: Any, hooks: Hooks = NO_HOOKS) -> Self:
        with self._labels_kept_on_error():
            return super().fit(data, hooks)

    def learn_one(self, row: Any) -> None:
        with self._labels_kept_on_error():
            super().learn_one(row)

    @contextmanager
    def _labels_kept_on_error(self) -> Iterator[None]:
        before = self.labels[:], self.counts.copy(), self.before
        try:
            yield
        except BaseException:
            self.labels, self.counts, self.before = before
            raise

    def predict_one(self, row: Any) -> Any:
        """The most likely label; None while none is known."""
        chances = self.predict_proba_one(row)
        return max(chances, key=chances.__getitem__) if chances else None

    def predict_proba_one(self, row: Any) -> dict[Any, float]:
        """The probability of every label seen so far."""
        known = (self.live.predicted(self._unlabelled(row_of(row))) or {}).get("prediction") or {}
        shares = []
        for number, slot in enumerate(self.slots[: len(self.labels)]):
            value = known.get(slot)
            frequency = self.counts[number] / self.counts.total()
            shares.append(min(max(frequency if value is None else value, LEAST), 1.0))
        return {label: share / sum(shares) for label, share in zip(self.labels, shares, strict=True)}

    def _rows(self, data: Any) -> Iterator[dict[str, Any]]:
        if isinstance(data, str) or hasattr(data, "__fspath__"):
            raise StreamError("a Classifier takes rows: read the file into a data frame, and give that.")
        return map(self._row, rows_of(data))

    def _row(self, row: Any) -> dict[str, Any]:
        row = row_of(row)
        whole = self._unlabelled(row)
        number = self._number(row.get(self.label))
        if number is not None:
            whole |= {slot: float(place == number) for place, slot in enumerate(self.slots)}
            self.counts[number] += 1
            self.before = number
        return whole

    def _unlabelled(self, row: dict[str, Any]) -> dict[str, Any]:
        before = {slot: float(place == self.before) for place, slot in enumerate(self.slots_before)}
        rest = {name: value for name, value in row.items() if name != self.label}
        return {**rest, **before, **dict.fromkeys(self.slots)}

    def _number(self, label: Any) -> int | None:
        """The place of a label among those seen; a new one gets the next."""
        label = label.item() if hasattr(label, "item") else label
        if label is None or label != label:
            return None
        # In Python True == 1, but who sends both means both.
        for number, seen in enumerate(self.labels):
            if seen == label and type(seen) is type(label):
                return number
        if len(self.labels) == self.classes:
            raise StreamError(f"label {label!r} is number {self.classes + 1}: make the Classifier with more classes.")
        self.labels.append(label)
        return len(self.labels) - 1

    def _about(self) -> dict[str, Any]:
        counts = [self.counts[number] for number in range(len(self.labels))]
        return {"label": self.label, "labels": self.labels, "counts": counts, "before": self.before}
