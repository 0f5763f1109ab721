"""Settings: options, files and defaults."""

import bz2

import pytest
from run_folders import assert_rejected, norewind

from norewind.training.folder import read_settings
from norewind.training.settings import Settings, SettingsError, read_toml

pytestmark = pytest.mark.usefixtures("shared_programs")


def test_options_override_the_file_and_the_file_overrides_the_defaults(whole, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('method = "uoro"\nhidden = 5\nrate = 1\nstandardise = false\ninputs = ["sun"]\nsamples = 0\n')
    code = norewind(
        *("train", whole / "table.csv", "--config", config, "--rate", 0.5, "--out", tmp_path / "run", "--quiet")
    )
    assert code == 0
    settings = read_settings(tmp_path / "run")
    assert (settings.hidden, settings.rate, settings.standardise, settings.inputs) == (5, 0.5, False, ("sun",))
    assert (settings.cell, settings.format) == ("gru", "csv")
    # The saved settings reproduce the run.
    assert (
        norewind("train", "--config", tmp_path / "run" / "settings.toml", "--out", tmp_path / "again", "--quiet") == 0
    )
    assert read_settings(tmp_path / "again") == settings


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"hiden = 5", "there is no setting 'hiden': choose from source, format"),
        (b"hidden = 5.5", "hidden is 5.5: Expected int, got float"),
        (b"hidden = true", "hidden is True: Expected int, got bool"),
        (b'rate = "fast"', "rate is 'fast': Expected float, got str"),
        (b"rate = inf", "rate is inf, but it must be a finite number"),
        (b"stop_if_diverged = 1", "stop_if_diverged is 1: Expected bool, got int"),
        (b'cell = "magic"', "cell is 'magic', but it must be one of alif, deltanet, diagonal_gru, elman"),
        (b"cell = 3", "cell is 3, but it must be one of alif, deltanet, diagonal_gru, elman"),
        (b'inputs = "sun"', "inputs is 'sun': Expected array, got str"),
        (b"inputs = [1]", "inputs is [1]: Expected str, got int"),
        (b"[hidden]\nsize = 3", "hidden is {'size': 3}: Expected int, got object"),
        (b"hidden = ", "not a valid TOML file"),
        (b"\xff", "not a valid TOML file"),
    ],
)
def test_a_config_that_is_wrong_is_rejected_with_an_explanation(whole, tmp_path, capsys, content, words):
    (tmp_path / "config.toml").write_bytes(content)
    code = norewind("train", whole / "text", "--config", tmp_path / "config.toml", "--out", tmp_path / "run")
    assert_rejected(capsys, code, f"{tmp_path / 'config.toml'}: {words}")
    assert not (tmp_path / "run").exists()


def test_a_missing_config_is_rejected(whole, tmp_path, capsys):
    code = norewind("train", whole / "text", f"--config={tmp_path / 'none.toml'}")
    assert_rejected(capsys, code, "none.toml: cannot be read: No such file")


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
def test_impossible_options_are_rejected_with_an_explanation(whole, tmp_path, capsys, options, words):
    assert_rejected(capsys, norewind("train", whole / "text", "--out", tmp_path / "run", *options), words)


def test_a_source_is_needed(capsys):
    assert_rejected(capsys, norewind("train"), "no source: name a file, - for standard input, or a task")


@pytest.mark.parametrize(
    "options", [("hidden", 10**18), ("hidden", 10**23), ("layers", 3000), ("alphabet_size", 10**9)]
)
def test_numbers_beyond_any_use_are_rejected(options):
    with pytest.raises(SettingsError, match=f"{options[0]} is {options[1]}: "):
        Settings(**dict([options]))


DIGITS = "9" * 5_000


@pytest.mark.parametrize("text", [f"hidden = {DIGITS}", f"inputs = {'[' * 5_000}"], ids=["digits", "brackets"])
def test_settings_that_exceed_what_python_reads(tmp_path, text):
    (tmp_path / "settings.toml").write_text(text)
    with pytest.raises(SettingsError, match="not a valid TOML file"):
        read_toml(tmp_path / "settings.toml")


def test_settings_from_an_editor_that_writes_a_byte_order_mark(tmp_path):
    (tmp_path / "settings.toml").write_bytes(b"\xef\xbb\xbfhidden = 7\r\n")
    assert read_toml(tmp_path / "settings.toml").hidden == 7


@pytest.mark.parametrize("name", ["rate", "alpha", "clip"])
def test_rates_that_overflow_are_rejected(name):
    with pytest.raises(SettingsError, match=f"{name} is 1e[+]308"):
        Settings(**{name: 1e308})


@pytest.mark.parametrize("entry", [{"period": 10**12}, {"shards": 10**12}, {"resident": 10**18}], ids=str)
def test_more_numbers_beyond_any_use(entry):
    ((name, value),) = entry.items()
    with pytest.raises(SettingsError, match=f"{name} is {value}: "):
        Settings(**entry)


@pytest.mark.parametrize("option", ["--inputs", "--targets", "--copy"])
@pytest.mark.parametrize("name", ["rows.csv.bz2", "rows.txt"])
def test_columns_of_a_stream_without_columns_are_rejected(tmp_path, capsys, name, option):
    (tmp_path / name).write_bytes(bz2.compress(b"level\n1\n2\n") if name.endswith("bz2") else b"level 1 2")
    code = norewind("train", tmp_path / name, option, "level", "--out", tmp_path / "run")
    assert_rejected(capsys, code, "applies only to rows, and ", "is read as bytes", "bzcat FILE.bz2")
    assert not (tmp_path / "run").exists()
