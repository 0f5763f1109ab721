"""Settings: options, files and defaults."""

import pytest
from run_folders import assert_refused, norewind

from norewind.runs.folder import settings_of


def test_options_go_before_the_file_and_the_file_before_the_defaults(whole, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('method = "uoro"\nhidden = 5\nrate = 1\nstandardise = false\ninputs = ["sun"]\nsamples = 0\n')
    code = norewind(
        *("train", whole / "table.csv", "--config", config, "--rate", 0.5, "--out", tmp_path / "run", "--quiet")
    )
    assert code == 0
    settings = settings_of(tmp_path / "run")
    assert (settings.hidden, settings.rate, settings.standardise, settings.inputs) == (5, 0.5, False, ("sun",))
    assert (settings.cell, settings.format) == ("gru", "csv")
    # The settings of a run make the same run once more.
    assert (
        norewind("train", "--config", tmp_path / "run" / "settings.toml", "--out", tmp_path / "again", "--quiet") == 0
    )
    assert settings_of(tmp_path / "again") == settings


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"hiden = 5", "there is no setting 'hiden': choose from source, format"),
        (b"hidden = 5.5", "hidden is 5.5: Expected int, got float"),
        (b"hidden = true", "hidden is True: Expected int, got bool"),
        (b'rate = "fast"', "rate is 'fast': Expected float, got str"),
        (b"rate = inf", "rate is inf, but it must be a finite number"),
        (b"watch = 1", "watch is 1: Expected bool, got int"),
        (b'cell = "magic"', "cell is 'magic', but it must be one of diagonal_gru, elman"),
        (b"cell = 3", "cell is 3, but it must be one of diagonal_gru, elman"),
        (b'inputs = "sun"', "inputs is 'sun': Expected array, got str"),
        (b"inputs = [1]", "inputs is [1]: Expected str, got int"),
        (b"[hidden]\nsize = 3", "hidden is {'size': 3}: Expected int, got object"),
        (b"hidden = ", "not a TOML file"),
        (b"\xff", "not a TOML file"),
    ],
)
def test_a_config_that_is_wrong_is_refused_in_words(whole, tmp_path, capsys, content, words):
    (tmp_path / "config.toml").write_bytes(content)
    code = norewind("train", whole / "text", "--config", tmp_path / "config.toml", "--out", tmp_path / "run")
    assert_refused(capsys, code, f"{tmp_path / 'config.toml'}: {words}")
    assert not (tmp_path / "run").exists()


def test_a_config_that_is_not_there_is_refused(whole, tmp_path, capsys):
    code = norewind("train", whole / "text", f"--config={tmp_path / 'none.toml'}")
    assert_refused(capsys, code, "none.toml: cannot be read: No such file")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--hidden", 0], "hidden is 0: Expected int >= 1"),
        (["--seed", -1], "seed is -1: Expected int >= 0"),
        (["--samples", "inf"], "samples is inf"),
        (["--samples", "nan"], "samples is nan"),
        (["--rate", 0], "rate is 0.0: Expected float > 0.0"),
        (["--flush", -1], "flush is -1.0"),
        (["--delimiter", ";;"], "delimiter is ';;'"),
        (["--method", "uoro:window=0"], "window must be a whole number from 1"),
        (["--method", "dni:rate=fast"], "rate must be a number, not 'fast'"),
        (["--method", "bpdc"], "method bpdc does not work with cell gru"),
    ],
)
def test_impossible_options_are_refused_in_words(whole, tmp_path, capsys, options, words):
    assert_refused(capsys, norewind("train", whole / "text", "--out", tmp_path / "run", *options), words)


def test_a_source_is_needed(capsys):
    assert_refused(capsys, norewind("train"), "no source: name a file, - for standard input, or a task")
