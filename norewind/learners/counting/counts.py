"""Predict symbols by counts in hashed contexts, mixed bit by bit, as PAQ does."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from norewind.core import checks
from norewind.learners.counting import contexts, symbol
from norewind.learners.counting.coding import SILENT, init_coder
from norewind.learners.counting.plan import CountsRun, allocate_scratch, init_counts, make_plan, with_aligned_tables
from norewind.learners.learner import Learner


class Counts(Learner):
    """A learner that models a stream of symbols in one pass, by counts within a fixed amount of memory.

    A symbol is predicted bit by bit. For each bit, every context (the last 0 to 5 and 8
    symbols, some of them skipped; in a text also the words and the line, and in binary
    data the record) has a hashed count, and the longest repeat found contributes a
    prediction. They are mixed in the logistic domain by weights that are learned online,
    and the result is corrected by adaptive maps. Without `experts` this uses integer and
    IEEE-754 operations only, so predictions are the same on every processor.

    Losses are in nats, and outputs are log-probabilities of all symbols.

    Args:
        symbols: the number of symbols, at least 2.
        experts: the number of other predictions that are mixed in, such as those of networks.
        megabytes: the maximum size of a run, in millions of bytes. Every symbol fills up to two kilobytes of the
            tables, less if the stream repeats itself; when they are full, the least used entries are replaced. A
            sixteenth stores the symbols themselves, to find repeats.
        classes: treats symbols other than bytes as text. For each symbol: 0, or 1 for the end of a line, or a number
            from 2 that is the same for every form of a letter. See `norewind.learners.counting.contexts.classes_of`.

    Raises:
        ModelError: there are fewer than two symbols, too few megabytes, or the classes have the wrong shape.

    >>> import numpy as np
    >>> from norewind.learners import Counts
    >>> learner = Counts(megabytes=16)
    >>> text = np.array(list(b"the cat sat on the mat, " * 20))
    >>> run, losses, _ = learner.scan(learner.init(), text[:-1], text[1:])
    >>> bool(losses[:20].mean() > 3), bool(losses[-100:].mean() < 0.1)
    (True, True)
    """

    def __init__(
        self,
        symbols: int = 256,
        *,
        experts: int = 0,
        megabytes: float = 256,
        classes: Sequence[int] | np.ndarray | None = None,
    ):
        if symbols < 2:
            raise checks.ModelError(
                f"Counts: symbols is {symbols}, but there must be at least 2 to have anything to predict."
            )
        if classes is None and symbols == 256:
            classes = contexts.byte_classes()
        if classes is not None and np.shape(classes) != (symbols,):
            raise checks.ModelError(f"Counts: classes has shape {np.shape(classes)}, but there are {symbols} symbols.")
        self.symbols, self.experts = symbols, experts
        self.plan, self._start = make_plan(symbols, experts, megabytes, classes)

    def init(self) -> CountsRun:
        """Create an empty run. Nothing about it is random."""
        return init_counts(self.plan, self._start)

    def scan(
        self,
        run: CountsRun,
        xs: ArrayLike,
        targets: ArrayLike,
        *,
        count: int | None = None,
        outputs: bool = False,
        expert_log_probabilities: ArrayLike | None = None,
    ) -> tuple[CountsRun, np.ndarray, np.ndarray | None]:
        """Predict and learn a chunk of symbols; see `Learner.scan`.

        Args:
            run: the run to continue; it must not be used afterwards.
            xs: the symbols.
            targets: the symbols that follow them.
            count: use only the first `count` symbols.
            outputs: whether to return the log-probabilities of all symbols; this takes many times longer.
            expert_log_probabilities: those of the experts (samples, experts, symbols), which must not depend on
                anything after x.

        Returns:
            `(run, losses, outputs)`.

        Raises:
            ModelError: a symbol is out of range, or `expert_log_probabilities` has the wrong shape.
        """
        xs, targets = self._symbols("scan", checks.INPUT, xs), self._symbols("scan", checks.TARGET, targets)
        length = checks.common_length("scan", xs=xs, targets=targets)
        checks.check_count("scan", count, length)
        losses, whole = np.zeros(length), np.zeros((length if outputs else 0, self.symbols), np.float32)
        run = self.code(
            run, xs, targets, losses[:count], whole[:count], expert_log_probabilities=expert_log_probabilities
        )
        return run, losses, whole if outputs else None

    def code(
        self,
        run: CountsRun,
        xs: np.ndarray,
        targets: np.ndarray,
        losses: np.ndarray,
        whole: np.ndarray,
        *,
        expert_log_probabilities: ArrayLike | None = None,
        coder: np.ndarray | None = None,
        data: np.ndarray | None = None,
    ) -> CountsRun:
        """Learn from symbols as `scan` does, and encode or decode them on the way.

        Args:
            run: the run to continue; it must not be used afterwards.
            xs: the symbols.
            targets: the symbols that follow them. When decoding, they are written here; `xs` may be a view of them.
            losses: where to write the losses; its length is the number of symbols to process.
            whole: where to write log-probabilities of all symbols; without rows, they are not computed.
            expert_log_probabilities: those of the experts (samples, experts, symbols).
            coder: the state of the coder (see `coding`); by default, nothing is coded.
            data: the bytes that the coder writes or reads.

        Returns:
            The run after these symbols.
        """
        run = with_aligned_tables(run)
        coder = init_coder(SILENT) if coder is None else coder
        data = np.zeros(0, np.uint8) if data is None else data
        probabilities = self._expert_probabilities(expert_log_probabilities, len(xs))
        work = allocate_scratch(self.plan, run, self.experts)
        symbol.learn_chunk(self.plan, run, work, xs, targets, probabilities, coder, data, losses, whole)
        return run

    def forward(
        self,
        run: CountsRun,
        xs: ArrayLike,
        *,
        count: int | None = None,
        expert_log_probabilities: ArrayLike | None = None,
    ) -> tuple[CountsRun, np.ndarray]:
        """Predict the symbol after each symbol without learning; see `Learner.forward`.

        Args:
            run: the run to predict with; it stays unchanged.
            xs: the symbols.
            count: use only the first `count` symbols.
            expert_log_probabilities: those of the experts (samples, experts, symbols).

        Returns:
            `(run, outputs)`, with log-probabilities of all symbols.
        """
        xs = self._symbols("forward", checks.INPUT, xs)
        checks.check_count("forward", count, len(xs))
        run = run._replace(past=run.past.copy(), lines=run.lines.copy())
        outputs = np.zeros((len(xs), self.symbols), np.float32)
        work = allocate_scratch(self.plan, run, self.experts)
        probabilities = self._expert_probabilities(expert_log_probabilities, len(xs))
        symbol.predict_chunk(self.plan, run, work, xs, probabilities, outputs[:count])
        return run, outputs

    def reset(self, run: CountsRun) -> CountsRun:
        past = np.zeros_like(run.past)
        # Symbols that were predicted from, but not learned, are forgotten.
        past[[contexts.POSITION, contexts.LEARNED]] = run.past[contexts.LEARNED]
        return run._replace(past=past, lines=np.zeros_like(run.lines))

    def chunk_size(self, run: CountsRun) -> int:
        return 4_000

    def _symbols(self, caller: str, kind: str, values: ArrayLike) -> np.ndarray:
        """Check and convert symbols. Any other number would be out of bounds."""
        values = np.asarray(values)
        if not np.issubdtype(values.dtype, np.integer):
            raise checks.ModelError(
                f"{caller}: every {kind} must be a whole number, not a {values.dtype}. Convert it (.astype(int))."
            )
        checks.check_in_range(kind, values, self.symbols, caller, "Check the stream, or use Counts with more symbols.")
        return np.ascontiguousarray(values, np.int32)

    def _expert_probabilities(self, log_probabilities: ArrayLike | None, length: int) -> np.ndarray:
        shape = length, self.experts, self.symbols
        logs = np.zeros((length, 0, self.symbols)) if log_probabilities is None else np.asarray(log_probabilities)
        if logs.shape != shape:
            raise checks.ModelError(
                f"expert_log_probabilities has shape {logs.shape}, but these counts were made for {shape}: (samples, "
                "experts, symbols). Set their number with Counts(experts=...)."
            )
        return np.exp(logs, dtype=np.float32)
