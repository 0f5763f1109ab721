"""Learners predict a sample and then learn from it. They all implement `Learner`."""

from norewind._lazy import exported

__getattr__, __all__ = exported(
    __name__,
    {
        "ahead": ("Ahead",),
        "bayesian": ("bayes_mixture",),
        "counting.counts": ("Counts", "counts"),
        "learner": ("Learner",),
        "least_squares": ("LeastSquares",),
        "online": ("Online",),
        "packing": ("pack",),
        "series": ("Series",),
        "text_learner": ("TextLearner",),
    },
)
