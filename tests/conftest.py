import jax
import pytest

# Almost all the time of these tests is XLA compiling tiny programs: let it try less hard.
# The README's quickstart and the demo run in processes of their own, fully optimised.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def x64():
    """Claims of exactness are checked in double precision."""
    with jax.enable_x64(True):
        yield
