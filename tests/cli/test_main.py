"""What the command line owes everyone: one sentence, the right exit code, nothing imported in vain."""

import io
import subprocess
import sys
import types

import pytest

from lib_lora.cli import main as cli
from lib_lora.errors import FileFormatError, UsageError


@pytest.fixture
def command(monkeypatch):
    """Return a function that puts a command named `inspect` in place whose work is the given function."""

    def put(work):
        module = types.ModuleType("lib_lora.cli.inspect")
        module.add_parser = lambda commands: commands.add_parser("inspect")
        module.run = lambda args: work()
        monkeypatch.setitem(sys.modules, "lib_lora.cli.inspect", module)

    return put


def raising(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (FileFormatError("The file is cut short."), 1, "The file is cut short.\n"),
        (UsageError("There is no size 0."), 2, "There is no size 0.\n"),
        (
            PermissionError(13, "Permission denied", "out.png"),
            1,
            "The system refused 'out.png': Permission denied.\n",
        ),
        (OSError("The pipe is closed."), 1, "The pipe is closed.\n"),
        (KeyboardInterrupt(), 130, "Stopped.\n"),
    ],
)
def test_an_error_is_one_sentence_and_a_code(command, capsys, error, code, sentence):
    command(raising(error))
    assert cli.main(["inspect"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


def test_the_unforeseen_is_logged_with_its_traceback(command, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(cli.tempfile, "tempdir", str(tmp_path))
    command(raising(ZeroDivisionError("by zero")))
    assert cli.main(["inspect"]) == 1
    (log,) = tmp_path.iterdir()
    assert str(log) in capsys.readouterr().err
    assert "ZeroDivisionError: by zero" in log.read_text()


def test_what_the_output_cannot_encode_is_written_by_its_number(command, monkeypatch):
    """A pipe on Windows, and a terminal of another language, hold no Japanese name."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="cp1252"))
    command(lambda: sys.stdout.write("日é") and 0)
    assert cli.main(["inspect"]) == 0
    sys.stdout.flush()
    assert raw.getvalue() == b"\\u65e5\xe9"


def test_the_commands_own_code_is_returned(command):
    command(lambda: 3)
    assert cli.main(["inspect"]) == 3


def test_an_unknown_command_names_the_nearest(capsys):
    assert cli.main(["inspekt"]) == 2
    assert "'inspect'" in capsys.readouterr().err


def test_a_wrong_option_is_wrong_usage(command, capsys):
    command(lambda: 0)
    assert cli.main(["inspect", "--nothing-like-it"]) == 2
    assert "--nothing-like-it" in capsys.readouterr().err


def test_help_lists_every_command_and_imports_no_library():
    script = (
        "import sys; from lib_lora.cli.main import main; code = main(['--help']);"
        "assert not {'torch', 'diffusers'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(f"\n  {name} " in done.stdout for name in cli.COMMANDS)
