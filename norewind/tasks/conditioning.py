"""Trace conditioning: predicting a reward from a cue that ended long before it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

TRIALS = 256


@dataclass(frozen=True)
class TraceConditioning:
    """An endless, seeded stream of trials: a cue, a silent interval, a reward, and a pause until the next trial.

    An input has one entry for the cue and one for each distractor, which fires at random, independently of
    the reward. Each sample comes with the reward that arrives at the *next* one. The cue lasts four samples.

    The value, the discounted sum of future rewards, cannot be read from the inputs of the last few samples: during
    the silent interval they say nothing.

    Reference: Rafiee et al., From eye-blinks to state construction: diagnostic benchmarks for online representation
    learning (2022).

    Args:
        interval: the shortest and the longest number of samples from the beginning of the cue to the reward.
        pause: the shortest and the longest number of samples from the reward to the next cue.
        distractors: the number of distractors.
        rate: the chance of a distractor to fire at a sample.

    Raises:
        ValueError: a range is not in order, or too short for the cue.

    >>> import numpy as np
    >>> task = TraceConditioning(interval=(7, 7), distractors=0)
    >>> xs, rewards = next(task.chunks(seed=0, size=200))
    >>> cue, reward = np.argmax(xs[:, 0]), np.argmax(rewards)
    >>> int(reward + 1 - cue), xs.shape
    (7, (200, 1))
    """

    interval: tuple[int, int] = (7, 13)
    pause: tuple[int, int] = (80, 120)
    distractors: int = 10
    rate: float = 0.05
    cue: int = 4

    def __post_init__(self):
        if not self.cue < self.interval[0] <= self.interval[1] or not 1 <= self.pause[0] <= self.pause[1]:
            raise ValueError(
                f"TraceConditioning: interval {self.interval} must be in order and longer than the cue ({self.cue}), "
                f"and pause {self.pause} in order and above 0."
            )

    @property
    def inputs(self) -> int:
        """The number of entries of an input."""
        return 1 + self.distractors

    @property
    def discount(self) -> float:
        """The discount whose horizon is the mean interval, 1 − 2/(shortest + longest)."""
        return 1 - 2 / sum(self.interval)

    def chunks(self, seed: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Generate the stream of a seed in chunks.

        Args:
            seed: the seed of the stream.
            size: the number of samples in a chunk. The stream does not depend on it.

        Returns:
            An iterator over `(xs, rewards)`; rewards[t] arrives at sample t + 1.
        """
        if size < 1:
            raise ValueError(f"chunks needs size >= 1, not {size}.")
        rest, block = (np.empty((0, self.inputs), np.float32), np.empty(0, np.float32)), 0
        while True:
            while len(rest[1]) < size:
                drawn = self._trials(np.random.default_rng([seed, block]))
                rest = tuple(np.concatenate(pair) for pair in zip(rest, drawn, strict=True))
                block += 1
            yield rest[0][:size], rest[1][:size]
            rest = rest[0][size:], rest[1][size:]

    def _trials(self, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw a block of whole trials."""
        pauses, intervals = (generator.integers(low, high + 1, TRIALS) for low, high in (self.pause, self.interval))
        ends = np.cumsum(pauses + intervals)
        xs, rewards = np.zeros((ends[-1], self.inputs), np.float32), np.zeros(ends[-1], np.float32)
        xs[:, 1:] = generator.random((ends[-1], self.distractors)) < self.rate
        for end, interval in zip(ends, intervals, strict=True):
            xs[end - interval : end - interval + self.cue, 0] = 1
        rewards[ends - 1] = 1  # arrives at the first sample of the next trial
        return xs, rewards


def discounted_returns(rewards: np.ndarray, discount: float) -> np.ndarray:
    """Compute the discounted sums that values predict: G_t = r_{t+1} + γ G_{t+1}, with nothing after the end.

    They use the future, so they serve to score predictions, not to learn.

    Args:
        rewards: r_{t+1} at position t.
        discount: γ.

    Returns:
        The returns.

    >>> discounted_returns(np.array([0.0, 1.0, 0.0]), 0.5).tolist()
    [0.5, 1.0, 0.0]
    """
    returns, following = np.empty(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        following = rewards[t] + discount * following
        returns[t] = following
    return returns
