"""With `non_negative`, nothing that is reported is below 0, and everything else stays as it is."""

import json

import numpy as np
import pytest
from run_folders import norewind

from norewind.learners.learner import Forecasts
from norewind.scoring.row_score import RowScore
from norewind.streams.stream import Samples
from norewind.training.log import read_log

MODEL = ("--method", "bptt", "--hidden", 2, "--interval", 0.9, "--predictions", "file", "--quiet")
COLUMNS = ("--inputs", "sold", "--targets", "sold", "--horizon", 2)


def numbers_in(value):
    """All numbers in nested dicts and lists."""
    if isinstance(value, dict | list):
        return [one for part in (value.values() if isinstance(value, dict) else value) for one in numbers_in(part)]
    return [] if value is None else [value]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Many zeros and few sales, of two shops."""
    path = tmp_path_factory.mktemp("sales") / "sales.jsonl"
    sold = np.random.default_rng(0).poisson(0.3, 160).tolist()
    path.write_text("".join(json.dumps({"shop": "ab"[n % 2], "sold": count}) + "\n" for n, count in enumerate(sold)))
    return path


@pytest.mark.parametrize("keys", [(), ("--key", "shop")])
def test_no_forecast_is_negative(source, tmp_path, capsys, keys):
    runs = {}
    for name, option in {"plain": (), "limited": ("--non-negative",)}.items():
        run = tmp_path / name
        assert norewind("train", source, "--out", run, *COLUMNS, *MODEL, *keys, *option) == 0
        capsys.readouterr()
        assert norewind("forecast", run, *(() if keys else ("--steps", 5))) == 0
        ahead = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        runs[name] = read_log(run / "predictions.jsonl") + ahead
    reported = ("forecast", "prediction", "interval", "prediction_interval")
    plain, limited = (
        [numbers_in([entry.get(name) for name in reported]) for entry in entries] for entries in runs.values()
    )
    assert min(map(min, filter(None, plain))) < 0
    first = -10 if not keys else -4
    for before, after in zip(plain[:first], limited[:first], strict=True):
        assert after == [max(0.0, value) for value in before]
    assert min(map(min, filter(None, limited))) >= 0


def test_errors_are_those_of_the_limited_forecasts():
    values = np.random.default_rng(1).poisson(3, (30, 1)).astype(float)
    scales = np.tile([3.0, 2.0], (30, 1, 1))
    standardised = ((values - 3) / 2).astype(np.float32)
    same = {"targets": standardised, "last": standardised, "scales": scales, "scales_after": scales}
    far_below = np.full((30, 3), -9, np.float32)
    score = RowScore(["sold"], "squared", (1,), levels=(0.8,))
    score.lowest = 0.0
    score.add(Samples(standardised, **same, values=values), Forecasts(far_below, far_below))
    line = score.end_interval()
    assert line["errors"]["model"]["sold"]["mae"] == pytest.approx(values[1:].mean(), rel=1e-5)
    assert line["intervals"]["0.8"]["width"] == 0
    assert line["intervals"]["0.8"]["coverage"] == pytest.approx(np.mean(values == 0), rel=1e-5)


@pytest.mark.parametrize(("loss", "share"), [("absolute", 0.5), ("quantile:0.9", 0.9)])
def test_a_median_and_a_quantile_on_the_command_line(loss, share, tmp_path, capsys):
    values = np.random.default_rng(1).exponential(size=600).round(4)
    (tmp_path / "rows.csv").write_text("\n".join(["load", *map(str, values), ""]))
    options = ("--targets", "load", "--loss", loss, "--method", "bptt", "--hidden", 2, "--predictions", "file")
    assert norewind("train", tmp_path / "rows.csv", *options, "--out", tmp_path / "run") == 0
    output = capsys.readouterr().err
    assert ("median" if share == 0.5 else "quantile") in output
    lines = read_log(tmp_path / "run" / "predictions.jsonl")[300:]
    below = np.mean([line["target"]["load"] <= line["prediction"]["load"] for line in lines])
    assert below == pytest.approx(share, abs=0.06)
    assert norewind("forecast", tmp_path / "run") == 0
    made = json.loads(capsys.readouterr().out)["forecast"]["load"]
    assert made == pytest.approx(np.quantile(values, share), rel=0.35)
