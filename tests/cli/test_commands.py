"""The command line."""

import logging
import re
import subprocess
import sys

import pytest

import norewind
from norewind.cli import COMMANDS, main
from norewind.tasks import anbn, distant_brackets


def test_generate_writes_the_text(capsys):
    main(["generate", "anbn", "--samples", "2.5e3", "--seed", "4"])
    task = anbn(1, 32)
    assert capsys.readouterr().out == task.decode(next(task.chunks(4, 2500)))


def test_generate_takes_the_tasks_own_parameters(capsys):
    main(["generate", "brackets", "--samples", "200001", "--parameters", "2", "3", "5"])
    task = distant_brackets(2, 3, 5)
    assert capsys.readouterr().out == task.decode(next(task.chunks(0, 200_001)))


def test_wrong_arguments_are_rejected(capsys):
    with pytest.raises(SystemExit):
        main(["generate", "nonsense"])
    assert "nonsense" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "anbn", "--samples", "-5"], "must be at least 0"),
        (["generate", "anbn", "--parameters", "5", "2"], "1 <= k <= l"),
        (["generate", "anbn", "--parameters", "1", "2", "3"], "arguments"),
    ],
)
def test_impossible_numbers_are_rejected_in_one_sentence(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 1
    assert re.search(words, capsys.readouterr().err)


def test_matplotlib_prints_nothing_about_its_fonts(capsys):
    """Without a writable home folder, Matplotlib would print five lines with every command."""
    logging.getLogger("matplotlib").setLevel(logging.NOTSET)
    main(["generate", "anbn", "--samples", "3"])
    assert not logging.getLogger("matplotlib").isEnabledFor(logging.WARNING)


def test_help_does_not_wait_for_jax():
    code = (
        "import sys; from norewind.cli import main\n"
        "try: main(['compare', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('jax' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "--methods" in result.stdout


def test_a_closed_pipe_is_no_error():
    """`norewind generate anbn | head -1` ends silently."""
    command = [sys.executable, "-m", "norewind", "generate", "anbn", "--samples", "3e6"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0


def test_every_command_has_help(capsys):
    for name in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert "usage: norewind " + name in capsys.readouterr().out


def test_the_public_names_are_all_there():
    for name in norewind.__all__:
        assert getattr(norewind, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = norewind.nonsense
