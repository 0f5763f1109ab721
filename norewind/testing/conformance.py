"""The conformance suite of estimators: checks that apply to all of them, regardless of their mathematics."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from tempfile import TemporaryDirectory
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from norewind.core.estimator import Estimate, Estimator, StepFn, Transition
from norewind.core.structure import DeclaredTransition, structure_of
from norewind.core.trees import Tree, is_differentiable
from norewind.storage import checkpoint
from norewind.testing.examples import BAD_MODELS, EXAMPLES, Example, example
from norewind.testing.oracles import (
    Check,
    MakeEstimator,
    assert_same,
    check_exact,
    check_unbiased,
    named,
    run_estimator,
)


def check_estimator(make_estimator: MakeEstimator, **options: Any) -> None:
    """Run all checks of `yield_checks`, and stop at the first failure.

    Args:
        make_estimator: builds the estimator, as `make_estimator(transition, loss)`.
        options: the other arguments of `yield_checks`.

    Raises:
        AssertionError: a check failed. The message names the check and the model.

    >>> import norewind
    >>> check_estimator(norewind.rtrl, claims="exact", models=norewind.testing.examples()[:1])
    """
    for check in yield_checks(make_estimator, **options):
        check()


def yield_checks(
    make_estimator: MakeEstimator,
    *,
    claims: Literal["exact", "unbiased"] | None = None,
    models: list[Example] | None = None,
    example_x: bool = False,
) -> Iterator[Check]:
    """Yield the checks of an estimator one by one, as named functions.

    With pytest: `@pytest.mark.parametrize("check", list(yield_checks(yours)))`.

    The first checks prove the claim, in float64. The others check that
    shapes and dtypes are kept, and states, losses and outputs are those of the model (unless the
    estimator perturbs the state on purpose, `Estimator.perturbs_state`); that
    single steps, a scan under vmap, and uncompiled steps agree; that the same key gives
    the same run, and a saved carry continues exactly; that it compiles once; and that it
    rejects a bad model with an error that names the place.

    Args:
        make_estimator: builds the estimator, as `make_estimator(transition, loss)`.
        claims: what to prove: that the gradients are `"exact"`, or that they are `"unbiased"` (for which
            `make_estimator` must accept `noise=...`), or nothing.
        models: the examples to use, for an estimator that does not support every model. Rejection of bad models is then
            not checked.
        example_x: whether to pass one input to `make_estimator` as `x=...`, for an estimator that needs to know its
            shape.

    Returns:
        An iterator over the checks. Each raises an AssertionError if it fails.

    Raises:
        ValueError: `claims` has another value.

    >>> import norewind
    >>> checks = list(yield_checks(norewind.uoro, claims="unbiased"))
    >>> checks[0].__name__, checks[-1].__name__
    ('unbiased-rnn', 'rejects-integer_parameters')
    >>> checks[-1]()
    """
    if claims not in (None, "exact", "unbiased"):
        raise ValueError(f'claims must be "exact", "unbiased" or None, not {claims!r}.')

    def make(transition, loss, x, **options):
        return make_estimator(transition, loss, **options, **({"x": x} if example_x else {}))

    trials = [_Trial(make, model.name, model) for model in models or ()] or [_Trial(make, name) for name in EXAMPLES]
    for trial in trials if claims else ():
        yield named(f"{claims}-{trial.name}", _check_claim, trial, check_exact if claims == "exact" else check_unbiased)
    for check in _CHECKS:
        for trial in trials:
            yield named(f"{check.__name__.removeprefix('_check_')}-{trial.name}", check, trial)
    # Slow, because nothing is compiled: one model is enough.
    yield named(f"uncompiled_steps-{trials[0].name}", _check_uncompiled_steps, trials[0])
    for what in () if models else BAD_MODELS:
        yield named(f"rejects-{what.replace(' ', '_')}", _check_rejection, make, what)


@dataclass
class _Trial:
    """An estimator on one model. Values that several checks need are computed once, on first use."""

    make: Callable[..., Estimator]
    name: str
    given: Example | None = None
    traces: int = 0

    def model(self, dtype: DTypeLike = float) -> Example:
        return self.given or example(self.name, dtype=dtype)

    def estimator_for(self, model: Example, transition: Transition | None = None, **options: Any) -> Estimator:
        x = jax.tree.map(lambda leaf: np.asarray(leaf)[0], model.xs)
        return self.make(transition or model.transition, model.loss, x, **options)

    @cached_property
    def estimator(self) -> Estimator:
        model = self.model()

        def counted(params, state, x):
            self.traces += 1
            return model.transition(params, state, x)

        return self.estimator_for(model, DeclaredTransition(counted, structure_of(model.transition)))

    @cached_property
    def step(self) -> StepFn:
        return jax.jit(self.estimator.step)

    @cached_property
    def carries(self) -> tuple[Tree, ...]:
        init, model = jax.jit(self.estimator.init), self.model()
        return tuple(init(model.params, model.state, jax.random.key(seed)) for seed in (0, 1))

    @cached_property
    def retraces_and_result(self) -> tuple[int, tuple[Tree, Tree, Estimate]]:
        """How often the model was traced after the first step, and the result of all steps with the first carry."""
        _steps(self.step, self.model(), self.carries[0], stop=1)
        before = self.traces
        result = _steps(self.step, self.model(), self.carries[0])
        return self.traces - before, result


def _in_double(model: Example) -> Example:
    def widen(leaf):
        return np.asarray(leaf, np.result_type(leaf.dtype, np.float64)) if is_differentiable(leaf) else leaf

    params, state, xs, targets = jax.tree.map(widen, (model.params, model.state, model.xs, model.targets))
    return model._replace(params=params, state=state, xs=xs, targets=targets)


def _check_claim(trial: _Trial, proof: Callable) -> None:
    with jax.enable_x64(True):
        model = _in_double(trial.model())
        proof(lambda *_, **noise: trial.estimator_for(model, **noise), models=[model])


def _check_float32_stays(trial: _Trial) -> None:
    """Check that a float32 model stays float32 when float64 is enabled."""
    with jax.enable_x64(True):
        _check_shapes(trial, jnp.float32)


def _check_shapes(trial: _Trial, dtype: DTypeLike = float) -> None:
    model = trial.model(dtype)
    estimator = trial.estimator_for(model)
    carry = jax.eval_shape(estimator.init, model.params, model.state, jax.random.key(0))
    x, target = jax.tree.map(lambda leaf: leaf[0], (model.xs, model.targets))
    state, new_carry, estimate = jax.eval_shape(estimator.step, model.params, model.state, carry, x, target)
    assert_same(state, model.state, f"{model.name}: the state that step returns")
    assert_same(new_carry, carry, f"{model.name}: the carry that step returns")
    assert_same(estimate.grad, model.params, f"{model.name}: the gradient")
    assert jnp.shape(estimate.loss) == (), f"{model.name}: the loss is not a scalar"


def _check_states_and_losses(trial: _Trial) -> None:
    if trial.estimator.perturbs_state:
        return
    model = trial.model()

    def body(state, inputs):
        x, target = inputs
        state, output = model.transition(model.params, state, x)
        return state, (model.loss(output, target), output)

    bare_state, bare = jax.jit(lambda: jax.lax.scan(body, model.state, (model.xs, model.targets)))()
    state, _, estimates = trial.retraces_and_result[1]
    assert_same(state, bare_state, f"{trial.name}: the state is not the model's own", 1e-5, 1e-5)
    own = estimates.loss, estimates.output
    assert_same(own, bare, f"{trial.name}: loss or output is not the model's own", 1e-5, 1e-5)


def _check_scan_under_vmap(trial: _Trial) -> None:
    model = trial.model()
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trial.carries)
    run_all = jax.vmap(lambda carry: run_estimator(trial.estimator, model, carry)[2].grad, axis_size=2)
    mapped = jax.jit(run_all)(stacked)
    for i, carry in enumerate(trial.carries):
        own = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], mapped)
        what = f"{trial.name}: gradients under scan and vmap differ from single steps"
        assert_same(own, _steps(trial.step, model, carry)[2].grad, what, 1e-4, 1e-4)


def _check_same_key_same_run(trial: _Trial) -> None:
    again = _steps(trial.step, trial.model(), trial.carries[0])
    assert_same(again, trial.retraces_and_result[1], f"{trial.name}: the same key does not give the same run")


def _check_resume(trial: _Trial) -> None:
    model = trial.model()
    half = jax.tree.leaves(model.targets)[0].shape[0] // 2
    middle, carry, _ = _steps(trial.step, model, trial.carries[0], stop=half)
    with TemporaryDirectory() as folder:
        carry, _ = checkpoint.load(checkpoint.save(folder, half, carry), carry)
    resumed = _steps(trial.step, model._replace(state=middle), carry, start=half)
    what = f"{trial.name}: a saved carry does not continue exactly"
    assert_same(resumed[:2], trial.retraces_and_result[1][:2], what)


def _check_one_trace(trial: _Trial) -> None:
    assert trial.retraces_and_result[0] == 0, f"{trial.name}: a step with the same shapes was traced again"


def _check_uncompiled_steps(trial: _Trial) -> None:
    actual, expected = (
        _steps(step, trial.model(), trial.carries[0])[2].grad for step in (trial.estimator.step, trial.step)
    )
    assert_same(actual, expected, f"{trial.name}: gradients with and without jit differ", 1e-4, 1e-4)


_CHECKS = (
    _check_shapes,
    _check_float32_stays,
    _check_states_and_losses,
    _check_scan_under_vmap,
    _check_same_key_same_run,
    _check_resume,
    _check_one_trace,
)


def _check_rejection(make: Callable[..., Estimator], what: str) -> None:
    transition, loss, dtype, place = BAD_MODELS[what]
    x, params, state = jnp.ones(2), {"w": jnp.ones(2, dtype)}, {"h": jnp.ones(2)}
    try:
        estimator = make(transition, loss, x)
        carry = estimator.init(params, state, jax.random.key(0))
        jax.eval_shape(estimator.step, params, state, carry, x, x)
    except (TypeError, ValueError) as error:
        assert place in str(error), f"the error for a model with {what} does not name {place}: {error}"
    else:
        raise AssertionError(f"it accepts a model with {what} without an error")


def _steps(step, model: Example, carry: Tree, start: int = 0, stop: int | None = None) -> tuple[Tree, Tree, Estimate]:
    """Run some steps of an example, one call each: the final state and carry, and all estimates."""
    state, estimates = model.state, []
    for i in range(start, stop or jax.tree.leaves(model.targets)[0].shape[0]):
        x, target = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], (model.xs, model.targets))
        state, carry, estimate = step(model.params, state, carry, x, target)
        estimates.append(estimate)
    return state, carry, jax.tree.map(lambda *leaves: np.stack(leaves), *estimates)
