"""Parameters of which `make test` runs a few, and `make test-all` every one."""

import pytest


def slow_but(names, *quick):
    """The names as parameters of a test, all marked as slow but the quick ones."""
    assert set(quick) <= {getattr(name, "__name__", name) for name in names}, quick
    return [
        name if getattr(name, "__name__", name) in quick else pytest.param(name, marks=pytest.mark.slow)
        for name in names
    ]
