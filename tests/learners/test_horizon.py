"""The steps of a horizon are checked alike by all learners of rows."""

import pytest
from keyed_rows import learner

from norewind.core import ModelError
from norewind.learners import AheadLearner, LeastSquares, NumberMixture
from norewind.learners.class_least_squares import ClassLeastSquares
from norewind.learners.class_mixture import ClassMixture

LEARNERS = {
    "AheadLearner": lambda steps: AheadLearner(learner()[0], None, steps),
    "LeastSquares": lambda steps: LeastSquares(2, 1, steps=steps),
    "ClassLeastSquares": lambda steps: ClassLeastSquares(2, 3, steps=steps),
    "NumberMixture": lambda steps: NumberMixture(2, 1, steps=steps),
    "ClassMixture": lambda steps: ClassMixture([], 3, steps),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_steps_are_whole_numbers_in_increasing_order(name):
    for steps in ((), (0, 1), (-1,), (2, 1), (3, 3), (1.5,), ("1",)):
        with pytest.raises(ModelError, match=f"^{name}: steps must be whole numbers from 1 in increasing order"):
            LEARNERS[name](steps)
    for steps in ((0,), (1,), (1, 3, 24)):
        assert LEARNERS[name](steps).steps == steps
