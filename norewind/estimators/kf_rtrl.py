"""KF-RTRL: the influence as one Kronecker product."""

from norewind.core.affine import products
from norewind.core.estimator import Estimator, Loss, Transition
from norewind.core.noise import Noise, random_signs
from norewind.estimators.uoro import NORMALISERS, merge


def kf_rtrl(transition: Transition, loss: Loss, *, noise: Noise = random_signs) -> Estimator:
    """KF-RTRL: an unbiased estimate u ⊗ A of the influence ∂s/∂W of the weights of an affine layer z = W a.

    At every step, with J = ∂s'/∂s, D = ∂s'/∂z and c a random sign,

        g̃ = (∂ℓ/∂s · A) ⊗ u + ∂ℓ/∂W
        p1 = √((‖J A‖ + ε) / (‖u‖ + ε))       p2 = √((‖D‖ + ε) / (‖a‖ + ε))
        u ← p1 u + c p2 a                     A ← J A/p1 + c D/p2

    starting from zeros: the immediate influence a ⊗ D is itself a Kronecker product,
    and one sign adds it to the other. (The paper has two signs, of which only the product
    matters.) UORO compresses n times as much into its vectors; here the variance relative
    to the gradient hardly grows with the number of units.

    Unbiased for frozen parameters. Time: n reverse derivatives for a state of n, and
    n²·m multiplications for m rows of W (n³ for a dense cell). Bytes carried: n·m and one a.
    Needs a model that declares its affine layer (`norewind.declare` with `layer`), such
    as `cells.rnn`, `cells.elman`, `cells.gru` and `cells.lstm(..., embedding=False)`; the
    gates of a cell are rows of one layer. Over a window, u and A are updated at every step.

    Reference: Mujika, Meier & Steger, Approximating Real-Time Recurrent Learning with
    Random Kronecker Factors (2018).

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`, or a window of steps.
        loss: the loss of one step or window, `loss(output, target)`, a scalar.
        noise: the source of c, called as `noise(key, like) -> (signs, next_key)`.

    Returns:
        The estimator.

    Raises:
        ModelError: the model declares no affine layer.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.gru(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.estimators.kf_rtrl(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> carry.u["gates"].shape, carry.A.shape
    ((1, 1, 4), (1, 4, 12))
    """

    def reduce(left, right, signs):
        past, new = (left[:1], right[:1]), (signs * left[1:], signs * right[1:])
        return merge(NORMALISERS["released"], past, new)

    return products("kf_rtrl", transition, loss, terms=1, reduce=reduce, noise=noise)
