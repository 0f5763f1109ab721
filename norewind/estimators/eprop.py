"""E-prop: eligibility traces along each neuron's own state, for spiking and gated cells."""

from norewind.core.estimator import Estimator, Loss, Transition, model_of
from norewind.core.products import cut_product
from norewind.estimators.traces import traces_estimator, without_cross_terms


def eprop(transition: Transition, loss: Loss) -> Estimator:
    """E-prop: the influence of every weight on its own neuron, without the way through the recurrent weights.

    With c the state of a neuron (all numbers that it keeps), and everything that recurrent weights
    read from the old state held constant,

        E ← (∂c'/∂c) E + ∂c'/∂W               g = (∂ℓ/∂c) E + ∂ℓ/∂W

    starting from zero. E is the eligibility trace, and ∂ℓ/∂c the learning signal. What is
    kept is the cell's own recurrence: the leak of the voltage and the adaptation of a spiking
    neuron (`cells.alif`, where these are the published traces), or the memory cell of an LSTM (where
    it is `lstm97`). For leaky rate units it is `rflo`, and both are computed in the same way. Like
    the paper's symmetric form, it sends errors back through the readout's own weights.

    Biased: the hidden state's feedback is dropped. `unbiased(eprop(...))` estimates it. Time: one
    evaluation of the model, and 1 + k reverse derivatives, where k is the number of entries of
    a neuron; O(1) per weight. Bytes carried: k sets of parameters (without the readout). Needs a
    model that declares which unit each weight feeds and how its units mix (`norewind.declare` with
    `units` and `mixing`).

    Reference: Bellec et al., A solution to the learning dilemma for recurrent networks of spiking
    neurons (2020).

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        loss: the loss of one step, `loss(output, target)`, a scalar.

    Returns:
        The estimator.

    Raises:
        ModelError: the model does not declare its units and how they mix.

    >>> import jax, jax.numpy as jnp, norewind
    >>> cell = norewind.cells.alif(inputs=3, hidden=20, outputs=3)
    >>> estimator = norewind.estimators.eprop(cell.transition, norewind.losses.cross_entropy)
    >>> params, state = cell.init(jax.random.key(0)), cell.initial_state()
    >>> carry = estimator.init(params, state, jax.random.key(1))
    >>> state, carry, estimate = estimator.step(params, state, carry, jnp.array(0), jnp.array(2))
    >>> len(carry), jax.tree.structure(estimate.grad) == jax.tree.structure(params)
    (4, True)
    """
    elementwise = without_cross_terms("eprop", transition, cut_product)
    return traces_estimator("eprop", model_of(transition, loss), elementwise, model_of(elementwise, loss))
