"""The conformance suite: what every estimator promises, whatever its mathematics."""

import jax
import jax.numpy as jnp
import numpy as np

from norewind.estimator import Estimate, Estimator
from norewind.structure import DeclaredTransition, structure_of
from norewind.testing.examples import Example, examples
from norewind.testing.oracles import MakeEstimator, check_exact, check_unbiased, run_estimator
from norewind.trees import Tree, is_differentiable, is_key


def check_estimator(
    make_estimator: MakeEstimator,
    *,
    exact: bool = False,
    unbiased: bool = False,
    models: list[Example] | None = None,
    example_x: bool = False,
    perturbs_state: bool = False,
) -> None:
    """Assert that an estimator keeps the contract; an AssertionError says what it breaks, and on which model.

    `make_estimator(transition, loss)` builds it. Checked are: shapes and dtypes of what
    it returns; that it runs the model as it is; that eager, compiled, scanned and
    vmapped runs agree; that it compiles once; that a run can be resumed from a saved
    carry bit for bit; that the same key gives the same run; that the leaves of a state
    that are not floating pass through; and that it refuses a bad model with an error
    that names the place. With `exact` or `unbiased` (which then calls
    `make_estimator(transition, loss, noise=...)`) the claim is proven as well, in float64.

    `models` replaces the models it is tried on, for an estimator that needs more of a
    model than a black box. With `example_x`, `make_estimator(transition, loss, x=...)` is
    also given one input, for an estimator that has to know its shape. `perturbs_state`
    says that it adds noise to the state on purpose, so that states, losses and outputs
    are not those of the model alone.

    >>> import norewind
    >>> check_estimator(norewind.rtrl, exact=True, models=norewind.testing.examples()[:1])
    """

    def make(transition, loss, x, **options):
        return make_estimator(transition, loss, **options, **({"x": x} if example_x else {}))

    def make_for(example, transition=None, **options):
        return make(transition or example.transition, example.loss, _first_x(example), **options)

    for number, example in enumerate(models or examples()):
        _check_run(make_for, example, eager=number == 0, perturbs_state=perturbs_state)
    if models is None:
        _check_refusals(make)
    with jax.enable_x64(True):
        # Where float64 is allowed, a float32 model must stay one.
        for example in models or examples(dtype=jnp.float32):
            _check_shapes(make_for(example), example)
        for example in [_in_double(example) for example in models] if models else examples():
            if exact:
                check_exact(lambda model, loss, e=example: make(model, loss, _first_x(e)), models=[example])
            if unbiased:
                check_unbiased(
                    lambda model, loss, noise, e=example: make(model, loss, _first_x(e), noise=noise), models=[example]
                )


def _first_x(example: Example) -> Tree:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0], example.xs)


def _in_double(example: Example) -> Example:
    def widen(leaf):
        if not is_differentiable(leaf):
            return leaf
        return np.asarray(leaf, np.complex128 if np.iscomplexobj(leaf) else np.float64)

    params, state, xs, targets = jax.tree.map(widen, (example.params, example.state, example.xs, example.targets))
    return example._replace(params=params, state=state, xs=xs, targets=targets)


def _check_shapes(estimator: Estimator, example: Example) -> None:
    """Structure, shapes and dtypes of everything that a step returns, without running it."""
    carry = jax.eval_shape(estimator.init, example.params, example.state, jax.random.key(0))
    x, target = jax.tree.map(lambda leaf: leaf[0], (example.xs, example.targets))
    state, new_carry, estimate = jax.eval_shape(estimator.step, example.params, example.state, carry, x, target)
    _assert_alike(state, example.state, f"{example.name}: the state that step returns")
    _assert_alike(new_carry, carry, f"{example.name}: the carry that step returns")
    _assert_alike(estimate.grad, example.params, f"{example.name}: the gradient")
    assert jnp.shape(estimate.loss) == (), f"{example.name}: the loss is not a scalar"


def _check_run(make_for, example: Example, *, eager: bool, perturbs_state: bool) -> None:
    name, traces = example.name, []

    def counted(params, state, x):
        traces.append(None)
        return example.transition(params, state, x)

    estimator = make_for(example, DeclaredTransition(counted, structure_of(example.transition)))
    _check_shapes(estimator, example)
    init = jax.jit(estimator.init)
    carry, other = (init(example.params, example.state, jax.random.key(seed)) for seed in (0, 1))

    step = jax.jit(estimator.step)
    traces.clear()
    _steps(step, example, carry, stop=1)
    first = len(traces)
    state, end, estimates = _steps(step, example, carry)
    assert len(traces) == first, f"{name}: a step with the same shapes was traced again"

    if not perturbs_state:
        bare_state, bare = _run_bare(example)
        _assert_equal(state, bare_state, f"{name}: the state is not the model's own", tolerance=1e-5)
        got = estimates.loss, estimates.output
        _assert_equal(got, bare, f"{name}: loss or output is not the model's own", tolerance=1e-5)

    again = _steps(step, example, carry)
    _assert_equal(again, (state, end, estimates), f"{name}: the same key gives another run")
    half = jax.tree.leaves(example.targets)[0].shape[0] // 2
    middle, saved, _ = _steps(step, example, carry, stop=half)
    saved = jax.tree.map(_through_bytes, saved)
    resumed = _steps(step, example._replace(state=middle), saved, start=half)
    _assert_equal(resumed[:2], (state, end), f"{name}: a saved carry does not go on exactly")

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), carry, other)
    mapped = jax.jit(jax.vmap(lambda carry: run_estimator(estimator, example, carry)[2].grad, axis_size=2))(stacked)
    for i, grads in enumerate((estimates.grad, _steps(step, example, other)[2].grad)):
        own = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], mapped)
        _assert_equal(own, grads, f"{name}: gradients under scan and vmap differ from single steps", tolerance=1e-4)
    if eager:
        grads = _steps(estimator.step, example, carry)[2].grad
        _assert_equal(grads, estimates.grad, f"{name}: eager and compiled gradients differ", tolerance=1e-4)


def _steps(step, example: Example, carry: Tree, start: int = 0, stop: int | None = None) -> tuple[Tree, Tree, Estimate]:
    """Some steps of an example, one call each: final state and carry, and all estimates."""
    state, estimates = example.state, []
    for i in range(start, stop or jax.tree.leaves(example.targets)[0].shape[0]):
        x, target = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], (example.xs, example.targets))
        state, carry, estimate = step(example.params, state, carry, x, target)
        estimates.append(estimate)
    return state, carry, jax.tree.map(lambda *leaves: np.stack(leaves), *estimates)


def _run_bare(example: Example) -> tuple[Tree, Tree]:
    """The model without any estimator: final state, and all losses and outputs."""

    def body(state, inputs):
        x, target = inputs
        state, output = example.transition(example.params, state, x)
        return state, (example.loss(output, target), output)

    return jax.jit(lambda: jax.lax.scan(body, example.state, (example.xs, example.targets)))()


def _through_bytes(leaf: jax.Array) -> jax.Array:
    if is_key(leaf):
        return jax.random.wrap_key_data(_through_bytes(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
    array = np.asarray(leaf)
    return jnp.asarray(np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape))


def _check_refusals(make) -> None:
    def loss(output, target):
        return jnp.sum((output - target) ** 2)

    x, params, state = jnp.ones(2), {"w": jnp.ones(2)}, {"h": jnp.ones(2)}
    bad = {
        "a state of another shape": (lambda p, s, x: ({"h": jnp.ones(3)}, p["w"]), loss, params, "['h']"),
        "a state of another dtype": (lambda p, s, x: ({"h": s["h"].astype(int)}, p["w"]), loss, params, "['h']"),
        "a state of another structure": (lambda p, s, x: ({"k": s["h"]}, p["w"]), loss, params, "['h']"),
        "a loss that is not a scalar": (lambda p, s, x: (s, p["w"]), lambda o, t: o - t, params, "loss"),
        "a loss that is not floating": (lambda p, s, x: (s, p["w"]), lambda o, t: jnp.array(1), params, "loss"),
        "integer parameters": (lambda p, s, x: (s, x), loss, {"w": jnp.ones(2, int)}, "['w']"),
    }
    for what, (transition, loss_function, theta, place) in bad.items():
        try:
            estimator = make(transition, loss_function, x)
            carry = estimator.init(theta, state, jax.random.key(0))
            jax.eval_shape(estimator.step, theta, state, carry, x, x)
        except (TypeError, ValueError) as error:
            assert place in str(error), f"the error for {what} does not name {place}: {error}"
        else:
            raise AssertionError(f"it accepts {what} without an error")


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
