"""No answer depends on anything later: whatever comes after row t, answers, metrics and names up to t are the same."""

import json
from datetime import datetime, timedelta

import numpy as np
import pytest
from quick import slow_but
from run_folders import norewind

from norewind import AnomalyDetector, Classifier, Forecaster
from norewind.training.log import read_log

pytestmark = pytest.mark.usefixtures("shared_programs")

# The columns are chosen by the first 100 rows, and methods compute windows of 4 rows and chunks of 256.
ROWS, SAME = 700, 378
NETWORK = ("--hidden", 4, "--method")


def numbers(seed, rows):
    """Rows of two numbers, some of them missing."""
    rng = np.random.default_rng(seed)
    values = np.cumsum(rng.normal(size=(rows, 2)), axis=0)
    return [f"{a:.4f},{b:.4f}" if rng.random() > 0.05 else f"{a:.4f}," for a, b in values]


def timed(seed, rows):
    """Rows with hourly times, which later have gaps."""
    first = 0 if rows == SAME else SAME
    hours = first + np.cumsum(np.random.default_rng(seed).integers(1, 1 + max(1, seed), rows)) - 1
    times = (datetime(2024, 1, 1) + timedelta(hours=int(hour)) for hour in hours)
    return [f"{time:%Y-%m-%d %H:%M},{row}" for time, row in zip(times, numbers(seed, rows), strict=True)]


def planned(seed, rows):
    """Rows with a price that is known three rows in advance, and differs after that."""
    first = 0 if rows == SAME else SAME
    prices = [(7 * row + (seed if row >= SAME + 3 else 0)) % 11 for row in range(first, first + rows)]
    return [f"{row},{price}" for row, price in zip(numbers(seed, rows), prices, strict=True)]


def classes(seed, rows):
    """Rows with a class, in the second half more than there were in the first."""
    rng = np.random.default_rng(seed)
    names = "abcd" if rows == SAME else "".join(chr(ord("e") + (seed + i) % 20) for i in range(10))
    # The first classes appear late, so that there are rows before any of them.
    chosen = [rng.choice(list(names[: 1 + row // 50])) for row in range(rows)]
    return [f"{rng.normal():.4f},{name if rng.random() > 0.05 else ''}" for name in chosen]


def keys(seed, rows):
    """Rows of frequent and rare keys; new keys appear later."""
    rng = np.random.default_rng(seed)
    place = (40 * rng.random(rows) ** 3).astype(int) + (0 if rows == SAME else rng.integers(0, 3))
    return [f"k{key},{rng.normal():.4f}" for key in place]


def letters(seed, rows):
    """A text of lines, with characters that appear later."""
    rng = np.random.default_rng(seed)
    alphabet = "abcä\n" if rows == SAME else "bcdeöü\n" if seed == 1 else "cxyzß\n"
    return list(rng.choice(list(alphabet), rows))


# How a run is trained: its data, its header and its options.
KINDS = {
    "text by auto": (letters, None, ("--format", "text")),
    "bytes by auto": (letters, None, ()),
    "lines": (letters, None, ("--per", "line")),
    "lines of text, ranked": (letters, None, ("--per", "line", "--top", 3, "--format", "text")),
    "text by windows": (letters, None, ("--format", "text", *NETWORK, "uoro:window=4")),
    "rows": (numbers, "a,b", ()),
    "rows with times": (timed, "time,a,b", ("--horizon", 3)),
    "rows with a plan": (planned, "a,b,price", ("--horizon", 3, "--known-future", "price")),
    "rows three ahead": (numbers, "a,b", ("--horizon", 3)),
    "targets of the same row": (numbers, "a,b", ("--horizon", 0, "--targets", "b")),
    "rows with variances": (numbers, "a,b", ("--loss", "gaussian")),
    "rows with intervals": (numbers, "a,b", ("--horizon", 3, "--interval", "0.8,0.95", "--period", 24, "--copy", "b")),
    "rows two and five ahead": (numbers, "a,b", ("--only-steps", 2, 5, "--missing", "mean", "--non-negative")),
    "rows by windows": (numbers, "a,b", (*NETWORK, "uoro:window=4")),
    "rows ahead by windows": (numbers, "a,b", ("--horizon", 3, *NETWORK, "uoro:window=4")),
    "classes": (classes, "x,c", ("--loss", "classes", "--targets", "c")),
    "classes of the same row": (classes, "x,c", ("--loss", "classes", "--targets", "c", "--horizon", 0)),
    "classes three ahead": (classes, "x,c", ("--loss", "classes", "--targets", "c", "--horizon", 3)),
    "classes by windows": (classes, "x,c", ("--loss", "classes", "--targets", "c", *NETWORK, "uoro:window=4")),
    "keys": (keys, "key,v", ("--key", "key")),
    "keys three ahead": (keys, "key,v", ("--key", "key", "--horizon", 3)),
    "keys with intervals": (keys, "key,v", ("--key", "key", "--interval", 0.8)),
    "keys by networks": (keys, "key,v", ("--key", "key", *NETWORK, "uoro")),
    "keys that share": (keys, "key,v", ("--key", "key", "--share")),
    "keys that share, three ahead": (keys, "key,v", ("--key", "key", "--share", "--horizon", 3, *NETWORK, "snap1")),
}


def two_pasts_alike(folder, data, header):
    """Write two files that agree up to row `SAME` and differ in every row after it."""
    start = data(0, SAME)
    files = []
    for seed in (1, 2):
        rows, separator = [*start, *data(seed, ROWS - SAME)], "\n" if header else ""
        file = folder / f"{seed}{'.csv' if header else ''}"
        file.write_text((f"{header}\n" if header else "") + separator.join(rows) + separator)
        files.append(file)
    return files


def answers_up_to(entries, last):
    """The entries of rows up to the last that is the same; of text, those whose whole line came before."""
    lines = sum(letter == "\n" for letter in letters(0, SAME))
    return [entry for entry in entries if (entry["sample"] <= last if "sample" in entry else entry["line"] <= lines)]


@pytest.mark.parametrize(
    "kind",
    slow_but(
        KINDS,
        "rows with times",
        "rows with a plan",
        "rows ahead by windows",
        "classes",
        "keys",
        "keys that share, three ahead",
        "lines",
    ),
)
def test_no_training_metrics_or_predictions_depend_on_later_rows(kind, tmp_path):
    data, header, options = KINDS[kind]
    # A symbol is predicted together with the next one, which is its target.
    last, found = SAME if header else SAME - 1, []
    for file in two_pasts_alike(tmp_path, data, header):
        out = tmp_path / f"run {file.stem}"
        options = (*options, "--metrics-every", 100, "--predictions", "file", "--quiet")
        assert norewind("train", file, "--out", out, *options) == 0
        lines = [{**line, "seconds": None} for line in read_log(out / "metrics.jsonl")]
        entries = read_log(out / "predictions.jsonl")
        found.append(([line for line in lines if line["samples"] <= last], answers_up_to(entries, last)))
        assert len(entries) > len(found[-1][1]) > 50
        assert len(lines) > len(found[-1][0]) == 3
    assert found[0] == found[1]


@pytest.mark.parametrize("method", slow_but(["auto", "uoro", "uoro:window=4"], "auto"))
@pytest.mark.parametrize("horizon", [0, 1, 3])
def test_a_class_is_named_once_it_has_appeared(method, horizon, tmp_path):
    # At first there is only one class, then many more, all in one chunk.
    came = ["a"] * 8 + [chr(ord("b") + row % 19) for row in range(112)]
    values = np.random.default_rng(0).normal(size=len(came))
    rows = [f"{value:.3f},{name}" for value, name in zip(values, came, strict=True)]
    (tmp_path / "rows.csv").write_text("x,c\n" + "\n".join(rows) + "\n")
    network = () if method == "auto" else (*NETWORK, method)
    options = ("--loss", "classes", "--targets", "c", "--horizon", horizon, *network, "--predictions", "file")
    assert norewind("train", tmp_path / "rows.csv", "--out", tmp_path / "run", *options, "--quiet") == 0
    unnamed = 0
    for entry in read_log(tmp_path / "run" / "predictions.jsonl"):
        row = entry["sample"]
        if "forecast" in entry:
            names = entry["forecast"].values() if horizon == 3 else [entry["forecast"]]
            unnamed += "(another)" in names
            assert {*names} <= {*came[:row], "(another)"}
        if "prediction" in entry:
            unnamed += entry["prediction"] == "(another)"
            assert entry["prediction"] in [*came[: row - 1], "(another)"]
        # The row's own class is named immediately, if it is one of the first sixteen.
        assert entry.get("target", came[row - 1]) == (came[row - 1] if came[row - 1] < "q" else "(another)")
    assert unnamed


def test_a_character_is_named_once_it_has_appeared(tmp_path):
    text = "ab" * 10 + "".join(map(chr, range(ord("c"), ord("c") + 100)))
    (tmp_path / "text").write_text(text)
    network = (*NETWORK, "uoro:window=4", "--metrics-every", 1000)  # one chunk
    options = ("--format", "text", "--alphabet-size", 110, *network, "--predictions", "file")
    assert norewind("train", tmp_path / "text", "--out", tmp_path / "run", *options, "--quiet") == 0
    entries = read_log(tmp_path / "run" / "predictions.jsonl")
    assert all(entry["prediction"] in [*text[: entry["sample"]], "\N{REPLACEMENT CHARACTER}"] for entry in entries)
    assert all(entry["symbol"] == text[entry["sample"]] for entry in entries)
    assert any(entry["prediction"] == "\N{REPLACEMENT CHARACTER}" for entry in entries)


@pytest.mark.parametrize("learn", [(), ("--learn",)])
@pytest.mark.parametrize("kind", slow_but([kind for kind in KINDS if "keys" not in kind], "rows ahead by windows"))
def test_no_result_of_predict_depends_on_later_rows(kind, learn, tmp_path, capsys):
    data, header, options = KINDS[kind]
    first, second = two_pasts_alike(tmp_path, data, header)
    (tmp_path / f"past{first.suffix}").write_text((f"{header}\n" if header else "") + "\n".join(data(3, SAME)) + "\n")
    assert norewind("train", tmp_path / f"past{first.suffix}", "--out", tmp_path / "run", *options, "--quiet") == 0
    found = []
    for file in (first, second):
        assert norewind("predict", tmp_path / "run", file, *learn) == 0
        entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        found.append(answers_up_to(entries, SAME if header else SAME - 1))
        assert len(entries) > len(found[-1]) > 50
    assert found[0] == found[1]


def rows_of(file):
    header, *lines = file.read_text().splitlines()
    for line in lines:
        values = dict(zip(header.split(","), line.split(","), strict=True))
        yield {name: value if name == "c" else float(value or "nan") for name, value in values.items()}


@pytest.mark.parametrize(
    ("data", "header", "make", "ask"),
    [
        (numbers, "a,b", lambda: Forecaster(), "predict_one"),
        (numbers, "a,b", lambda: Forecaster(horizon=3), "predict_one"),
        (numbers, "a,b", lambda: AnomalyDetector(), "score_one"),
        (classes, "x,c", lambda: Classifier("c"), "predict_proba_one"),
        (classes, "x,c", lambda: Classifier("c", horizon=3), "predict_proba_one"),
    ],
)
def test_no_answer_of_a_model_depends_on_later_rows(data, header, make, ask, tmp_path):
    found = []
    for file in two_pasts_alike(tmp_path, data, header):
        model, answers = make(), []
        for row in rows_of(file):
            answers.append(getattr(model, ask)(row))
            model.learn_one(row)
        lines = [{**line, "seconds": None} for line in model.lines if line["samples"] <= SAME]
        fitted = make().fit(rows_of(file))
        also = [{**line, "seconds": None} for line in fitted.lines if line["samples"] <= SAME]
        found.append(json.dumps([answers[:SAME], lines, also]))
        assert lines
        assert answers[SAME]
    assert found[0] == found[1]


def test_no_backtest_depends_on_later_rows(tmp_path):
    pandas = pytest.importorskip("pandas")
    found = []
    for file in two_pasts_alike(tmp_path, numbers, "a,b"):
        model = Forecaster("a", horizon=3, method="snap1", cell="rnn", hidden=2)
        made = model.backtest(pandas.read_csv(file), origins=[120, 300, SAME, SAME + 9]).frame
        found.append(made.drop(columns="a actual").set_index("origin"))
    pandas.testing.assert_frame_equal(*(frame.loc[:SAME] for frame in found))
    assert len(found[0].loc[:SAME]) == 9
    assert not found[0].loc[SAME + 9 :].equals(found[1].loc[SAME + 9 :])
