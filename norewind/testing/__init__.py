"""Oracles and a conformance suite for gradient estimators, for use on your own as well.

`check_estimator` tries a whole estimator; `check_exact` and `check_unbiased` prove what it claims.
"""

from norewind.testing.conformance import check_estimator
from norewind.testing.examples import Example, examples
from norewind.testing.oracles import check_exact, check_unbiased, exact_grads, path_signs, run_estimator, sign_paths
from norewind.testing.structures import check_structure

__all__ = [
    "Example",
    "check_estimator",
    "check_exact",
    "check_structure",
    "check_unbiased",
    "exact_grads",
    "examples",
    "path_signs",
    "run_estimator",
    "sign_paths",
]
