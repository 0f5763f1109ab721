"""Counts of symbols in hashed contexts, mixed bit by bit, as PAQ does."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from norewind.checks import ModelError, common_length
from norewind.learners.counting import contexts, symbol
from norewind.learners.counting.coding import SILENT, fresh_coder
from norewind.learners.counting.plan import CountsRun, aligned, fresh, planned, work_of
from norewind.learners.protocol import Learner


def counts(
    symbols: int = 256, *, members: int = 0, megabytes: float = 256, classes: Sequence[int] | np.ndarray | None = None
) -> "Counts":
    """Learn a stream of symbols in one pass, in memory that is chosen beforehand.

    A symbol is predicted bit by bit. For each bit, every context (the last 0 to 6 and 8
    symbols, some of them skipped; in a text also the words and the line) has a hashed
    count, and the longest repeat found has an opinion. They are mixed in the logistic
    domain by weights that are learned online, and the result is corrected by adaptive
    maps. Without `members` this takes integer and IEEE-754 operations only, so that the
    predictions are the same on every processor.

    Args:
        symbols: the number of symbols, at least 2.
        members: the number of other learners that are mixed in.
        megabytes: how large a run may be, in millions of bytes. Every symbol fills up to two kilobytes of the tables,
            less if the stream repeats itself; when they are full, what was seen least gives way. A sixteenth keeps
            the symbols themselves, to find repeats.
        classes: makes a text of symbols other than bytes: for each symbol 0, or 1 for the end of a line, or the same
            number from 2 for every form of a letter. See `norewind.learners.counting.contexts.classes_of`.

    Returns:
        A learner; see `Counts`.

    Raises:
        ModelError: if there are fewer than two symbols, or too few megabytes, or classes of another shape.

    >>> import numpy as np
    >>> from norewind.learners.counts import counts
    >>> learner = counts(megabytes=16)
    >>> text = np.array(list(b"the cat sat on the mat, " * 20))
    >>> run, losses = learner.scan(learner.init(), text[:-1], text[1:])
    >>> bool(losses[:20].mean() > 3), bool(losses[-100:].mean() < 0.1)
    (True, True)
    """
    if symbols < 2:
        raise ModelError(f"counts: symbols is {symbols}, but it takes at least 2 to have something to predict.")
    if classes is None and symbols == 256:
        classes = contexts.byte_classes()
    if classes is not None and np.shape(classes) != (symbols,):
        raise ModelError(f"counts: classes has shape {np.shape(classes)}, but there are {symbols} symbols.")
    return Counts(symbols, members, megabytes, None if classes is None else np.asarray(classes, np.int32))


class Counts(Learner):
    """Counts of symbols: what `counts` returns. Losses are in nats, outputs are log-probabilities of all symbols."""

    def __init__(self, symbols: int, members: int, megabytes: float, classes: np.ndarray | None):
        self.symbols, self.members = symbols, members
        self.plan, self._start = planned(symbols, members, megabytes, classes)

    def init(self) -> CountsRun:
        """A run that has seen nothing. Nothing is random."""
        return fresh(self.plan, self._start)

    def scan(
        self, run: CountsRun, xs: Any, targets: Any, *, count: int | None = None, outputs: bool = False, members=None
    ) -> tuple[CountsRun, Any]:
        """Predict and learn a chunk of symbols; see `Learner.scan`.

        With `outputs` this takes many times longer. `members` holds, for each sample, the
        members' log-probabilities (members, symbols), which depend on nothing after x.
        """
        xs, targets = self._symbols("xs", xs), self._symbols("targets", targets)
        length = common_length("scan", xs=xs, targets=targets)
        count = _count("scan", count, length)
        losses, made = np.zeros(length), np.zeros((length if outputs else 0, self.symbols), np.float32)
        run = self.coded(run, xs, targets, losses[:count], made[:count], members=members)
        return run, (losses, made) if outputs else losses

    def coded(
        self,
        run: CountsRun,
        xs: Any,
        targets: np.ndarray,
        losses: np.ndarray,
        made: np.ndarray,
        *,
        members=None,
        coder: np.ndarray | None = None,
        data: np.ndarray | None = None,
    ) -> CountsRun:
        """As `scan`, of as many symbols as `losses` has entries, which are written, with a coder (see `coding`)."""
        run = run._replace(table=aligned(run.table))
        coder = fresh_coder(SILENT) if coder is None else coder
        data = np.zeros(0, np.uint8) if data is None else data
        members = self._member_chunk(members, len(xs))
        work = work_of(self.plan, run, self.members)
        symbol.learn_chunk(self.plan, run, work, xs, targets, members, coder, data, losses, made)
        return run

    def forward(self, run: CountsRun, xs: Any, *, count: int | None = None, members=None) -> tuple[CountsRun, Any]:
        """Log-probabilities of what follows each symbol; see `Learner.forward`, and `scan` for `members`."""
        xs = self._symbols("xs", xs)
        count = _count("forward", count, len(xs))
        run = run._replace(past=run.past.copy(), lines=run.lines.copy())
        outputs = np.zeros((len(xs), self.symbols), np.float32)
        work = work_of(self.plan, run, self.members)
        symbol.look_chunk(self.plan, run, work, xs, self._member_chunk(members, len(xs)), outputs[:count])
        return run, outputs

    def reset(self, run: CountsRun) -> CountsRun:
        """Begin a new stream; what was learned stays."""
        past = np.zeros_like(run.past)
        for kept in (contexts.POSITION, contexts.LEARNED):
            past[kept] = run.past[kept]
        return run._replace(past=past, lines=np.zeros_like(run.lines))

    def chunk(self, run: CountsRun) -> int:
        return 4_000

    def _symbols(self, name: str, values: Any) -> np.ndarray:
        """Symbols as the tables need them: anything else would be read from outside of an array."""
        values = np.asarray(values)
        if not np.issubdtype(values.dtype, np.integer) or (
            values.size and not 0 <= values.min() <= values.max() < self.symbols
        ):
            raise ModelError(f"{name}: symbols must be whole numbers from 0 to {self.symbols - 1}. Look at the stream.")
        return np.ascontiguousarray(values, np.int32)

    def _member_chunk(self, members: Any, length: int) -> np.ndarray:
        shape = length, self.members, self.symbols
        members = np.zeros((*shape[:-2], 0, shape[-1])) if members is None else np.asarray(members)
        if members.shape != shape:
            raise ModelError(
                f"members has shape {members.shape}, but these counts were made for {shape}: (samples, members, "
                "symbols). Say how many there are: counts(members=...)."
            )
        return np.ascontiguousarray(members, np.float32)


def _count(what: str, count: int | None, length: int) -> int:
    if count is not None and not 0 <= count <= length:
        raise ValueError(f"{what}: count is {count}, but the chunk holds {length} samples.")
    return length if count is None else int(count)
