"""Proofs and a conformance suite for gradient estimators, including your own.

`check_estimator` tries a whole estimator, and `yield_checks` gives its checks one by one;
`check_exact` and `check_unbiased` prove what it claims.
"""

from norewind.testing.conformance import check_estimator, yield_checks
from norewind.testing.examples import EXAMPLES, Example, example, examples
from norewind.testing.oracles import (
    check_exact,
    check_unbiased,
    exact_grads,
    path_signs,
    run_estimator,
    sign_paths,
)
from norewind.testing.structures import check_structure

__all__ = [
    "EXAMPLES",
    "Example",
    "check_estimator",
    "check_exact",
    "check_structure",
    "check_unbiased",
    "exact_grads",
    "example",
    "examples",
    "path_signs",
    "run_estimator",
    "sign_paths",
    "yield_checks",
]
