"""The base of all errors: one class to catch, and divergence in any process."""

import pickle
import subprocess
import sys

import jax.numpy as jnp
import pytest

from norewind.core import ModelError, Run
from norewind.core.run import nonfinite_error
from norewind.errors import Diverged, NorewindError
from norewind.forecasting.compress import CodeError
from norewind.storage.checkpoint import CheckpointError
from norewind.streams import StreamError
from norewind.sweeps.workers import SweepError
from norewind.training.folder import FolderInUse
from norewind.training.settings import SettingsError


@pytest.mark.parametrize(
    ("error", "built_in"),
    [
        (CheckpointError, ValueError),
        (CodeError, ValueError),
        (Diverged, ArithmeticError),
        (FolderInUse, RuntimeError),
        (ModelError, ValueError),
        (SettingsError, ValueError),
        (StreamError, ValueError),
        (SweepError, RuntimeError),
    ],
)
def test_every_error_has_the_base(error, built_in):
    assert issubclass(error, NorewindError)
    assert issubclass(error, built_in)


def test_the_base_does_not_import_jax():
    code = "import sys, norewind; norewind.errors.NorewindError; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_numbers_that_are_not_finite_are_a_divergence_with_its_run():
    run = Run((), (), (), (), jnp.array(3), jnp.array(48), jnp.array(0), ())
    error = nonfinite_error(run)
    assert isinstance(error, Diverged)
    assert (error.step, error.samples, error.run) == (4, 49, run)
    assert error.reason == "sample 49 gave numbers that are not finite."
    assert str(error).startswith(f"{error.reason} The last good run, before step 4 ")


def test_a_divergence_reaches_the_parent_process():
    """A pool treats an error that cannot be unpickled as a killed process, and would train the run again."""
    run = Run((), (), (), (), jnp.array(3), jnp.array(48), jnp.array(0), ())
    for error in (Diverged("the loss exploded.", 7), nonfinite_error(run)):
        received = pickle.loads(pickle.dumps(error))
        assert isinstance(received, Diverged)
        assert (received.reason, received.samples, received.run) == (error.reason, error.samples, None)
