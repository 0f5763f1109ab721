"""Prediction of symbols by counts and networks together, with a guarantee."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from norewind.core import checks
from norewind.core.trees import Tree
from norewind.learners.bayesian import BayesMixture, BayesMixtureRun
from norewind.learners.counting.counts import Counts
from norewind.learners.counting.plan import CountsRun
from norewind.learners.learner import Learner
from norewind.learners.mixture import forward_all, reset_all, scan_all

# The share of its weight that each expert passes on after a symbol, so that the mixture can follow changes.
SYMBOL_SWITCHING = 1e-4


class SymbolMixtureRun(NamedTuple):
    """The runs of the networks and of the counts, and the weights of the mixture."""

    networks: tuple
    counts: CountsRun
    mix: BayesMixtureRun


class SymbolMixture(Learner):
    """Predicts the next symbol by a mixture of counts and networks.

    The networks predict first. Their probabilities are mixed with those of the counts, bit
    by bit, with learned weights. The result is Bayes' mixture of this geometric
    mixture and of every network: its total loss is at most that of the best of them, plus
    the few bits guaranteed by `BayesMixture`.

    Args:
        networks: pairs of a learner from `online` and the run it starts from.
        symbols: the number of symbols.
        window: the number of symbols in one step of the networks.
        megabytes: the size of the tables of counts.
        only_targets: whether outputs are the log-probabilities of the targets alone, one per symbol. Those of all 256
            symbols take counts many times as long.
    """

    def __init__(
        self,
        networks: Sequence[tuple],
        symbols: int,
        *,
        window: int = 1,
        megabytes: float = 64,
        only_targets: bool = False,
    ):
        self.networks = [learner for learner, _ in networks]
        self._runs = tuple(run for _, run in networks)
        self.window = window
        self.only_targets = only_targets
        self.counts = Counts(symbols, experts=len(networks), megabytes=megabytes)
        self.mixture = BayesMixture(len(networks) + 1, switching=SYMBOL_SWITCHING)

    def init(self) -> SymbolMixtureRun:
        """Start a run with equal weights."""
        return SymbolMixtureRun(self._runs, self.counts.init(), self.mixture.init())

    def scan(
        self,
        run: SymbolMixtureRun,
        xs: np.ndarray,
        targets: np.ndarray,
        *,
        count: int | None = None,
        outputs: bool = False,
    ) -> tuple[SymbolMixtureRun, np.ndarray, np.ndarray | None]:
        """Learn from a chunk of symbols, or of windows of symbols; see `Learner.scan`.

        Losses are sums over a window. Outputs are log-probabilities of all symbols, or of the targets.
        """
        steps = checks.common_length("scan", xs=xs, targets=targets)
        count = steps if count is None else count
        networks, logits = scan_all(self.networks, run.networks, xs, targets, count)
        samples, observed = count * self.window, self._flat(targets)
        logs = self.log_probabilities([self._flat(part) for part in logits], len(observed))
        distributions = outputs and not self.only_targets
        table, losses, whole = self.counts.scan(
            run.counts, self._flat(xs), observed, count=samples, outputs=distributions, expert_log_probabilities=logs
        )
        network_losses = [-np.take_along_axis(one, observed[:, None], 1)[:, 0] for one in np.moveaxis(logs, 1, 0)]
        losses = np.stack([*network_losses, losses], axis=1)
        weights, mixed = self.mixture.scan(run.mix, losses, count=samples)
        new = SymbolMixtureRun(networks, table, weights)
        total = mixed.reshape(steps, self.window).sum(axis=1)
        if not outputs:
            return new, total, None
        if self.only_targets:
            return new, total, -mixed.reshape(np.shape(xs)).astype(np.float32)
        assert whole is not None
        whole = self.mixture.distributions(run.mix, np.concatenate([logs, whole[:, None]], axis=1), losses)
        return new, total, whole.reshape(*np.shape(xs), -1).astype(np.float32)

    def forward(
        self, run: SymbolMixtureRun, xs: np.ndarray, *, count: int | None = None
    ) -> tuple[SymbolMixtureRun, np.ndarray]:
        networks, logits = forward_all(self.networks, run.networks, xs, count)
        logs = self.log_probabilities([np.asarray(part) for part in logits], len(xs))
        table, whole = self.counts.forward(run.counts, xs, count=count, expert_log_probabilities=logs)
        new = SymbolMixtureRun(networks, table, run.mix)
        if not networks:
            return new, whole
        experts = np.concatenate([logs, whole[:, None]], axis=1)
        return new, self.mixture.distributions(run.mix, experts).astype(np.float32)

    def reset(self, run: SymbolMixtureRun) -> SymbolMixtureRun:
        return SymbolMixtureRun(reset_all(self.networks, run.networks), self.counts.reset(run.counts), run.mix)

    def carry(self, run: SymbolMixtureRun) -> Tree:
        return tuple(learner.carry(one) for learner, one in zip(self.networks, run.networks, strict=True))

    def chunk_size(self, run: SymbolMixtureRun) -> int:
        return self.counts.chunk_size(run.counts)

    def _flat(self, steps: ArrayLike) -> np.ndarray:
        """Join windows of symbols, or of values per symbol, to one sequence."""
        steps = np.asarray(steps)
        return steps if self.window == 1 else steps.reshape(-1, *steps.shape[2:])

    def log_probabilities(self, logits: list[np.ndarray], length: int) -> np.ndarray:
        """Return the networks' log-probabilities (samples, networks, symbols).

        Args:
            logits: the outputs of each network.
            length: the number of samples.
        """
        if not logits:
            return np.zeros((length, 0, self.counts.symbols), np.float32)
        return np.asarray(_log_probabilities(tuple(logits)))


@jax.jit
def _log_probabilities(logits: tuple) -> jax.Array:
    return jnp.stack([jax.nn.log_softmax(part) for part in logits], axis=1)
