"""A run on rows, as the service uses it: the answer to a row, and the line that it is learned as."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from norewind.runs.fit import carry_norm
from norewind.runs.row_scores import RowScore
from norewind.runs.scores import ClassScore
from norewind.serving.bodies import Refusal
from norewind.streams.columns import ANOTHER, CATEGORIES, BadRow, at, category_of
from norewind.streams.parsing import RowReader
from norewind.streams.reading import LONGEST
from norewind.streams.stream import Samples
from norewind.trees import copied


class State(NamedTuple):
    """All that an answer depends on, as of one row; a new one takes its place when more was learned."""

    run: Any
    moment: Any
    rows: int


def rows_so_far(training: Any) -> int:
    """The rows that have come: those that were learned from, and those that wait for their window."""
    steps = training.steps
    # Not from the tally, which follows only after predictions are told.
    return steps.predicted - steps.answered + (0 if steps.waiting is None else len(steps.waiting.xs))


class RowModel:
    """A run on rows. `publish` is called by the thread that learns, everything else by the one that answers."""

    def __init__(self, training: Any):
        self.training, self.stream, self.score = training, training.steps.stream, training.score
        self.reader: RowReader = self.stream._reader
        self.state = self.kept = self._newest()
        widths = self.stream.width, len(self.stream.targets) * len(self.stream.steps)
        # The first row to be learned from should not have to wait for the compiler, nor the first line of metrics.
        carry_norm(training.learner.carry(training.run))
        training.outputs_of(Samples(*(np.zeros((training.window, width), np.float32) for width in widths)))

    def warm_up(self, rows: int) -> None:
        """Compile what answers need."""
        outputs = self._outputs(self.state.run, np.zeros((rows, self.stream.width), np.float32))
        if isinstance(self.score, RowScore):
            self.score.forecasts(outputs[0] if self.stream.horizon else outputs)

    def _outputs(self, run: Any, xs: np.ndarray) -> Any:
        """The outputs for rows of which each would be the next, like those of the learner's `forward`."""
        made = [self.training.learner.forward(run, xs[place : place + 1])[1] for place in range(len(xs))]
        return jax.tree.map(lambda *parts: np.concatenate([np.asarray(part) for part in parts]), *made)

    def publish(self) -> None:
        """Answer from what the run is now."""
        self.state = self._newest()

    def keep(self, samples: int) -> None:
        """Remember what answers are made from now: it is in the checkpoint after this many samples."""
        self.kept = self.state

    def go_back(self) -> None:
        """Answer from what was remembered."""
        self.state = self.kept

    def close(self) -> None:
        """Let go of everything."""

    def _newest(self) -> State:
        training = self.training
        # A copy, since the thread that learns changes the run in place.
        run, waiting = copied(training.run), training.steps.waiting
        if waiting is not None and len(waiting.xs):
            # Rows that wait for their window are not learned from yet, but they have come.
            padding = np.zeros((training.window - len(waiting.xs), *waiting.xs.shape[1:]), waiting.xs.dtype)
            run, _ = training.learner.forward(run, np.concatenate([waiting.xs, padding]), count=len(waiting.xs))
        return State(run, self.stream.moment(), rows_so_far(training))

    def answers(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """What each of the rows would be answered if it came next."""
        state = self.state
        samples = self.stream.peek(rows, state.moment)
        entries = list(self.score.predictions(state.rows + 1, samples, self._outputs(state.run, samples.xs)))
        for place, entry in enumerate(entries):
            self._name_class(entry, rows[place])
            # Every one of them would be the next row.
            entry["sample"] -= place
            if "for" in entry:
                rows_ahead = entry["for"]
                several = isinstance(rows_ahead, dict)
                entry["for"] = {k: v - place for k, v in rows_ahead.items()} if several else rows_ahead - place
        return entries

    def _name_class(self, entry: dict[str, Any], row: dict[str, Any]) -> None:
        """Name a class that never came before, which the stream would remember from now on."""
        known = self.stream.classes if isinstance(self.score, ClassScore) else None
        if known is not None and entry.get("target") == ANOTHER and len(known) < CATEGORIES:
            entry["target"] = category_of(at(row, self.stream.targets[0]))

    def read(self, row: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """A row as the stream would read it, and the line that it would read it from.

        Raises:
            Refusal: the stream could not read it.
        """
        dialect = self.reader.dialect
        try:
            text = io.StringIO()
            if dialect.format == "jsonl":
                text.write(json.dumps(row, ensure_ascii=False) + "\n")
            else:
                row = {name: field_of(at(row, name)) for name in self.reader.columns}
                csv.writer(text, delimiter=dialect.delimiter, lineterminator="\n").writerow(row.values())
            self._check(row)
            line = text.getvalue().encode()
            if len(line) > LONGEST:
                raise BadRow(f"it is longer than {LONGEST} bytes")
        except BadRow as problem:
            raise Refusal(400, f"the row is bad: {problem}.") from None
        except RecursionError:
            raise Refusal(400, "the row is bad: it is nested too deeply.") from None
        except ValueError:
            raise Refusal(400, "the row is bad: it has half a character, which UTF-8 cannot hold.") from None
        return row, line

    def _check(self, row: dict[str, Any]) -> None:
        """Raise `BadRow` if the row cannot be read."""
        self.reader.conversion.values(row, new=False)


def field_of(value: Any) -> Any:
    """A JSON value as the field of a CSV file that it would be read from. There is none for objects and lists."""
    if isinstance(value, dict | list):
        return value
    text = "" if value is None else str(value)
    if "\n" in text or "\r" in text:
        raise BadRow("a field of a CSV file cannot contain a line break")
    return text
