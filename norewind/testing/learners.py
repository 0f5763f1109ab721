"""The conformance suite of learners: checks that apply to all of them."""

from collections.abc import Iterator
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import numpy as np

from norewind.core.trees import Tree, concatenate_trees, copy_arrays
from norewind.learners.learner import Forecasts, Learner, RowLearner
from norewind.storage import checkpoint
from norewind.testing.oracles import Check, assert_same, named

_assert_same = partial(assert_same, equal_nan=True)


class _Trial(NamedTuple):
    """A learner, the run it starts from, a stream divided into steps, and the tolerance of comparisons."""

    learner: Learner
    start: Tree
    xs: Tree
    targets: Tree
    tolerance: float

    @property
    def length(self) -> int:
        return len(jax.tree.leaves(self.xs)[0])

    def scan(self, run: Tree, data: tuple[Tree, Tree], count: int | None = None) -> tuple[Any, tuple[Any, Any]]:
        """Return the run, and the losses and outputs together, which are compared."""
        run, losses, outputs = self.learner.scan(run, *data, count=count, outputs=True)
        return run, (losses, outputs)

    def samples(self, steps: Tree) -> Tree:
        """Return the samples in steps, which may be windows of them."""
        if self.learner.window <= 1:
            return steps
        return jax.tree.map(lambda leaf: np.reshape(leaf, (-1, *np.shape(leaf)[2:])), steps)

    def whole(self) -> tuple[Any, Any]:
        return self.scan(copy_arrays(self.start), (self.xs, self.targets))

    def first_half(self) -> tuple[Any, Any]:
        """Return the run after the first half of the stream, and the second half."""
        half, data = self.length // 2, (self.xs, self.targets)
        return self.scan(copy_arrays(self.start), _part(data, 0, half))[0], _part(data, half, self.length)


def check_learner(learner: Learner, run: Tree, xs: Tree, targets: Tree, *, tolerance: float = 0.0) -> None:
    """Run all checks of `yield_learner_checks`, and stop at the first failure.

    Args:
        learner: the learner to check.
        run: a run that it starts from. It is copied before it is used.
        xs: inputs, one entry per step; at least 20 steps, and more than its horizon.
        targets: targets, likewise.
        tolerance: the largest relative difference between single steps and chunks; see `yield_learner_checks`.

    Raises:
        AssertionError: a check failed.

    >>> import numpy as np, norewind
    >>> learner = norewind.learners.LeastSquares(inputs=2, targets=1)
    >>> xs = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    >>> check_learner(learner, learner.init(), xs, xs[:, :1])
    """
    for check in yield_learner_checks(learner, run, xs, targets, tolerance=tolerance):
        check()


def yield_learner_checks(
    learner: Learner, run: Tree, xs: Tree, targets: Tree, *, tolerance: float = 0.0
) -> Iterator[Check]:
    """Yield the checks of a learner one by one, as named functions.

    With pytest: `@pytest.mark.parametrize("check", list(yield_learner_checks(...)))`.

    The checks are: cutting the stream anywhere changes nothing; steps one at a time equal steps
    in chunks; later data does not change earlier results; predicting learns nothing, and uses
    everything learned; a run that is saved and restored continues exactly; a reset forgets the
    sequence, and a second one changes nothing; and the members of the interface have the right types.

    Args:
        learner: the learner to check.
        run: a run that it starts from. It is copied before it is used.
        xs: inputs, one entry per step; at least 20 steps, and more than its horizon.
        targets: targets, likewise.
        tolerance: the largest relative difference between single steps and chunks. Only compiled loops whose code
            depends on the length of a chunk need one, such as those of JAX. Everything else must agree bit for bit.

    Returns:
        An iterator over the checks. Each raises an AssertionError if it fails.
    """
    trial = _Trial(learner, run, xs, targets, tolerance)
    for check in _CHECKS:
        yield named(check.__name__.removeprefix("_check_"), check, trial)


def _check_members(trial: _Trial) -> None:
    learner = trial.learner
    assert isinstance(learner, Learner), "the learner must be a subclass of norewind.learners.Learner"
    assert type(learner.horizon) is int, f"horizon must be an int, not {learner.horizon!r}"
    assert learner.window >= 0, f"window must be 0 or more, not {learner.window!r}"
    assert learner.chunk_size(copy_arrays(trial.start)) >= 1, "chunk_size(run) must be at least 1"
    run, (losses, outputs) = trial.whole()
    assert np.shape(losses) == (trial.length,), f"there must be one loss per step, not {np.shape(losses)}"
    assert np.isfinite(losses).all(), "losses must be finite"
    if isinstance(learner, RowLearner):
        assert isinstance(outputs, Forecasts), (
            "the outputs for rows must be Forecasts: those made at the rows, and the earlier ones of these rows"
        )
        assert len(learner.upcoming(run)) == learner.horizon, "upcoming(run) must have one entry for each future row"
    else:
        assert not learner.steps, "a learner with steps must be a subclass of norewind.learners.RowLearner"


def _check_cuts_change_nothing(trial: _Trial) -> None:
    """Check chunks of one length that are only partly used, with `count`."""
    end, expected = trial.whole()
    data = trial.xs, trial.targets
    for cut in (1, trial.length // 3, trial.length - 1):
        run, first = trial.scan(copy_arrays(trial.start), data, cut)
        rolled = jax.tree.map(lambda leaf, cut=cut: np.roll(np.asarray(leaf), -cut, axis=0), data)
        run, second = trial.scan(run, rolled, trial.length - cut)
        actual = concatenate_trees([_part(first, 0, cut), _part(second, 0, trial.length - cut)])
        _assert_same(actual, expected, f"cut after {cut} steps, losses and outputs")
        _assert_same(run, end, f"cut after {cut} steps, the run")
        assert not np.any(np.asarray(first[0])[cut:]), "losses beyond `count` must be zeros"


def _check_one_step_at_a_time(trial: _Trial) -> None:
    end, expected = trial.whole()
    run, parts = copy_arrays(trial.start), []
    for step in range(trial.length):
        run, part = trial.scan(run, _part((trial.xs, trial.targets), step, step + 1))
        parts.append(part)
    tolerances = trial.tolerance, trial.tolerance
    _assert_same(concatenate_trees(parts), expected, "one step at a time, losses and outputs", *tolerances)
    _assert_same(run, end, "one step at a time, the run", *tolerances)


def _check_nothing_from_the_future(trial: _Trial) -> None:
    """Replace everything after a step, and that step's target, by earlier entries in another order."""

    def replaced(values: Any, start: int) -> np.ndarray:
        values = np.array(values)
        values[start:] = np.resize(values[::-1] if start == 0 else values[:start][::-1], values[start:].shape)
        return values

    _, expected = trial.whole()
    for step in (trial.length // 4, trial.length // 2, trial.length - 1):
        xs = jax.tree.map(partial(replaced, start=step + 1), trial.xs)
        targets = jax.tree.map(partial(replaced, start=step), trial.targets)
        _, actual = trial.scan(copy_arrays(trial.start), (xs, targets))
        what = f"with other data from step {step} on"
        predicted, known = (outputs.due if trial.learner.steps else outputs for _, outputs in (actual, expected))
        _assert_same(_part(actual[0], 0, step), _part(expected[0], 0, step), f"{what}, the losses before")
        _assert_same(_part(predicted, 0, step + 1), _part(known, 0, step + 1), f"{what}, the predictions up to it")
        if trial.learner.horizon:
            forecasts, expected_forecasts = (_part(outputs.made, 0, step) for _, outputs in (actual, expected))
            _assert_same(forecasts, expected_forecasts, f"{what}, forecasts made")


def _check_predicting_learns_nothing(trial: _Trial) -> None:
    run, (steps, _) = trial.first_half()
    before, samples = copy_arrays(run), trial.samples(steps)
    _, answers = trial.learner.forward(run, samples)
    _assert_same(run, before, "after forward, the run that went in")
    _, again = trial.learner.forward(run, samples)
    _assert_same(again, answers, "forward a second time")
    moved, first = trial.learner.forward(run, _part(samples, 0, 1))
    _assert_same(first, _part(answers, 0, 1), "the first of many answers", trial.tolerance, trial.tolerance)
    _, others = trial.learner.forward(moved, _part(samples, 1, None))
    expected = _part(answers, 1, None)
    _assert_same(others, expected, "the other answers, in a second call", trial.tolerance, trial.tolerance)


def _check_predicting_uses_everything_learned(trial: _Trial) -> None:
    """Check that `forward` predicts as `scan` does, which predicts a step before it learns from it."""
    if trial.learner.horizon:
        return  # forecasts are made after learning from their row
    run, rest = trial.first_half()
    step = _part(rest, 0, 1)
    _, answers = trial.learner.forward(copy_arrays(run), trial.samples(step[0]))
    _, (_, outputs) = trial.scan(run, step)
    expected = jax.tree.map(lambda leaf, answer: np.reshape(leaf, np.shape(answer)), outputs, answers)
    _assert_same(answers, expected, "forward instead of scan", trial.tolerance, trial.tolerance)


def _check_restored_runs_continue(trial: _Trial) -> None:
    run, rest = trial.first_half()
    with TemporaryDirectory() as folder:
        restored, _ = checkpoint.load(checkpoint.save(folder, trial.length // 2, run), copy_arrays(trial.start))
    _assert_same(restored, run, "restored, the run")
    _assert_same(trial.scan(restored, rest)[1], trial.scan(run, rest)[1], "restored, losses and outputs after it")


def _check_a_reset_forgets_the_sequence(trial: _Trial) -> None:
    run, (steps, _) = trial.first_half()
    samples = trial.samples(steps)
    moved, _ = trial.learner.forward(copy_arrays(run), samples)
    again = [trial.learner.reset(copy_arrays(one)) for one in (moved, run)]
    actual, expected = (trial.learner.forward(one, samples)[1] for one in again)
    _assert_same(actual, expected, "after a reset, predictions of a run that had seen more samples")


def _check_a_second_reset_changes_nothing(trial: _Trial) -> None:
    run, _ = trial.first_half()
    once = trial.learner.reset(copy_arrays(run))
    twice = trial.learner.reset(trial.learner.reset(run))
    _assert_same(twice, once, "reset twice instead of once")


_CHECKS = (
    _check_members,
    _check_cuts_change_nothing,
    _check_one_step_at_a_time,
    _check_nothing_from_the_future,
    _check_predicting_learns_nothing,
    _check_predicting_uses_everything_learned,
    _check_restored_runs_continue,
    _check_a_reset_forgets_the_sequence,
    _check_a_second_reset_changes_nothing,
)


def _part(tree: Tree, start: int, stop: int | None) -> Tree:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[start:stop], tree)
