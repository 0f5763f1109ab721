"""Proofs and conformance suites for gradient estimators and learners, including your own.

`check_estimator` runs all checks of an estimator, and `yield_checks` yields them one by one.
`check_exact` and `check_unbiased` prove what the estimator claims. `check_learner` and
`yield_learner_checks` do the same for a learner.
"""

from norewind.testing.conformance import check_estimator, yield_checks
from norewind.testing.declarations import check_structure
from norewind.testing.examples import EXAMPLES, Example, example, examples
from norewind.testing.learners import check_learner, yield_learner_checks
from norewind.testing.oracles import check_exact, check_unbiased, exact_grads, run_estimator
from norewind.testing.paths import path_signs, sign_paths

__all__ = [
    "EXAMPLES", "Example", "check_estimator", "check_exact", "check_learner", "check_structure", "check_unbiased",
    "exact_grads", "example", "examples", "path_signs", "run_estimator", "sign_paths", "yield_checks",
    "yield_learner_checks",
]  # fmt: skip
