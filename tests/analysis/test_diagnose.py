"""`diagnose` agrees with enumeration, with plain differences, and with a known result."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import norewind
from norewind import bptt, cells, diagnose, uoro
from norewind.analysis import diagnose as module
from norewind.analysis.findings import Moments
from norewind.core import losses
from norewind.testing import Example, exact_grads, path_signs, run_estimator, sign_paths

TEXT = np.random.default_rng(0).integers(0, 3, 31).astype(np.int32)


CELLS = {size: cells.elman(3, size, 3) for size in (2, 4, 32)}


def elman(size, number=0):
    cell = CELLS[size]
    return cell.transition, losses.cross_entropy, jax.jit(cell.init)(jax.random.key(number)), cell.initial_state()


def stream(steps):
    return TEXT[:steps], TEXT[1 : steps + 1]


def recurrent(grads):
    """Return all gradients except the readout's, flattened, one row per step."""
    grads = {name: leaf for name, leaf in grads.items() if name != "readout"}
    return np.concatenate([np.asarray(leaf).reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(grads)], axis=1)


@pytest.mark.usefixtures("x64")
def test_against_enumeration_and_plain_differences():
    transition, loss, params, state = model = elman(2)
    steps = 4
    example = Example("", params, state, transition, loss, *stream(steps))
    exact = recurrent(exact_grads(transition, loss, params, state, *stream(steps)))
    estimator = uoro(transition, loss, noise=path_signs)
    paths = sign_paths(estimator.init(params, state, jax.random.key(0)), 2 * (steps - 1))
    grads = jax.jit(jax.vmap(lambda carry: run_estimator(estimator, example, carry)[2].grad))(paths)
    every = np.stack([recurrent(jax.tree.map(lambda leaf, i=i: leaf[i], grads)) for i in range(64)])
    scale = np.sum(exact**2)
    variance = np.sum(every.var(axis=0)) / scale
    norms = np.linalg.norm(every, axis=2) * np.linalg.norm(exact, axis=1)
    cosine = np.mean(np.sum(every * exact, axis=2) / norms)

    report = diagnose(["uoro", "bptt", "rtrl"], model, stream(steps), keys=2000)
    noisy, truncated, perfect = report.findings
    assert abs(noisy.variance.value - variance) < 4 * noisy.variance.error < 0.2 * variance
    assert abs(noisy.cosine.value - cosine) < 4 * noisy.cosine.error < 0.1
    assert abs(noisy.bias_squared.value) < 4 * noisy.bias_squared.error < 0.1 * variance

    plain = bptt(transition, loss)
    cut = recurrent(jax.jit(lambda: run_estimator(plain, example, ())[2].grad)())
    assert abs(truncated.bias_squared.value - np.sum((cut - exact) ** 2) / scale) < 1e-10
    assert truncated.variance.value == 0
    assert truncated.keys == 1
    assert perfect.bias_squared.value < 1e-20
    assert abs(perfect.cosine.value - 1) < 1e-10


def test_statistics_of_few_keys_have_no_bias_of_their_own():
    """bias² is the mean over pairs of different keys: the square of a mean would contain part of the variance."""
    errors = np.random.default_rng(1).normal(0.5, 1.0, (3, 5, 4))  # steps, keys, parameters
    exact = np.array([1.0, 2.0, 3.0])
    with_sum = np.einsum("tkp,tp->tk", errors, errors.sum(axis=1))
    rest = np.zeros((3, 5, 1))
    moments = Moments(np.sum(errors**2, axis=2)[..., None], with_sum[..., None], rest, rest, exact[:, None])
    products = np.einsum("tjp,tkp->jk", errors, errors)
    pairs = (products.sum() - np.trace(products)) / 20
    assert np.isclose(moments.bias_squared().value, pairs / 6)
    assert np.isclose(moments.variance().value, np.sum(errors.var(axis=1, ddof=1)) / 6)


@pytest.mark.slow
def test_variance_grows_with_the_size_and_is_lower_for_nobacktrack():
    report = diagnose(["uoro", "nobacktrack"], elman, stream(30), hidden=(4, 32), repeats=4, keys=50)
    small, small_nbt, large, large_nbt = (finding.variance for finding in report.findings)
    assert large.value - small.value > 3 * np.hypot(large.error, small.error)
    assert small_nbt.value < 0.9 * small.value
    assert large_nbt.value < 0.9 * large.value


def test_leaves_add_up_and_reports_are_shown():
    report = diagnose(["uoro", "sketched:terms=1"], elman(2), stream(12), keys=5)
    for finding in report.findings:
        parts = finding.by_leaf.values()
        assert set(finding.by_leaf) == {"['bias']", "['input']", "['recurrent']"}
        assert np.isclose(sum(part.share for part in parts), 1)
        for name in ("bias_squared", "variance"):
            total = sum(part.share * getattr(part, name).value for part in parts)
            assert np.isclose(total, getattr(finding, name).value, rtol=1e-4, atol=1e-6)
    noisy, sketch = report.findings
    assert noisy.reported == {}
    assert sketch.reported["error_bound"].value > 0
    assert "| error_bound |" in str(report)
    assert "| uoro | ['bias'] |" in report.leaf_table()


def test_repeats_are_means_over_models():
    several = diagnose(["bptt"], elman, stream(6), hidden=(2,), repeats=2)
    single = [diagnose(["bptt"], elman(2, number), stream(6)).findings[0] for number in range(2)]
    values = [finding.bias_squared.value for finding in single]
    (mean,) = several.findings
    assert mean.models == 2
    assert np.isclose(mean.bias_squared.value, np.mean(values))
    assert np.isclose(mean.bias_squared.error, np.std(values, ddof=1) / np.sqrt(2))
    assert np.isclose(mean.over_time[-1].cosine.value, np.mean([f.over_time[-1].cosine.value for f in single]))
    assert "over 2 models" in str(several)


@pytest.mark.slow
def test_moving_parameters_windows_and_own_estimators():
    model = elman(2)
    methods = ["bptt:2", "rtrl:4"]
    frozen = diagnose(methods, model, stream(20))
    moving = diagnose(methods, model, stream(20), optimizer=optax.sgd(0.5))
    assert [finding.over_time[-1].end for finding in frozen.findings] == [20, 20]
    assert len(frozen.findings[1].over_time) == 5
    # The reference of a window is the sum over it, even if the parameters change between blocks.
    assert max(report.findings[1].bias_squared.value for report in (frozen, moving)) < 1e-10
    assert moving.findings[0].bias_squared.value != frozen.findings[0].bias_squared.value
    assert "moving parameters" in str(moving)
    own = diagnose({"mine": bptt}, model, stream(20), readout=True)
    assert own.findings[0].method == "mine"
    assert own.findings[0].bias_squared.value > 0


def test_the_ten_lines_of_the_documentation(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "diagnose.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip() and "import" not in line]) <= 10
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/diagnose.md", "exec"), {})
    assert "| uoro:rank=8 | " in capsys.readouterr().out
    folder = tmp_path / "results/mine"
    assert (folder / "diagnosis.png").stat().st_size > 10_000
    assert (folder / "table.md").read_text().startswith("| method | bias² | variance | cosine | keys |")
    assert len(json.loads((folder / "diagnosis.json").read_text())["findings"]) == 4


def test_where_rtrl_is_too_expensive_long_bptt_is_the_reference(monkeypatch):
    monkeypatch.setattr(module, "MAX_INFLUENCE_SIZE", 0)
    report = diagnose(["rtrl"], elman(4), stream(20))
    assert report.reference == "BPTT over 200 steps"
    assert report.findings[0].bias_squared.value < 1e-10


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="Pass the sizes"):
        diagnose(["uoro"], elman, stream(4))
    with pytest.raises(ValueError, match="shorter than one block of 8 samples"):
        diagnose(["bptt:8"], elman(2), stream(4))
    with pytest.raises(ValueError, match="no method is called"):
        diagnose(["nonsense"], elman(2), stream(4))
    with pytest.raises(norewind.core.ModelError, match="no parameter of this model influences its state"):
        silent = (lambda params, state, x: (state, params["w"]), losses.squared_error, {"w": jnp.ones(2)}, jnp.ones(2))
        diagnose(["bptt"], silent, (np.ones((4, 2)), np.ones((4, 2))))


def test_an_exact_gradient_of_zero_is_reported_instead_of_a_table():
    transition, loss, params, state = elman(2)
    silent = {**params, "readout": jax.tree.map(jnp.zeros_like, params["readout"])}
    model = (transition, loss, silent, state)
    with pytest.raises(
        norewind.core.ModelError,
        match="gradient of this model is zero at every step.*train them along the stream.*readout=True",
    ):
        diagnose(["uoro"], model, stream(6))
    # Both remedies in the message work.
    assert diagnose(["uoro"], model, stream(6), keys=4, readout=True).findings[0].variance.value >= 0
    moving = diagnose(["bptt"], model, stream(20), optimizer=optax.sgd(0.5)).findings[0]
    assert np.isfinite(moving.cosine.value)
    json.dumps([span._asdict() for span in moving.over_time], allow_nan=False)


def test_progress_is_reported():
    seen = []
    diagnose(["bptt", "bptt:2"], elman, stream(4), hidden=(2,), repeats=2, report=lambda *words: seen.append(words))
    assert [done for done, _, _ in seen] == [0, 0, 1, 2, 2, 3]
    assert {total for _, total, _ in seen} == {4}
    assert seen[-1][2] == "bptt:2, hidden 2, model 2 of 2"
