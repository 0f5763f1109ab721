"""KF-RTRL: the influence as one Kronecker product."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from norewind.affine import affine_step, layer_of, over_steps, weight_grad, zero_inputs
from norewind.estimator import Estimate, Estimator, Loss, Transition, build_estimator, linearise, model_of, zeros_like
from norewind.estimators.uoro import NORMALISERS
from norewind.noise import Noise, as_key, random_signs
from norewind.trees import Tree, combine, norm, real_leaves


class Carry(NamedTuple):
    """u (like the inputs a of the affine layer) and A (state × rows of the layer), with E[u ⊗ A] = ∂s/∂W."""

    u: Tree
    A: jax.Array
    key: jax.Array


def kf_rtrl(transition: Transition, loss: Loss, *, noise: Noise = random_signs) -> Estimator:
    """KF-RTRL: an unbiased estimate u ⊗ A of the influence ∂s/∂W of the weights of an affine layer z = W a.

    At every step, with J = ∂s'/∂s, D = ∂s'/∂z and c a random sign,

        g̃ = (∂ℓ/∂s · A) ⊗ u + ∂ℓ/∂W
        p1 = √((‖J A‖ + ε) / (‖u‖ + ε))       p2 = √((‖D‖ + ε) / (‖a‖ + ε))
        u ← p1 u + c p2 a                     A ← J A/p1 + c D/p2

    starting from zeros: the immediate influence a ⊗ D is a Kronecker product of its own,
    and one sign adds it to the other. (The paper has two signs, of which only the product
    matters.) UORO compresses n times as much into its vectors; here the variance relative
    to the gradient hardly grows with the number of units.

    Unbiased for frozen parameters. Time: n reverse derivatives for a state of n, and
    n²·m multiplications for m rows of W (n³ for a dense cell). Bytes carried: n·m and one a.
    Needs a model that declares its affine layer (`norewind.declare` with `layer`), such
    as `cells.rnn`, `cells.elman`, `cells.gru` and `cells.lstm(..., embedding=False)`; the
    gates of a cell are rows of one layer. Over a window, u and A go on step by step.

    `noise(key, like) -> (signs, next_key)` replaces the source of c.

    `transition` and `loss` are the model: see `norewind.Model`.

    Reference: Mujika, Meier & Steger, Approximating Real-Time Recurrent Learning with
    Random Kronecker Factors (2018).

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.gru(inputs=3, hidden=4, outputs=3)
    >>> estimator = norewind.kf_rtrl(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> carry.u["gates"].shape, carry.A.shape
    ((1, 4), (4, 12))
    """
    single, layer = layer_of("kf_rtrl", transition)
    model = model_of(transition, loss)
    normaliser = NORMALISERS["released"]

    def init(params, state, key):
        n = ravel_pytree(real_leaves(state))[0]
        return Carry(zero_inputs(layer, params), jnp.zeros((n.size, layer.bias(params).size), n.dtype), as_key(key))

    def advance(params, state, carry, x):
        step = affine_step("kf_rtrl", single, layer, params, state, x)
        pushed = step.jacobian @ carry.A
        sign, key = noise(carry.key, jnp.zeros((), pushed.dtype))
        keep = normaliser(norm(pushed), norm(carry.u))
        add = normaliser(norm(step.drive), norm(step.inputs))
        u = combine(keep, carry.u, sign * add, step.inputs)
        return step.state, Carry(u, combine(1 / keep, pushed, sign / add, step.drive), key)

    def step(params, state, carry, x, target):
        point = linearise(model, params, state, x, target)
        state_grad, direct = point.vjp(zeros_like(real_leaves(state)), jnp.ones_like(point.loss))
        rows = ravel_pytree(state_grad)[0] @ carry.A
        grad = jax.tree.map(jnp.add, direct, weight_grad(layer, rows, carry.u, params))
        _, carry = over_steps(transition, advance)(params, state, carry, x)
        return point.state, carry, Estimate(point.loss, grad, point.output)

    return build_estimator(init, step, model)
