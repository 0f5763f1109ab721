"""The service's answer to a row equals what `norewind predict` reports for that row."""

import csv
import io

import pytest
from run_folders import norewind

pytest.importorskip("uvicorn")
from servers import table

from norewind import Forecaster
from norewind.forecasting.predict import predictions
from norewind.serving.bodies import RequestError
from norewind.serving.queues import IncomingRows
from norewind.serving.row_model import SeriesModel
from norewind.serving.service import Service
from norewind.streams.stream import BadRow
from norewind.training.folder import RunFolder, saved_run
from norewind.training.hooks import Hooks
from norewind.training.settings import Settings, SettingsError
from norewind.training.train_folder import train_folder

NAMES = ["ts", "mode", "wind", "power"]
CASES = {
    "horizons": ("--method", "snap1", "--only-steps", "1", "3", "--inputs", *NAMES, "--targets", "power"),
    "window": (
        "--method",
        "uoro:window=3",
        "--loss",
        "gaussian",
        "--horizon",
        "2",
        "--missing",
        "mean",
        "--copy",
        "ts",
    ),
    "classes": ("--method", "snap1", "--loss", "classes", "--targets", "mode", "--horizon", "0"),
    "auto": (),
}


def row(number: int) -> dict:
    return {
        "ts": f"2026-01-0{1 + number // 24 % 9}T{number % 24:02}:00",
        "mode": ["low", "high, very", 'a "b"'][number % 3],
        "wind": number % 5 + 0.25,
        "power": (number * 7 % 11) / 3,
    }


def text(rows: list[dict], header: bool = False) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, NAMES, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def train_on_61(folder, case):
    """There is one row more than a multiple of the window, so that the last window is partial."""
    source, out = folder / "rows.csv", folder / "run"
    options = CASES[case] if case == "auto" else (*CASES[case], "--hidden", "4")
    source.write_text(text([row(number) for number in range(61)], header=True))
    assert norewind("train", source, "--out", out, "--quiet", *options) == 0
    return source, model_of(out)


def test_with_windows_and_deviations_and_lines_as_they_are_read(tmp_path):
    source, model = train_on_61(tmp_path, "window")
    check_answers(source, model)
    for number in range(30, 36):
        assert model.stream.read_back(row(number))[1].decode() == text([row(number)])
    assert model.stream.read_back({"power": 3}) == (dict(zip(NAMES, ("", "", "", "3"), strict=True)), b",,,3\n")
    for bad in ({"power": "x"}, {"wind": [1]}, {"mode": "a\nb"}, {"power": 1e39}, {"mode": "\ud800"}):
        with pytest.raises(BadRow):
            model.stream.read_back(bad)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["horizons", "classes", "auto"])
def test_with_horizons_classes_and_the_default(case, tmp_path):
    check_answers(*train_on_61(tmp_path, case))


def check_answers(source, model):
    """The same row is answered the same by the service and by `norewind predict`."""
    new = [row(61), {**row(61), "mode": "never seen", "wind": None}, {"wind": 3, "power": 1.5}]
    answers = model.answers([model.stream.read_back(one)[0] for one in new])
    assert len(answers) == 3
    settings, saved = saved_run(source.parent / "run")
    start = source.read_text()
    for answer, one in zip(answers, new, strict=True):
        source.write_text(start + text([one]))
        expected = [entry for part in predictions(settings, saved) for entry in part][-1]
        expected.pop("line")
        assert answer.keys() == expected.keys()
        assert answer["sample"] == 62
        # `predict` numbers rows from its own start.
        found, expected = flat(relative(answer)), flat(relative(expected))
        words = [name for name, value in expected.items() if isinstance(value, str)]
        assert [found.pop(name) for name in words] == [expected.pop(name) for name in words]
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5, nan_ok=True)


def relative(entry: dict) -> dict:
    here, ahead = entry["sample"], entry.get("for", 0)
    ahead = {name: number - here for name, number in ahead.items()} if isinstance(ahead, dict) else ahead - here
    return {**entry, "sample": 0, **({"for": ahead} if "for" in entry else {})}


def flat(entry) -> dict:
    """Flatten nested entries, with NaN for None."""
    if not isinstance(entry, dict):
        return {"": float("nan") if entry is None else entry}
    return {f"{name}.{inner}": value for name, part in entry.items() for inner, value in flat(part).items()}


def model_of(folder) -> SeriesModel:
    """Provide the model of a run folder, as in the service."""
    begun, incoming = [], IncomingRows(10)
    incoming.close()
    settings, _ = saved_run(folder)
    with RunFolder(folder) as held:
        hooks = Hooks(begin=lambda training: begun.append(SeriesModel(training, settings)))
        train_folder(settings, held, continues=True, source=incoming, hooks=hooks)
    return begun[0]


def test_a_row_that_is_nested_too_deeply_is_rejected(run):
    row = {"wind": 1.0, "power": 1.0}
    for _ in range(100_000):
        row = {"wind": 1.0, "power": 1.0, "more": row}
    with pytest.raises(BadRow, match="too deeply"):
        model_of(run).stream.read_back(row)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings("book.txt"), "predicts symbols"),
        (Settings("rows.csv", key="sensor", share=True), "one model for all keys"),
    ],
)
def test_runs_that_cannot_be_served_are_rejected_with_an_alternative(tmp_path, monkeypatch, settings, words):
    monkeypatch.setattr("norewind.serving.service.saved_run", lambda folder: (settings, None))
    with pytest.raises(SettingsError, match=f"{words}.*norewind watch"):
        Service(tmp_path)


def test_a_run_that_diverges_answers_from_its_last_checkpoint(run, diverge):
    service = Service(run)
    before = service.model.answers(table(1, 300))

    diverge(350)
    assert service.learn(table(200, 300), [None] * 200) == 500
    service._thread.join(60)
    assert "the run diverged: at sample 350" in service.problem
    with pytest.raises(RequestError, match="no longer learns"):
        service.learn(table(1), [None])
    assert service.model.answers(table(1, 300)) == before
    assert service.durable == 300


def test_a_run_whose_loss_is_suspicious_does_not_replace_the_state_to_fall_back_to(run, monkeypatch):
    served = Service(run)
    kept = served.model.kept
    monkeypatch.setattr(served.training, "is_healthy", lambda: False)
    assert served.learn(table(5, 300), [None] * 5) == 305
    served.close()
    assert served.durable == 305
    assert served.model.kept is kept


def test_answers_change_only_when_what_was_learned_is_published():
    """The default method changes its run in place, while the event loop answers from the state before."""
    learning = Forecaster("power", inputs="wind", budget=1)
    for one in table(60):
        learning.learn_one(one)
    model = SeriesModel(learning.training, learning.settings)
    before = model.answers(table(1, 60))
    learning.learn_one(table(1, 60)[0])
    assert model.answers(table(1, 60)) == before
    model.publish()
    assert model.answers(table(1, 60)) != before
