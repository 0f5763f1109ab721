"""The contract that every gradient estimator fulfils, and the linearisation that all of them share."""

from collections.abc import Callable
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from norewind.core import checks
from norewind.core.trees import Tree, is_prng_key, real_leaves, where, with_real_leaves, zeros_like

Transition = Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]
Loss = Callable[[Tree, Tree], jax.Array]


def one_sample(x: Tree) -> int:
    """Return the number of samples in one x of an ordinary model: always 1."""
    return 1


class Model(NamedTuple):
    """A recurrent model as estimators see it: a black box.

    Attributes:
        transition: one step, `transition(params, state, x) -> (new_state, output)`: the paper's F_state and F_out
            together.
        loss: the loss of one step, `loss(output, target)`, a scalar.
        samples: the number of samples of the stream in one x: `samples(x)` is T for a window, otherwise 1.
    """

    transition: Transition
    loss: Loss
    samples: Callable[[Tree], int] = one_sample


class Estimate(NamedTuple):
    """The result of one step of an estimator.

    Attributes:
        loss: the loss of the step.
        grad: the estimated gradient, shaped like the parameters.
        output: the output of the model.
        value_grad: the gradient of the value that `norewind.td` learns; None from other estimators.
    """

    loss: jax.Array
    grad: Tree
    output: Tree
    value_grad: Tree = None


# `init(params, state, key) -> carry` makes the carry for the first step; `key` seeds its noise, if it has any.
InitFn = Callable[[Tree, Tree, jax.Array], Tree]
# `step(params, state, carry, x, target) -> (state, carry, estimate)` processes one sample or window. The new state and
# carry have the structure, shapes and dtypes of the old ones.
StepFn = Callable[[Tree, Tree, Tree, Tree, Tree], tuple[Tree, Tree, Estimate]]
# `reset(params, state, carry, when) -> carry` forgets the past where the boolean `when` is true. A new sequence starts
# in `state`.
ResetFn = Callable[[Tree, Tree, Tree, jax.Array], Tree]
# `report(carry) -> {name: scalar}` describes the carry. The names are those of lines of metrics.
ReportFn = Callable[[Tree], dict[str, jax.Array]]


class FastMeans(NamedTuple):
    """Optional shortcuts to a mean gradient, faster than one `step` per carry or stream.

    Attributes:
        carries: the mean over several carries (see `norewind.average`), which are stacked along a leading axis.
        streams: the mean over several streams (see `norewind.parallel`). Everything but the parameters has a leading
            axis.
    """

    carries: StepFn | None = None
    streams: StepFn | None = None


class Influence(NamedTuple):
    """A deterministic approximation D of the influence ∂s/∂θ that a method carries, and how a row vector multiplies it.

    `norewind.unbiased` needs nothing else to estimate the rest. D is any pytree.

    Attributes:
        init: makes D for the first step, `init(params, state) -> D`.
        advance: updates D, `advance(params, state, D, x, point) -> D`, where `point` is the linearisation of the
            estimator's model at this step.
        product: multiplies a row vector by D, `product(params, row, D) -> row · D`. The row is shaped like the real
            leaves of the state, and the result like the parameters (its leaves may be scalars that broadcast).
    """

    init: Callable[[Tree, Tree], Tree]
    advance: Callable[[Tree, Tree, Tree, Tree, "Linearisation"], Tree]
    product: Callable[[Tree, Tree, Tree], Tree]

    def gradient(self, params: Tree, point: "Linearisation", approximation: Tree) -> Tree:
        """Return ∂ℓ/∂θ + ∂ℓ/∂s · D, the gradient that the approximation gives.

        Args:
            params: the parameters.
            point: the linearisation of the model at this step.
            approximation: D before the step.
        """
        state_grad, direct = point.loss_grads()
        return jax.tree.map(jnp.add, direct, self.product(params, state_grad, approximation))


# D = 0: the method drops all influence of the past.
NO_INFLUENCE = Influence(
    init=lambda params, state: (),
    advance=lambda params, state, nothing, x, point: (),
    product=lambda params, row, nothing: jax.tree.map(lambda leaf: jnp.zeros((), jnp.result_type(leaf)), params),
)


class Estimator(NamedTuple):
    """A method to estimate gradients online, as pure functions. `Estimator.build` makes one.

    The carry is the data that the method carries forward in place of the past.

    Attributes:
        init: makes the carry for the first step, `init(params, state, key) -> carry`.
        step: processes one sample or window, `step(params, state, carry, x, target) -> (state, carry, estimate)`.
        model: the model whose gradients it estimates. A learner uses it to predict and to count samples.
        reset: forgets the past, `reset(params, state, carry, when) -> carry`.
        fast_means: faster ways to the mean gradient of several carries or streams.
        perturbs_state: the new state depends on the carry, so several carries cannot share one evaluation of the model.
        influence: the approximation of the influence that the method carries; None if it carries none, or a random one.
        report: numbers about the method's own state, `report(carry) -> {name: scalar}`. They are written to the metrics
            and shown by `diagnose`.
    """

    init: InitFn
    step: StepFn
    model: Model
    reset: ResetFn
    fast_means: FastMeans = FastMeans()
    perturbs_state: bool = False
    influence: Influence | None = None
    report: ReportFn | None = None

    @classmethod
    def build(
        cls,
        init: InitFn,
        step: StepFn,
        model: Model,
        *,
        reset: ResetFn | None = None,
        fast_means: FastMeans | None = None,
        perturbs_state: bool = False,
        influence: Influence | None = None,
        report: ReportFn | None = None,
    ) -> Self:
        """Build an estimator from its functions, with a check of parameters and state before `init`.

        Args:
            init: makes the carry for the first step, `init(params, state, key) -> carry`.
            step: processes one sample or window, `step(params, state, carry, x, target) -> (state, carry, estimate)`.
            model: the model whose gradients it estimates.
            reset: forgets the past, `reset(params, state, carry, when) -> carry`. By default it calls `init` again and
                keeps the PRNG keys, so that the noise after a reset is new.
            fast_means: faster ways to the mean gradient of several carries or streams.
            perturbs_state: whether the new state depends on the carry.
            influence: the approximation of the influence that the method carries.
            report: numbers about the carry, `report(carry) -> {name: scalar}`.

        Returns:
            An estimator whose `init` raises `ModelError` for parameters or a state that it cannot train.
        """

        def checked_init(params, state, key):
            checks.check_params_and_state(params, state)
            return init(params, state, key)

        def init_again(params, state, carry, when):
            fresh = init(params, state, jax.random.key(0))
            fresh = jax.tree.map(lambda new, old: old if is_prng_key(old) else new, fresh, carry)
            return where(when, fresh, carry)

        fast = fast_means or FastMeans()
        return cls(checked_init, step, model, reset or init_again, fast, perturbs_state, influence, report)

    @classmethod
    def of_influence(cls, influence: Influence, model: Model, *, report: ReportFn | None = None) -> Self:
        """Build the estimator that carries an approximation D of the influence: g = ∂ℓ/∂θ + ∂ℓ/∂s · D.

        Args:
            influence: how D is made, updated and multiplied.
            model: the model whose gradients it estimates.
            report: numbers about the carry, `report(carry) -> {name: scalar}`.

        Returns:
            The estimator.
        """

        def step(params, state, carry, x, target):
            point = linearise(model, params, state, x, target)
            grad = influence.gradient(params, point, carry)
            carry = influence.advance(params, state, carry, x, point)
            return point.state, carry, Estimate(point.loss, grad, point.output)

        def init(params, state, key):
            return influence.init(params, state)

        return cls.build(init, step, model, influence=influence, report=report)


def sample_counter(transition: Transition) -> Callable[[Tree], int]:
    """Return the function that counts samples in one x: the transition's own (windows have one), or `one_sample`."""
    return getattr(transition, "samples", one_sample)


def model_of(transition: Transition, loss: Loss) -> Model:
    """Return the model made of a transition and a loss.

    Args:
        transition: one step of the model, `transition(params, state, x) -> (new_state, output)`.
        loss: the loss of one step, `loss(output, target)`.

    Returns:
        The model, which also counts samples.

    Raises:
        ModelError: `transition` or `loss` is not a function.
    """
    checks.check_model(transition, loss)
    return Model(transition, loss, sample_counter(transition))


class Linearisation(NamedTuple):
    """The model evaluated at one point, together with its derivatives there.

    Here s are the floating leaves of the state as real numbers (see `real_leaves`), J = ∂s'/∂s and I = ∂s'/∂θ.

    Attributes:
        state: the new state.
        output: the output of the model.
        loss: the loss ℓ of that output.
        jvp: the forward derivative, `jvp(ds) -> (J ds, (∂ℓ/∂s) ds)`.
        vjp: the reverse derivative, `vjp(c, d) -> (c J + d ∂ℓ/∂s, c I + d ∂ℓ/∂θ)`.
    """

    state: Tree
    output: Tree
    loss: jax.Array
    jvp: Callable[[Tree], tuple[Tree, jax.Array]]
    vjp: Callable[[Tree, jax.Array], tuple[Tree, Tree]]

    def jvp_params(self, direction: Tree) -> tuple[Tree, jax.Array]:
        """Return the forward derivative in a direction of the parameters: I v and ∂ℓ/∂θ · v.

        Args:
            direction: v, shaped like the parameters.

        Returns:
            I v, shaped like the real leaves of the state, and the number ∂ℓ/∂θ · v.
        """
        results = real_leaves(self.state), self.loss
        return jax.linear_transpose(lambda c, d: self.vjp(c, d)[1], *results)(direction)

    def loss_grads(self) -> tuple[Tree, Tree]:
        """Return the gradients of the loss.

        Returns:
            ∂ℓ/∂s, shaped like the real leaves of the state, and ∂ℓ/∂θ, shaped like the parameters.
        """
        return self.vjp(zeros_like(real_leaves(self.state)), jnp.ones_like(self.loss))

    def pull_back(self, c: Tree) -> tuple[Tree, Tree]:
        """Return the products c J and c I.

        Args:
            c: a row vector shaped like the real leaves of the state.

        Returns:
            c J, shaped like the real leaves of the state, and c I, shaped like the parameters.
        """
        return self.vjp(c, jnp.zeros_like(self.loss))

    def rows(self) -> tuple[jax.Array, Tree]:
        """Return the matrices J and I, by one reverse derivative for each entry of the state.

        Returns:
            J, with the real leaves of the state as one vector, and I, shaped like the parameters with a leading axis of
            rows.
        """
        flat, unravel = ravel_pytree(real_leaves(self.state))

        def row_of(unit):
            row, immediate = self.pull_back(unravel(unit))
            return ravel_pytree(row)[0], immediate

        return jax.vmap(row_of)(jnp.eye(flat.size, dtype=flat.dtype))


def linearise(model: Model, params: Tree, state: Tree, x: Tree, target: Tree) -> Linearisation:
    """Evaluate the model once, and return its results together with its derivatives.

    The forward derivative is the transpose of the reverse one. It is exact, it costs
    one pass over the values stored by the single evaluation (even when the model is a loop), and
    the two can never disagree, not even in a model that defines its own reverse rule
    (`jax.custom_vjp`, as surrogate gradients of spiking cells do).

    Args:
        model: the transition and the loss.
        params: the parameters.
        state: the state before the step.
        x: the input.
        target: the target of the loss.

    Returns:
        The new state, the output, the loss and the derivatives.

    Raises:
        ModelError: the transition or the loss returns something invalid.
    """

    def evaluate(params, leaves):
        new_state, output = checks.check_transition_result(
            model.transition(params, with_real_leaves(state, leaves), x), state
        )
        value = checks.check_loss_result(model.loss(output, target))
        return (real_leaves(new_state), value), (new_state, output)

    results, pullback, (new_state, output) = jax.vjp(evaluate, params, real_leaves(state), has_aux=True)

    def vjp(state_cotangent, loss_cotangent):
        grad, state_grad = pullback((state_cotangent, loss_cotangent))
        return state_grad, grad

    def jvp(state_tangent):
        transposed = jax.linear_transpose(lambda c, d: vjp(c, d)[0], *results)
        return transposed(state_tangent)

    return Linearisation(new_state, output, results[1], jvp, vjp)


def linearise_state(transition: Transition, params: Tree, state: Tree, x: Tree) -> Linearisation:
    """Evaluate and differentiate the new state alone, without output and loss.

    Args:
        transition: one step of the model.
        params: the parameters.
        state: the state before the step.
        x: the input.

    Returns:
        A linearisation with an empty output and a loss of zero.

    Raises:
        ModelError: the transition returns something invalid.
    """
    model = Model(lambda *inputs: (transition(*inputs)[0], ()), lambda output, target: jnp.zeros(()))
    return linearise(model, params, state, x, ())
