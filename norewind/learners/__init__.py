"""Learners predict a sample and then learn from it. They all implement `Learner`."""

from norewind.learners.ahead import AheadLearner
from norewind.learners.counting.counts import Counts
from norewind.learners.learner import Forecasts, Learner, RowLearner
from norewind.learners.least_squares import LeastSquares
from norewind.learners.number_mixture import NumberMixture
from norewind.learners.online import OnlineLearner
from norewind.learners.packing import PackedLearner
from norewind.learners.symbol_mixture import SymbolMixture

__all__ = [
    "AheadLearner", "Counts", "Forecasts", "Learner", "LeastSquares", "NumberMixture", "OnlineLearner", "PackedLearner",
    "RowLearner", "SymbolMixture",
]  # fmt: skip
