"""The best prediction of symbols: counts and networks side by side, with a guarantee."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind import checks
from norewind.learners.counting.plan import CountsRun
from norewind.learners.counts import counts
from norewind.learners.mix import MixRun, mix
from norewind.learners.protocol import Learner
from norewind.trees import Tree

# The share of its weight that each expert passes on after a symbol, so that the mixture can follow a change.
SWITCHING = 1e-4


class TextRun(NamedTuple):
    """The runs of the networks, of the counts they are mixed with, and the weights of all."""

    networks: tuple
    counts: CountsRun
    mix: MixRun


class TextLearner(Learner):
    """Prediction of the next symbol by counts and networks, mixed.

    The networks predict first. Their probabilities are mixed with those of the counts, bit
    by bit, with weights that are learned. The result is Bayes' mixture of this geometric
    mixture and of every network: its total loss is at most that of the best of them, plus
    the few bits that `mix` says.

    Args:
        networks: learners from `online`, with the runs they start from.
        symbols: the number of symbols.
        window: the symbols in one step of the networks.
        megabytes: the size of the tables of counts.
        classes: what the symbols are in a text; see `counts`.
        whole: whether outputs have all symbols, or only the one that came. For all 256, counts take many times as long.
    """

    def __init__(
        self,
        networks: Sequence[tuple],
        symbols: int,
        *,
        window: int = 1,
        megabytes: float = 64,
        classes: np.ndarray | None = None,
        whole: bool = True,
    ):
        self.networks, self._runs = [learner for learner, _ in networks], tuple(run for _, run in networks)
        self.window, self.whole = window, whole
        self.counts = counts(symbols, members=len(networks), megabytes=megabytes, classes=classes)
        self.mix = mix(len(networks) + 1, switching=SWITCHING)

    def init(self) -> TextRun:
        return TextRun(self._runs, self.counts.init(), self.mix.init())

    def scan(
        self, run: TextRun, xs: Any, targets: Any, *, count: int | None = None, outputs: bool = False
    ) -> tuple[TextRun, Any]:
        """Learn from a chunk of symbols, or of windows of symbols; see `Learner.scan`.

        Outputs are log-probabilities of all symbols, or unless `whole` of the targets. Losses
        are sums over a window.
        """
        steps = checks.common_length("scan", xs=xs, targets=targets)
        count = steps if count is None else count
        done = [
            learner.scan(own, xs, targets, count=count, outputs=True)
            for learner, own in zip(self.networks, run.networks, strict=True)
        ]
        samples, came = count * self.window, self._flat(targets)
        members = self.members([self._flat(made) for _, (_, made) in done], len(came))
        distributions = outputs and self.whole
        table, seen = self.counts.scan(
            run.counts, self._flat(xs), came, count=samples, outputs=distributions, members=members
        )
        losses, whole = seen if distributions else (seen, None)
        own = [-np.take_along_axis(made, came[:, None], 1)[:, 0] for made in np.moveaxis(members, 1, 0)]
        losses = np.stack([*own, losses], axis=1)
        weights, mixed = self.mix.scan(run.mix, losses, count=samples)
        new = TextRun(tuple(one for one, _ in done), table, weights)
        total = mixed.reshape(steps, self.window).sum(axis=1)
        if not outputs:
            return new, total
        if whole is None:
            return new, (total, -mixed.reshape(np.shape(xs)).astype(np.float32))
        whole = self.mix.distributions(run.mix, losses, np.concatenate([members, whole[:, None]], axis=1))
        return new, (total, whole.reshape(*np.shape(xs), -1).astype(np.float32))

    def forward(self, run: TextRun, xs: Any, *, count: int | None = None) -> tuple[TextRun, np.ndarray]:
        """Log-probabilities of what follows each symbol, without learning; see `Learner.forward`."""
        done = [learner.forward(own, xs, count=count) for learner, own in zip(self.networks, run.networks, strict=True)]
        members = self.members([np.asarray(made) for _, made in done], len(xs))
        table, whole = self.counts.forward(run.counts, xs, count=count, members=members)
        new = TextRun(tuple(one for one, _ in done), table, run.mix)
        if not done:
            return new, whole
        experts = np.concatenate([members, whole[:, None]], axis=1)
        return new, np.stack([self.mix.distribution(run.mix, one) for one in experts]).astype(np.float32)

    def reset(self, run: TextRun) -> TextRun:
        """Begin a new text; what was learned stays."""
        networks = tuple(learner.reset(own) for learner, own in zip(self.networks, run.networks, strict=True))
        return TextRun(networks, self.counts.reset(run.counts), run.mix)

    def carry(self, run: TextRun) -> Tree:
        return tuple(learner.carry(own) for learner, own in zip(self.networks, run.networks, strict=True))

    def chunk(self, run: TextRun) -> int:
        return self.counts.chunk(run.counts)

    def _flat(self, steps: Any) -> np.ndarray:
        """Symbols, or what belongs to them, one after another."""
        steps = np.asarray(steps)
        return steps if self.window == 1 else steps.reshape(-1, *steps.shape[2:])

    def members(self, logits: list[np.ndarray], length: int) -> np.ndarray:
        """The networks' log-probabilities (samples, networks, symbols)."""
        if not logits:
            return np.zeros((length, 0, self.counts.symbols), np.float32)
        return np.asarray(_log_probabilities(tuple(logits)))


@jax.jit
def _log_probabilities(logits: tuple) -> jax.Array:
    return jnp.stack([jax.nn.log_softmax(part) for part in logits], axis=1)
