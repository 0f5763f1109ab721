"""Options out of range and unusable files are rejected with an explanation."""

import pytest
from run_folders import assert_rejected, norewind

from norewind.cli.common import as_options, explain_errors
from norewind.cli.serve_command import open_listener
from norewind.cli.study_commands import generate
from norewind.cli.train_command import with_config
from norewind.core.checks import ModelError
from norewind.streams import RowStream, Source, StreamError
from norewind.training.settings import SettingsError

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.mark.parametrize(
    "command",
    [
        ("generate", "anbn", "--seed", "-1"),
        ("sample", "RUN", "--length", 10**13),
        ("sample", "RUN", "--temperature", "1e-320"),
        ("compress", "/dev/zero"),
    ],
    ids=lambda command: command[0] + str(command[-1]),
)
def test_strange_options(whole, capsys, command):
    code = norewind(*(whole / "bytes" if word == "RUN" else word for word in command))
    assert_rejected(capsys, code, "must be" if command[0] != "compress" else "it may have no end")


@pytest.mark.parametrize(
    ("error", "words"),
    [(MemoryError("Unable to allocate 9 TB"), "not enough memory: Unable"), (ModelError("snap1: no"), "snap1: no")],
)
def test_too_little_memory_and_a_model_that_a_method_rejects(capsys, error, words):
    with pytest.raises(SystemExit), explain_errors("norewind train"):
        raise error
    assert_rejected(capsys, 1, words)


@pytest.mark.parametrize("host", ["a..b", "x" * 300, "\udce9"])
def test_a_host_that_does_not_exist(host, tmp_path):
    (tmp_path / "token").write_text("x" * 20)
    with pytest.raises(SettingsError, match="cannot listen on"), open_listener(host, 0, tmp_path / "token"):
        pass


def test_a_token_that_is_not_text(tmp_path):
    (tmp_path / "token").write_bytes(b"\xff" * 20)
    with pytest.raises(SettingsError, match="the token must have"), open_listener("127.0.0.1", 0, tmp_path / "token"):
        pass


def test_config_without_a_file_names_the_program(capsys):
    with pytest.raises(SystemExit):
        with_config(["train", "x", "--config"])
    assert capsys.readouterr().err.startswith("usage: norewind train")


def test_an_endless_text_is_rejected():
    for samples in ("inf", "nan", "-1"):
        with pytest.raises(SettingsError, match="must be (at least 0|finite)"):
            generate("anbn", samples=float(samples))


def test_a_hint_names_the_option_on_the_command_line_and_the_setting_in_python(tmp_path, capsys):
    table = tmp_path / "table.csv"
    table.write_text("a;b\n1;2\n3;4\n")
    with pytest.raises(StreamError, match='pass delimiter=";"'):
        RowStream(Source(table, final=True))
    assert_rejected(capsys, norewind("train", table, "--out", tmp_path / "run"), "pass --delimiter ';'")


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            'only_steps= or horizon=24 (method="uoro:window=16")',
            "--only-steps or --horizon 24 (--method uoro:window=16)",
        ),
        ('dni:rate=8, nonfinite="skip", hidden=x', 'dni:rate=8, nonfinite="skip", hidden=x'),
    ],
)
def test_only_settings_become_options(message, shown):
    assert as_options(message) == shown
