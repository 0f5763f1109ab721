"""Methods by name, and their comparison."""

import csv
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from norewind import estimators
from norewind.cli import main
from norewind.comparison import compare
from norewind.losses import cross_entropy
from norewind.methods import METHODS, parse_method, parse_methods
from norewind.named import CELLS

CELL_FOR = {"bpdc": "feedback_reservoir", "lstm97": "plain_lstm"}
SPEC_FOR = {"sliding_bptt": "sliding_bptt:3"}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_made_by_name(name):
    cell = CELLS[CELL_FOR.get(name, "elman")](3, 4, 3)
    estimator = parse_method(SPEC_FOR.get(name, name)).make(cell.transition, cross_entropy, np.int32(0))
    params, state = jax.eval_shape(cell.init, jax.random.key(0)), cell.initial_state()
    carry = jax.eval_shape(estimator.init, params, state, jax.random.key(0))
    _, _, estimate = jax.eval_shape(estimator.step, params, state, carry, np.int32(1), np.int32(2))
    assert jax.tree.structure(estimate.grad) == jax.tree.structure(params)


def test_there_is_a_name_for_every_estimator():
    assert set(METHODS) == set(estimators.__all__)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_it_is_and_what_it_costs(name):
    words = METHODS[name].__doc__ or ""
    assert re.search(r"^ *(Unbiased|Biased|Exact)", words, re.MULTILINE)
    for word in ("Time:", "Bytes carried:", "eeds ", "Reference:", ">>> "):
        assert word in words, f"the docstring of {name} does not say {word}"
    page = (Path(__file__).parent.parent / "docs" / "methods.md").read_text()
    assert re.search(rf"^\| `{name}`", page, re.MULTILINE), f"docs/methods.md has no row for {name}"


def test_options_reach_the_estimator():
    cell = CELLS["elman"](3, 4, 3)
    params, state = cell.init(jax.random.key(0)), cell.initial_state()

    def carry(text):
        method = parse_method(text)
        return method, method.make(cell.transition, cross_entropy, np.int32(0)).init(params, state, jax.random.key(0))

    method, several = carry("uoro:memory=4,rank=8")
    assert method.memory == 4
    assert several.s_tilde.shape == (8, 4)
    assert carry("sliding_bptt:6")[1].xs.shape == (5,)
    assert carry("diffusion:baseline=False,sigma=0.2")[1].noiseless is None
    assert parse_method("dni:rate=0.01,memory=2").memory == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "no method is called 'nonsense': choose from bpdc, bptt"),
        ("uoro:speed=3", "uoro has no option 'speed': it has memory, rank, rho"),
        ("uoro:rank=0", "rank must be a whole number from 1, not 0"),
        ("uoro:rank", "uoro: the option rank needs a value, as in uoro:rank=8"),
        ("bptt:many", "memory must be a whole number from 1, not 'many'"),
        ("sliding_bptt", "sliding_bptt needs its length"),
        (",", "name at least one method"),
    ],
)
def test_mistakes_are_explained(text, message):
    with pytest.raises(ValueError, match="method|option|whole|length") as error:
        parse_methods(text)
    assert message in str(error.value)


def test_all_methods_see_the_same_text_from_the_same_parameters():
    result = compare(["uoro", "uoro:rank=1", "bptt:4"], units=4, characters=400, cell="elman")
    one, same, other = result.results
    assert one.curve == same.curve
    assert one.curve != other.curve
    # Before anything is learned, all predict the same; the first chunk still shows it.
    assert abs(one.curve[0] - other.curve[0]) < 0.2
    assert (one.carried_bytes, other.carried_bytes) == (4 * (4 + 4 * 4 + 3 * 4 + 4 + 3 * 4 + 3) + 8, 0)


def test_compare_and_diagnose_on_the_command_line(tmp_path, capsys):
    arguments = ["--methods", "uoro:memory=2,rank=2,lstm97,bpdc,bptt", "--cell", "gru", "--units", "4"]
    main(["compare", *arguments, "--characters", "400", "--seeds", "2", "--out", str(tmp_path / "c")])
    out = capsys.readouterr().out
    assert "| uoro:memory=2,rank=2 | " in out
    assert "refused: lstm97 needs to know which unit each weight feeds" in out
    rows = list(csv.DictReader((tmp_path / "c/comparison.csv").open()))
    assert [row["method"] for row in rows] == ["uoro:memory=2,rank=2", "lstm97", "bpdc", "bptt"]
    assert float(rows[0]["standard_error"]) > 0
    results = json.loads((tmp_path / "c/comparison.json").read_text())["results"]
    assert len(results) == 8
    assert len(results[0]["curve"]) == 100
    assert (tmp_path / "c/comparison.png").stat().st_size > 10_000

    main(["diagnose", "--methods", "uoro", "--sizes", "3", "--steps", "6", "--keys", "5", "--out", str(tmp_path)])
    assert "| uoro | 3 | " in capsys.readouterr().out
    assert (tmp_path / "diagnosis.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "--methods", "x"], "norewind compare: no method is called 'x'"),
        (["compare", "--seeds", "0"], "norewind compare: compare: seeds must be at least 1"),
        (["compare", "--characters", "-5"], "characters must be at least 1"),
        (["compare", "--rate", "0"], "rate must be above 0"),
        (["diagnose", "--sizes", "0"], "a size must be at least 1"),
        (["diagnose", "--keys", "0"], "keys must be at least 1"),
        (["diagnose", "--steps", "0"], "size >= 1"),
        (["diagnose", "--methods", "lstm97", "--sizes", "2"], "lstm97 needs to know each unit's memory cell"),
    ],
)
def test_impossible_requests_end_with_a_sentence(arguments, message, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--out", str(tmp_path)])
    assert message in str(ended.value)


def test_runs_that_stop_being_finite_stay_in_the_table():
    result = compare(["uoro", "bptt"], units=4, characters=200, cell="elman", optimizer="sgd", rate=3e38)
    assert all("not finite after" in str(row.problem) for row in result.results)
    assert "not finite" in str(result)
