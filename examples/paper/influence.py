"""Influence balancing: a parameter whose influence changes sign over time."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, count, islice
from math import comb

import jax
import jax.numpy as jnp

from norewind.core.losses import squared_error


@dataclass(frozen=True)
class InfluenceBalancing:
    """The paper's influence balancing task: linear dynamics s' = A s + θ v, A_ii = A_i,i+1 = ½, loss ½ (s'₁ − 1)².

    v consists of n − minus entries of +1, followed by minus entries of −1. The deeper a unit, the later
    it acts on the first one: at first θ raises s₁, and in the long run the majority of the signs
    decides. `transition(params, state, x)` ignores x.

    Reference: Tallec & Ollivier (2017), section "Influence balancing".

    Args:
        n: the number of units.
        minus: the number of units with a minus sign.

    Raises:
        ValueError: `minus` is not from 0 to n, or θ has no influence in the long run.

    >>> task = InfluenceBalancing(23, 13)
    >>> task.influence_limit, round(task.limit, 4)
    (-6, -0.1667)
    """

    n: int = 23
    minus: int = 13

    def __post_init__(self):
        n, minus = self.n, self.minus
        if n < 1 or not 0 <= minus <= n:
            raise ValueError(f"InfluenceBalancing needs n >= 1 and 0 <= minus <= n, not n={n} and minus={minus}.")
        if 2 * minus == n:
            raise ValueError(
                f"InfluenceBalancing: with {minus} minus signs of {n}, θ has no influence in the long run."
            )

    @property
    def signs(self) -> list[int]:
        """The vector v."""
        return [1] * (self.n - self.minus) + [-1] * self.minus

    @property
    def influence_limit(self) -> int:
        """∂s₁/∂θ in the long run: the first entry of (1 − A)⁻¹ v, which is twice the sum of all signs."""
        return 2 * sum(self.signs)

    @property
    def limit(self) -> float:
        """The θ* for which s₁ → 1."""
        return 1 / self.influence_limit

    def init(self, theta: float = 0.5) -> jax.Array:
        """Return the parameter θ before learning.

        Args:
            theta: its value. (The paper does not state it.)
        """
        return jnp.asarray(theta, float)

    def initial_state(self) -> jax.Array:
        return jnp.zeros(self.n)

    def transition(self, params: jax.Array, state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compute one step of the dynamics.

        Args:
            params: θ.
            state: s.
            x: unused.

        Returns:
            The new state, and its first unit as the output.
        """
        shifted = jnp.append(state[1:], jnp.zeros(1, state.dtype))
        state = (state + shifted) / 2 + params * jnp.asarray(self.signs, state.dtype)
        return state, state[0]

    def loss(self, output: jax.Array, target: jax.Array) -> jax.Array:
        """Compute ½ (s₁ − target)².

        Args:
            output: s₁.
            target: the target, 1 in the paper.
        """
        return squared_error(output, target)

    def influences(self) -> Iterator[Fraction]:
        """Yield the exact ∂s₁/∂θ after t = 1, 2, ... steps, endlessly: the sum of the first entries of Aʲv for j < t.

        >>> task = InfluenceBalancing(4, 3)
        >>> [str(influence) for influence, _ in zip(task.influences(), range(5))]
        ['1', '1', '1/2', '-1/4', '-17/16']
        """
        signs = self.signs
        # Aʲ = ((1 + shift) / 2)ʲ, and i shifts move the sign of unit i + 1 to the first place.
        return accumulate(Fraction(sum(comb(j, i) * sign for i, sign in enumerate(signs)), 2**j) for j in count())

    def block_influence(self, window: int) -> Fraction:
        """Compute the exact sum of ∂s₁/∂θ over a block of T = `window` steps, without influence from before it.

        On a state at rest, the gradient of T-truncated BPTT is (s₁ − 1) times this.

        Args:
            window: the number of steps T.

        >>> InfluenceBalancing(23, 13).block_influence(3)
        Fraction(6, 1)
        """
        return sum(islice(self.influences(), window), start=Fraction(0))

    def last_wrong_window(self) -> int:
        """Find the largest T for which T-truncated BPTT on a state at rest moves the wrong way, or 0 if there is none.

        All smaller T are wrong too: the first entry of Aʲv is positive up to some j and
        negative from there on, so its double sum crosses zero only once. (A sum of
        exactly zero counts as wrong, because then nothing is learned.)

        >>> InfluenceBalancing(4, 3).last_wrong_window()
        5
        """
        if self.influence_limit > 0:
            return 0
        blocks = accumulate(self.influences())
        return next(T for T, block in enumerate(blocks) if block < 0)
