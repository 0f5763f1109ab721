"""The conformance suite: what every estimator promises, whatever its mathematics."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from norewind.estimator import Estimate, Estimator, StepFn, Transition
from norewind.structure import DeclaredTransition, structure_of
from norewind.testing.examples import EXAMPLES, Example, example
from norewind.testing.oracles import MakeEstimator, check_exact, check_unbiased, run_estimator
from norewind.testing.refusals import BAD_MODELS, check_refusal
from norewind.trees import Tree, is_differentiable, is_key

Check = Callable[[], None]


def check_estimator(
    make_estimator: MakeEstimator,
    *,
    claims: Literal["exact", "unbiased"] | None = None,
    models: list[Example] | None = None,
    example_x: bool = False,
    perturbs_state: bool = False,
) -> None:
    """Run all the checks of `yield_checks`, which documents the arguments, until one fails.

    The AssertionError says what is broken, and on which model.

    >>> import norewind
    >>> check_estimator(norewind.rtrl, claims="exact", models=norewind.testing.examples()[:1])
    """
    for check in yield_checks(
        make_estimator, claims=claims, models=models, example_x=example_x, perturbs_state=perturbs_state
    ):
        check()


def yield_checks(
    make_estimator: MakeEstimator,
    *,
    claims: Literal["exact", "unbiased"] | None = None,
    models: list[Example] | None = None,
    example_x: bool = False,
    perturbs_state: bool = False,
) -> Iterator[Check]:
    """The checks of an estimator one by one, as functions with names.

    With pytest: `@pytest.mark.parametrize("check", list(yield_checks(yours)))`.

    `make_estimator(transition, loss)` builds the estimator. The first checks prove what
    it `claims`, in float64: that its gradients are `"exact"`, or that they are
    `"unbiased"` (for which `make_estimator` must accept `noise=...`). The others are: that
    shapes and dtypes are kept, and states, losses and outputs are those of the model; that
    single steps, a scan under vmap, and uncompiled steps agree; that the same key gives
    the same run, and a saved carry continues exactly; that it compiles once; and that it
    refuses a bad model with an error that names the place.

    - `models`: the examples to use, for an estimator that does not take every model. Then
      refusals are not checked.
    - `example_x`: pass one input to `make_estimator` as `x=...`, for an estimator that has
      to know its shape.
    - `perturbs_state`: the estimator adds noise to the state on purpose, so states, losses
      and outputs are not compared with those of the model.

    >>> import norewind
    >>> checks = list(yield_checks(norewind.uoro, claims="unbiased"))
    >>> checks[0].__name__, checks[-1].__name__
    ('unbiased-rnn', 'refuses-integer_parameters')
    >>> checks[-1]()
    """
    if claims not in (None, "exact", "unbiased"):
        raise ValueError(f'claims must be "exact", "unbiased" or None, not {claims!r}.')

    def make(transition, loss, x, **options):
        return make_estimator(transition, loss, **options, **({"x": x} if example_x else {}))

    trials = [_Trial(make, model.name, model) for model in models or ()] or [_Trial(make, name) for name in EXAMPLES]
    proofs = {"exact": [_check_exact], "unbiased": [_check_unbiased], None: []}[claims]
    unperturbed = [] if perturbs_state else [_check_states_and_losses]
    for check in (*proofs, _check_shapes, _check_float32_stays, *unperturbed, *_CHECKS):
        for trial in trials:
            yield _named(f"{check.__name__.removeprefix('_check_')}-{trial.name}", check, trial)
    # Slow, because nothing is compiled: one model is enough.
    yield _named(f"uncompiled_steps-{trials[0].name}", _check_uncompiled_steps, trials[0])
    for what in () if models else BAD_MODELS:
        yield _named(f"refuses-{what.replace(' ', '_')}", check_refusal, make, what)


def _named(name: str, check: Callable, *arguments: Any) -> Check:
    def run_check():
        check(*arguments)

    run_check.__name__ = name
    return run_check


@dataclass(frozen=True)
class _Trial:
    """An estimator on one model. What several checks need is made once, when it is first needed."""

    make: Callable[..., Estimator]
    name: str
    given: Example | None = None

    def model(self, dtype: Any = float) -> Example:
        return self.given or example(self.name, dtype=dtype)

    def model_in_double(self) -> Example:
        return _in_double(self.given) if self.given else example(self.name)

    def estimator_for(self, model: Example, transition: Transition | None = None, **options: Any) -> Estimator:
        x = jax.tree.map(lambda leaf: np.asarray(leaf)[0], model.xs)
        return self.make(transition or model.transition, model.loss, x, **options)

    @cached_property
    def traces(self) -> list[None]:
        return []

    @cached_property
    def estimator(self) -> Estimator:
        model = self.model()

        def counted(params, state, x):
            self.traces.append(None)
            return model.transition(params, state, x)

        return self.estimator_for(model, DeclaredTransition(counted, structure_of(model.transition)))

    @cached_property
    def step(self) -> StepFn:
        return jax.jit(self.estimator.step)

    @cached_property
    def carries(self) -> tuple[Tree, Tree]:
        """The first carries for two keys."""
        init, model = jax.jit(self.estimator.init), self.model()
        first, second = (init(model.params, model.state, jax.random.key(seed)) for seed in (0, 1))
        return first, second

    @cached_property
    def retraces_and_result(self) -> tuple[int, tuple[Tree, Tree, Estimate]]:
        """How often the model was traced after the first step, and the result of all steps with the first carry."""
        _steps(self.step, self.model(), self.carries[0], stop=1)
        before = len(self.traces)
        result = _steps(self.step, self.model(), self.carries[0])
        return len(self.traces) - before, result

    @property
    def result(self) -> tuple[Tree, Tree, Estimate]:
        """The final state and carry, and all estimates."""
        return self.retraces_and_result[1]


def _in_double(model: Example) -> Example:
    def widen(leaf):
        if not is_differentiable(leaf):
            return leaf
        return np.asarray(leaf, np.complex128 if np.iscomplexobj(leaf) else np.float64)

    params, state, xs, targets = jax.tree.map(widen, (model.params, model.state, model.xs, model.targets))
    return model._replace(params=params, state=state, xs=xs, targets=targets)


def _check_exact(trial: _Trial) -> None:
    with jax.enable_x64(True):
        model = trial.model_in_double()
        check_exact(lambda *_: trial.estimator_for(model), models=[model])


def _check_unbiased(trial: _Trial) -> None:
    with jax.enable_x64(True):
        model = trial.model_in_double()
        check_unbiased(lambda *_, noise: trial.estimator_for(model, noise=noise), models=[model])


def _check_shapes(trial: _Trial) -> None:
    _assert_shapes(trial.estimator, trial.model())


def _check_float32_stays(trial: _Trial) -> None:
    """Where float64 is allowed, a float32 model must stay one."""
    with jax.enable_x64(True):
        model = trial.model(jnp.float32)
        _assert_shapes(trial.estimator_for(model), model)


def _assert_shapes(estimator: Estimator, model: Example) -> None:
    """Check the structure, shapes and dtypes of what a step returns, without running it."""
    carry = jax.eval_shape(estimator.init, model.params, model.state, jax.random.key(0))
    x, target = jax.tree.map(lambda leaf: leaf[0], (model.xs, model.targets))
    state, new_carry, estimate = jax.eval_shape(estimator.step, model.params, model.state, carry, x, target)
    _assert_alike(state, model.state, f"{model.name}: the state that step returns")
    _assert_alike(new_carry, carry, f"{model.name}: the carry that step returns")
    _assert_alike(estimate.grad, model.params, f"{model.name}: the gradient")
    assert jnp.shape(estimate.loss) == (), f"{model.name}: the loss is not a scalar"


def _check_states_and_losses(trial: _Trial) -> None:
    model = trial.model()

    def body(state, inputs):
        x, target = inputs
        state, output = model.transition(model.params, state, x)
        return state, (model.loss(output, target), output)

    bare_state, bare = jax.jit(lambda: jax.lax.scan(body, model.state, (model.xs, model.targets)))()
    state, _, estimates = trial.result
    _assert_equal(state, bare_state, f"{trial.name}: the state is not the model's own", tolerance=1e-5)
    got = estimates.loss, estimates.output
    _assert_equal(got, bare, f"{trial.name}: loss or output is not the model's own", tolerance=1e-5)


def _check_scan_under_vmap(trial: _Trial) -> None:
    model = trial.model()
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trial.carries)
    run_all = jax.vmap(lambda carry: run_estimator(trial.estimator, model, carry)[2].grad, axis_size=2)
    mapped = jax.jit(run_all)(stacked)
    for i, estimates in enumerate((trial.result[2], _steps(trial.step, model, trial.carries[1])[2])):
        own = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], mapped)
        what = f"{trial.name}: gradients under scan and vmap differ from single steps"
        _assert_equal(own, estimates.grad, what, tolerance=1e-4)


def _check_same_key_same_run(trial: _Trial) -> None:
    again = _steps(trial.step, trial.model(), trial.carries[0])
    _assert_equal(again, trial.result, f"{trial.name}: the same key does not give the same run")


def _check_resume(trial: _Trial) -> None:
    model = trial.model()
    half = jax.tree.leaves(model.targets)[0].shape[0] // 2
    middle, saved, _ = _steps(trial.step, model, trial.carries[0], stop=half)
    saved = jax.tree.map(_through_bytes, saved)
    resumed = _steps(trial.step, model._replace(state=middle), saved, start=half)
    _assert_equal(resumed[:2], trial.result[:2], f"{trial.name}: a saved carry does not continue exactly")


def _check_one_trace(trial: _Trial) -> None:
    assert trial.retraces_and_result[0] == 0, f"{trial.name}: a step with the same shapes was traced again"


def _check_uncompiled_steps(trial: _Trial) -> None:
    grads = _steps(trial.estimator.step, trial.model(), trial.carries[0])[2].grad
    _assert_equal(grads, trial.result[2].grad, f"{trial.name}: gradients with and without jit differ", tolerance=1e-4)


_CHECKS = (_check_scan_under_vmap, _check_same_key_same_run, _check_resume, _check_one_trace)


def _steps(step, model: Example, carry: Tree, start: int = 0, stop: int | None = None) -> tuple[Tree, Tree, Estimate]:
    """Some steps of an example, one call each: the final state and carry, and all estimates."""
    state, estimates = model.state, []
    for i in range(start, stop or jax.tree.leaves(model.targets)[0].shape[0]):
        x, target = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], (model.xs, model.targets))
        state, carry, estimate = step(model.params, state, carry, x, target)
        estimates.append(estimate)
    return state, carry, jax.tree.map(lambda *leaves: np.stack(leaves), *estimates)


def _through_bytes(leaf: jax.Array) -> jax.Array:
    if is_key(leaf):
        return jax.random.wrap_key_data(_through_bytes(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
    array = np.asarray(leaf)
    return jnp.asarray(np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape))


def _assert_alike(got: Tree, wanted: Tree, what: str) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(wanted), f"{what} has another structure"
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(wanted), strict=True):
        place = f"{what} at {jax.tree_util.keystr(path) or 'its root'}"
        assert a.shape == b.shape, f"{place} has shape {a.shape}, not {b.shape}"
        assert a.dtype == b.dtype, f"{place} has dtype {a.dtype}, not {b.dtype}"


def _assert_equal(got: Tree, wanted: Tree, what: str, tolerance: float = 0.0) -> None:
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(wanted), strict=True):
        if is_key(a):
            a, b, allowed = jax.random.key_data(a), jax.random.key_data(b), 0.0
        else:
            allowed = tolerance
        a, b = np.asarray(a), np.asarray(b)
        same = np.array_equal(a, b) if allowed == 0 else np.allclose(a, b, rtol=allowed, atol=allowed)
        assert same, f"{what} at {jax.tree_util.keystr(path) or 'its root'}"
