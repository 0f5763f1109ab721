"""Learners predict a sample and then learn from it. They all implement `Learner`."""

from norewind.learners.ahead import Ahead
from norewind.learners.bayesian import BayesMixture
from norewind.learners.counting.counts import Counts
from norewind.learners.learner import Forecasts, Learner, RowLearner
from norewind.learners.least_squares import LeastSquares
from norewind.learners.online import Online
from norewind.learners.packing import PackedOnline
from norewind.learners.series import Series
from norewind.learners.text_learner import TextLearner

__all__ = [
    "Ahead", "BayesMixture", "Counts", "Forecasts", "Learner", "LeastSquares", "Online", "PackedOnline", "RowLearner",
    "Series", "TextLearner",
]  # fmt: skip
