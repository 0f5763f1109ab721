"""The best prediction of symbols: counts and networks side by side, with a guarantee."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from norewind import checks
from norewind.learners.counting.contexts import empty_past
from norewind.learners.counting.symbol import CountsRun
from norewind.learners.counts import counts
from norewind.learners.members import carry_all, forward_all, reset_all, scan_all
from norewind.learners.mix import mix
from norewind.trees import Tree

SWITCHING = 1e-4
"""The share of its weight that each expert passes on after a symbol, so that the mixture can follow a change."""


class TextRun(NamedTuple):
    """The runs of the networks, of the counts they are mixed with, and the weights of all."""

    networks: tuple
    counts: CountsRun
    mix: Any


class TextLearner:
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

    chunk = 4_000

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
        self, run: TextRun, xs: np.ndarray, targets: np.ndarray, *, count: int | None = None, outputs: bool = False
    ) -> tuple[TextRun, Any]:
        """Learn from a chunk of symbols, or of windows of symbols, and return `(run, losses)`.

        With `outputs`, `(run, (losses, log_probabilities))`, of all symbols, or unless `whole`
        of the targets. The run that goes in is used up.
        """
        distributions = outputs and self.whole
        steps = checks.common_length("scan", xs=xs, targets=targets)
        count = steps if count is None else count
        networks, _, logits = scan_all(self.networks, run.networks, xs, [targets] * len(self.networks), count)
        members, own = _experts([self._flat(np.asarray(part)) for part in logits], self._flat(np.asarray(targets)))
        samples = count * self.window
        table, seen = self.counts.scan(
            run.counts, self._flat(xs), self._flat(targets), members=members, count=samples, outputs=distributions
        )
        all_losses = np.concatenate([own, np.asarray(seen[0] if distributions else seen)[:, None]], axis=1)
        weights, mixed = self.mix.scan(run.mix, all_losses, count=samples)
        new = TextRun(networks, table, weights)
        losses = mixed.reshape(steps, self.window).sum(axis=1)
        if not distributions:
            return new, (losses, -mixed.reshape(np.shape(xs))) if outputs else losses
        experts = np.concatenate([*([] if members is None else [np.asarray(members)]), seen[1][:, None]], axis=1)
        whole = self.mix.distributions(run.mix, all_losses, experts)
        return new, (losses, whole.reshape(np.shape(xs) + whole.shape[1:]))

    def forward(self, run: TextRun, xs: Any, *, count: Any = None) -> tuple[TextRun, Any]:
        """Log-probabilities of what follows each symbol, without learning."""
        networks, logits = forward_all(self.networks, run.networks, xs, count)
        members = _log_probabilities(tuple(logits)) if logits else None
        table, whole = self.counts.forward(run.counts, xs, count, members=members)
        new = TextRun(networks, table, run.mix)
        if members is None:
            return new, whole
        weights = (run.mix.large + run.mix.small)[None, :, None]
        return new, jax.nn.logsumexp(weights + jnp.concatenate([members, whole[:, None]], axis=1), axis=1)

    def reset(self, run: TextRun) -> TextRun:
        """Begin a new text; what was learned stays."""
        return TextRun(reset_all(self.networks, run.networks), run.counts._replace(past=empty_past()), run.mix)

    def carry(self, run: TextRun) -> Tree:
        return carry_all(self.networks, run.networks)

    def _flat(self, steps: np.ndarray) -> np.ndarray:
        return steps if self.window == 1 else np.reshape(steps, (-1, *np.shape(steps)[2:]))


def _experts(logits: list, targets: np.ndarray) -> tuple[jax.Array | None, np.ndarray]:
    """The networks' log-probabilities (samples, networks, symbols), and their losses (samples, networks)."""
    if not logits:
        return None, np.zeros((len(targets), 0))
    members = _log_probabilities(tuple(logits))
    return members, -np.take_along_axis(np.asarray(members), targets[:, None, None], axis=2)[:, :, 0]


@jax.jit
def _log_probabilities(logits: tuple) -> jax.Array:
    return jnp.stack([jax.nn.log_softmax(part) for part in logits], axis=1)
