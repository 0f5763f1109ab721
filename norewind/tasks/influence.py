"""Influence balancing: a parameter whose influence changes sign with time."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, count, islice
from math import comb

import jax
import jax.numpy as jnp

from norewind.losses import squared_error


@dataclass(frozen=True)
class InfluenceBalancing:
    """Linear dynamics s' = A s + θ v with A_ii = A_i,i+1 = ½ and the loss ½ (s'₁ − 1)².

    v holds n − minus times +1, then minus times −1. The deeper a unit, the later it is
    felt in the first one: in the short run θ raises s₁, in the long run it does what
    most of the signs say. `transition(params, state, x)` takes and ignores an x.

    The influence ∂s₁/∂θ is known exactly: `influences` after t = 1, 2, ... steps from a
    state that is taken as given, and `influence_limit` in the end. `limit` is the θ*
    that solves the task.
    """

    n: int
    minus: int

    @property
    def signs(self) -> list[int]:
        """v."""
        return [1] * (self.n - self.minus) + [-1] * self.minus

    @property
    def influence_limit(self) -> int:
        """∂s₁/∂θ in the end: the first entry of (1 − A)⁻¹ v, twice the sum of all signs."""
        return 2 * sum(self.signs)

    @property
    def limit(self) -> float:
        """θ* with s₁ → 1."""
        return 1 / self.influence_limit

    def init(self, theta: float = 0.5) -> jax.Array:
        """The parameter before learning."""
        return jnp.asarray(theta, float)

    def initial_state(self) -> jax.Array:
        """All units at 0."""
        return jnp.zeros(self.n)

    def transition(self, params: jax.Array, state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One step of the dynamics; the output is the first unit."""
        shifted = jnp.append(state[1:], jnp.zeros(1, state.dtype))
        state = (state + shifted) / 2 + params * jnp.asarray(self.signs, state.dtype)
        return state, state[0]

    def loss(self, output: jax.Array, target: jax.Array) -> jax.Array:
        """½ (s₁ − target)², with 1 as the target in the paper."""
        return squared_error(output, target)

    def influences(self) -> Iterator[Fraction]:
        """∂s₁/∂θ after t = 1, 2, ... steps, exactly and endlessly: the sum of the first entries of Aʲv for j < t.

        >>> task = influence_balancing(4, 3)
        >>> [str(influence) for influence, _ in zip(task.influences(), range(5))]
        ['1', '1', '1/2', '-1/4', '-17/16']
        """
        signs = self.signs

        def first_entry(j):
            # Aʲ = ((1 + shift) / 2)ʲ, and i shifts bring the sign of unit i + 1 to the first place.
            return Fraction(sum(comb(j, i) * sign for i, sign in enumerate(signs)), 2**j)

        return accumulate(first_entry(j) for j in count())

    def block_influence(self, window: int) -> Fraction:
        """The sum of ∂s₁/∂θ over a block of T steps, exactly, with no influence from before it.

        T-truncated BPTT on a state at rest follows (s₁ − 1) times this.

        >>> influence_balancing(23, 13).block_influence(3)
        Fraction(6, 1)
        """
        return sum(islice(self.influences(), window), start=Fraction(0))

    def last_wrong_window(self) -> int:
        """The largest T for which T-truncated BPTT on a state at rest goes the wrong way; 0 if none does.

        All smaller T are wrong too: the first entry of Aʲv is positive up to some j and
        negative from there on, so its double sum crosses zero once and for all. (A sum
        of exactly zero counts as wrong: it never gets anywhere.)

        >>> influence_balancing(4, 3).last_wrong_window()
        5
        """
        if self.influence_limit > 0:
            return 0
        blocks = accumulate(self.influences())
        return next(T for T, block in enumerate(blocks) if block < 0)


def influence_balancing(n: int = 23, minus: int = 13) -> InfluenceBalancing:
    """The paper's influence balancing with n units, `minus` of them with a minus sign.

    Reference: Tallec & Ollivier (2017), section "Influence balancing".

    >>> task = influence_balancing(23, 13)
    >>> task.influence_limit, round(task.limit, 4)
    (-6, -0.1667)
    """
    if n < 1 or not 0 <= minus <= n:
        raise ValueError(f"influence_balancing needs n >= 1 and 0 <= minus <= n, not n={n} and minus={minus}.")
    if 2 * minus == n:
        raise ValueError(f"influence_balancing: with {minus} of {n} minus signs θ has no influence in the end.")
    return InfluenceBalancing(n, minus)
