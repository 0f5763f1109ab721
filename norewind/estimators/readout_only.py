"""The gradient of the readout alone: how echo state networks and liquid state machines learn."""

import jax

from norewind.core import checks
from norewind.core.checks import ModelError
from norewind.core.estimator import Estimate, Estimator, Loss, Transition, model_of
from norewind.core.structure import reaches_state


def readout_only(transition: Transition, loss: Loss) -> Estimator:
    """The exact gradient of the parameters that never reach the state; zero for all others.

        g_readout = ∂ℓ/∂θ_readout                   g_rest = 0

    With a reservoir (`cells.reservoir`, `cells.liquid`) this trains an echo state
    network or a liquid state machine; in any other cell, the recurrent weights keep
    their initial values. The readout is found by analysing the program of the
    transition: it consists of the parameters that the new state does not depend on. (An
    optimizer that changes parameters without a gradient, e.g. by weight decay, still changes
    the others.)

    Exact for the readout, which no past influences; the recurrent gradient is dropped.
    Time: one evaluation of the model and the reverse derivative of its output alone, n·o
    for a linear readout of o outputs. Bytes carried: none. Needs a model with a readout: a
    model whose parameters all reach the state is rejected.

    Reference: Jaeger, The "echo state" approach to analysing and training recurrent
    neural networks (2001); Maass, Natschläger & Markram, Real-time computing without
    stable states (2002).

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        loss: the loss of one step, `loss(output, target)`, a scalar.

    Returns:
        The estimator.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.reservoir(inputs=3, hidden=20, outputs=3)
    >>> estimator = norewind.estimators.readout_only(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> state, _, estimate = estimator.step(params, state, (), jnp.array(0), jnp.array(2))
    >>> bool(jnp.any(estimate.grad["readout"]["weight"])), bool(jnp.any(estimate.grad["recurrent"]))
    (True, False)
    """
    model = model_of(transition, loss)

    def step(params, state, carry, x, target):
        checks.check_transition_result(jax.eval_shape(transition, params, state, x), state)
        reaching = reaches_state(transition, params, state, x)
        if all(jax.tree.leaves(reaching)):
            raise ModelError(
                "readout_only: every parameter of this model reaches its state, so there is no readout to train. "
                "Give the model a readout: compute the output with parameters that the state does not use."
            )

        def evaluate(readout):
            mixed = jax.tree.map(lambda reaches, old, new: old if reaches else new, reaching, params, readout)
            new_state, output = transition(mixed, state, x)
            return checks.check_loss_result(loss(output, target)), (new_state, output)

        # The parameters that reach the state are taken from outside of the differentiated function: zero gradients.
        (value, (new_state, output)), grad = jax.value_and_grad(evaluate, has_aux=True)(params)
        return new_state, carry, Estimate(value, grad, output)

    return Estimator.build(lambda params, state, key: (), step, model)
