"""The conformance suite of learners: what every learner promises, whatever it learns."""

from collections.abc import Callable, Iterator
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import numpy as np

from norewind import checkpoint
from norewind.learners.protocol import Learner
from norewind.trees import Tree, copied, is_key

Check = Callable[[], None]


class _Trial(NamedTuple):
    """A learner, the run it starts from, a stream divided into steps, and how closely results must agree."""

    learner: Learner
    start: Any
    xs: Any
    targets: Any
    tolerance: float

    @property
    def length(self) -> int:
        return len(jax.tree.leaves(self.xs)[0])

    def scan(self, run: Any, xs: Any, targets: Any, count: int | None = None) -> tuple[Any, Any]:
        return self.learner.scan(run, xs, targets, count=count, outputs=True)

    def begin(self) -> Any:
        return copied(self.start)

    def whole(self) -> tuple[Any, Any]:
        return self.scan(self.begin(), self.xs, self.targets)


def check_learner(learner: Learner, run: Any, xs: Any, targets: Any, *, tolerance: float = 0.0) -> None:
    """Run all the checks of `yield_learner_checks`, which documents the arguments, until one fails.

    >>> import numpy as np, norewind
    >>> learner = norewind.LeastSquares(inputs=2, targets=1)
    >>> xs = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    >>> check_learner(learner, learner.init(), xs, xs[:, :1])
    """
    for check in yield_learner_checks(learner, run, xs, targets, tolerance=tolerance):
        check()


def yield_learner_checks(
    learner: Learner, run: Any, xs: Any, targets: Any, *, tolerance: float = 0.0
) -> Iterator[Check]:
    """The checks of a learner one by one, as functions with names.

    They are: cutting the stream anywhere changes nothing; steps one at a time equal steps
    by the thousand; what comes later changes nothing earlier; predicting learns nothing;
    saved and restored, a run continues exactly; a second reset changes nothing; and the
    members of the protocol have the right types.

    Args:
        learner: the learner.
        run: a run that it starts from. It is copied before it is used.
        xs: inputs, one entry per step; at least 20 steps, and more than its horizon.
        targets: targets, likewise.
        tolerance: how far single steps may differ from chunks, relatively. Only compiled loops whose code depends on
            the length of a chunk need one, such as those of JAX. Everything else must agree bit for bit.

    With pytest: `@pytest.mark.parametrize("check", list(yield_learner_checks(...)))`.
    """
    trial = _Trial(learner, run, xs, targets, tolerance)
    for check in _CHECKS:

        def named(check: Callable = check) -> None:
            check(trial)

        named.__name__ = check.__name__.removeprefix("_check_")
        yield named


def _check_members(trial: _Trial) -> None:
    learner = trial.learner
    assert isinstance(learner, Learner), "the learner must be a subclass of norewind.Learner"
    assert type(learner.horizon) is int, f"horizon must be an int, not {learner.horizon!r}"
    assert learner.window is None or learner.window >= 1, f"window must be None or at least 1, not {learner.window!r}"
    assert learner.chunk(trial.begin()) >= 1, "chunk(run) must be at least 1"
    run, (losses, outputs) = trial.whole()
    assert np.shape(losses) == (trial.length,), f"there must be one loss per step, not {np.shape(losses)}"
    assert np.isfinite(losses).all(), "losses must be finite"
    assert (type(outputs) is tuple and len(outputs) == 2) == bool(learner.horizon), (
        "with a horizon, outputs are a pair: the forecasts made at the rows, and those made of them"
    )
    pending = learner.pending(run)
    assert (pending is None) == (learner.horizon == 0), "with a horizon, and only then, pending(run) has forecasts"
    assert pending is None or len(pending) == learner.horizon, "pending(run) has one entry for each row to come"


def _check_cuts_change_nothing(trial: _Trial) -> None:
    """With `count`, chunks of one length that are only partly used."""
    end, expected = trial.whole()
    for cut in (1, trial.length // 3, trial.length - 1):
        run, first = trial.scan(trial.begin(), trial.xs, trial.targets, cut)
        rolled = [_rolled(part, cut) for part in (trial.xs, trial.targets)]
        run, second = trial.scan(run, *rolled, trial.length - cut)
        found = jax.tree.map(partial(_joined, cut), first, second)
        _assert_same(f"cut after {cut} steps, losses and outputs", found, expected)
        _assert_same(f"cut after {cut} steps, the run", run, end)
        beyond = jax.tree.map(lambda leaf, cut=cut: np.asarray(leaf)[cut:], first[0])
        assert not np.any(beyond), "losses beyond `count` must be zeros"


def _check_one_step_at_a_time(trial: _Trial) -> None:
    end, expected = trial.whole()
    run, parts = trial.begin(), []
    for step in range(trial.length):
        run, part = trial.scan(run, *(_part(tree, step, step + 1) for tree in (trial.xs, trial.targets)))
        parts.append(part)
    found = jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *parts)
    _assert_same("one step at a time, losses and outputs", found, expected, trial.tolerance)
    _assert_same("one step at a time, the run", run, end, trial.tolerance)


def _check_nothing_from_the_future(trial: _Trial) -> None:
    """Everything after a step, and that step's target, are replaced by those of the beginning."""
    _, expected = trial.whole()
    for step in (trial.length // 4, trial.length // 2, trial.length - 1):
        xs, targets = (_replaced(tree, start) for tree, start in ((trial.xs, step + 1), (trial.targets, step)))
        _, (losses, outputs) = trial.scan(trial.begin(), xs, targets)
        seen = outputs if trial.learner.horizon == 0 else outputs[1]
        known = expected[1] if trial.learner.horizon == 0 else expected[1][1]
        what = f"with other data from step {step} on"
        _assert_same(f"{what}, the losses before", _part(losses, 0, step), _part(expected[0], 0, step))
        _assert_same(f"{what}, what was predicted up to it", _part(seen, 0, step + 1), _part(known, 0, step + 1))
        if trial.learner.horizon:
            _assert_same(f"{what}, forecasts made", _part(outputs[0], 0, step), _part(expected[1][0], 0, step))


def _check_predicting_learns_nothing(trial: _Trial) -> None:
    half = trial.length // 2
    first = [_part(tree, 0, half) for tree in (trial.xs, trial.targets)]
    second = [_part(tree, half, trial.length) for tree in (trial.xs, trial.targets)]
    run, _ = trial.scan(trial.begin(), *first)
    before = copied(run)
    samples = _flat(second[0], trial.learner.window or 1)
    _, answers = trial.learner.forward(run, samples)
    _assert_same("after forward, the run that went in", run, before)
    _, again = trial.learner.forward(run, samples)
    _assert_same("forward a second time", again, answers)
    one = _part(samples, 0, 1)
    _, first_answer = trial.learner.forward(run, one)
    _assert_same("the first of many answers", first_answer, _part(answers, 0, 1), trial.tolerance)


def _check_restored_runs_continue(trial: _Trial) -> None:
    half = trial.length // 2
    first = [_part(tree, 0, half) for tree in (trial.xs, trial.targets)]
    second = [_part(tree, half, trial.length) for tree in (trial.xs, trial.targets)]
    run, _ = trial.scan(trial.begin(), *first)
    with TemporaryDirectory() as folder:
        restored, _ = checkpoint.load(checkpoint.save(folder, half, run), trial.begin())
    _assert_same("restored, the run", restored, run)
    _assert_same("restored, losses and outputs after it", trial.scan(restored, *second)[1], trial.scan(run, *second)[1])


def _check_a_second_reset_changes_nothing(trial: _Trial) -> None:
    half = trial.length // 2
    first = [_part(tree, 0, half) for tree in (trial.xs, trial.targets)]
    run, _ = trial.scan(trial.begin(), *first)
    once = trial.learner.reset(copied(run))
    twice = trial.learner.reset(trial.learner.reset(run))
    _assert_same("reset twice instead of once", twice, once)


_CHECKS = (
    _check_members,
    _check_cuts_change_nothing,
    _check_one_step_at_a_time,
    _check_nothing_from_the_future,
    _check_predicting_learns_nothing,
    _check_restored_runs_continue,
    _check_a_second_reset_changes_nothing,
)


def _part(tree: Tree, start: int, stop: int) -> Tree:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[start:stop], tree)


def _rolled(tree: Tree, steps: int) -> Tree:
    return jax.tree.map(lambda leaf: np.roll(np.asarray(leaf), -steps, axis=0), tree)


def _joined(cut: int, first: Any, second: Any) -> np.ndarray:
    first, second = np.asarray(first), np.asarray(second)
    return np.concatenate([first[:cut], second[: len(second) - cut]])


def _replaced(tree: Tree, start: int) -> Tree:
    """The tree with every entry from `start` on replaced by earlier ones, in another order."""

    def leaf(values: Any) -> np.ndarray:
        values = np.array(values)
        values[start:] = np.resize(values[::-1] if start == 0 else values[:start][::-1], values[start:].shape)
        return values

    return jax.tree.map(leaf, tree)


def _flat(xs: Tree, window: int) -> Tree:
    """Inputs one per sample."""
    return xs if window == 1 else jax.tree.map(lambda leaf: np.reshape(leaf, (-1, *np.shape(leaf)[2:])), xs)


def _assert_same(what: str, found: Tree, expected: Tree, tolerance: float = 0.0) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected), f"{what}: another structure"
    for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        one, other = (np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf) for leaf in (one, other))
        name = f"{what}: {jax.tree_util.keystr(path)}"
        assert one.dtype == other.dtype, f"{name} is {one.dtype} instead of {other.dtype}"
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance, err_msg=name)
