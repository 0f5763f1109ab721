"""Methods and their options are parsed from text."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

from norewind import estimators
from norewind.core.losses import cross_entropy
from norewind.training import registry

METHODS = registry.methods()
CELL_FOR = {"bpdc": "feedback_reservoir", "lstm97": "plain_lstm"}
SPEC_FOR = {"sliding_bptt": "sliding_bptt:3", "unbiased": "unbiased:of=snap1", "shrunk": "shrunk:of=snap1"}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_made_by_name(name):
    cell = registry.cell(CELL_FOR.get(name, "elman"))(3, 4, 3)
    estimator = registry.parse_method(SPEC_FOR.get(name, name)).make(cell.transition, cross_entropy, np.int32(0))
    params, state = jax.eval_shape(cell.init, jax.random.key(0)), cell.initial_state()
    carry = jax.eval_shape(estimator.init, params, state, jax.random.key(0))
    _, _, estimate = jax.eval_shape(estimator.step, params, state, carry, np.int32(1), np.int32(2))
    assert jax.tree.structure(estimate.grad) == jax.tree.structure(params)


def test_there_is_a_name_for_every_estimator():
    assert set(METHODS) == set(estimators.__all__)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_documents_its_bias_and_cost(name):
    words = METHODS[name].__doc__ or ""
    assert re.search(r"^ *(Unbiased|Biased|Exact)", words, re.MULTILINE)
    for word in ("Time:", "Bytes carried:", "eeds ", "Reference:", ">>> "):
        assert word in words, f"the docstring of {name} does not say {word}"
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    assert re.search(rf"^\| `{name}`", page, re.MULTILINE), f"docs/methods.md has no row for {name}"


def test_options_reach_the_estimator():
    cell = registry.cell("elman")(3, 4, 3)
    params, state = cell.init(jax.random.key(0)), cell.initial_state()

    def carry(text):
        method = registry.parse_method(text)
        return method, method.make(cell.transition, cross_entropy, np.int32(0)).init(params, state, jax.random.key(0))

    method, several = carry("uoro:window=4,rank=8")
    assert method.window == 4
    assert several.s_tilde.shape == (8, 4)
    assert carry("sliding_bptt:6")[1].xs.shape == (5,)
    assert carry("diffusion:baseline=False,sigma=0.2")[1].noiseless is None
    assert registry.parse_method("dni:rate=0.01,window=2").window == 2
    _, completed = carry("unbiased:of=sketched,terms=3,rank=2,rho=released")
    assert completed.approximation.left.shape == (2, 4, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "no method is called 'nonsense': choose from bpdc, bptt"),
        ("uoro:speed=3", "uoro has no option 'speed': it has clip, decay, rank, rho, window"),
        ("uoro:rank=0", "rank must be a whole number from 1, not 0"),
        ("uoro:rank", "uoro: the option rank needs a value, as in uoro:rank=8"),
        ("bptt:many", "window must be a whole number from 1, not 'many'"),
        ("sliding_bptt", "sliding_bptt needs its length"),
        (",", "name at least one method"),
        ("unbiased", "unbiased needs the method that it completes, as in unbiased:of=snap1"),
        ("unbiased:of=unbiased", "no method is called 'unbiased': choose from bpdc"),
        (
            "unbiased:of=sketched,speed=3",
            "unbiased has no option 'speed': it has clip, decay, of, rank, rho, terms, window",
        ),
    ],
)
def test_mistakes_are_explained(text, message):
    with pytest.raises(ValueError, match="method|option|whole|length") as error:
        _ = [registry.parse_method(method) for method in registry.split_methods(text)]
    assert message in str(error.value)
