"""cdc.secret: what a command prints."""

import os
import sys
from pathlib import Path

import pytest

from cdc import secret
from cdc.model.errors import ConfigurationError, Unavailable
from cdc.secret import secret_from_command
from tests.databases import until


def printed(program: str, *arguments: str) -> str:
    """What a program in Python gives as secret."""
    command = [sys.executable, "-S", "-c", program, *arguments]
    return secret_from_command(command, setting="source.password_command").get_secret_value()


def test_the_line_that_a_command_prints_is_the_secret() -> None:
    assert printed("print(' an ö p\\'ss \"word ')") == " an ö p'ss \"word "


def test_arguments_reach_the_command_as_they_are() -> None:
    """No shell reads them."""
    assert printed("import sys; print(sys.argv[1])", "$HOME; echo '*'") == "$HOME; echo '*'"


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("import sys; print('s3cret'); print('s3cret', file=sys.stderr); sys.exit(7)", "failed with exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", "failed with exit code -9"),
        ("pass", "printed nothing"),
        ("print()", "printed nothing"),
        ("print('warning: s3cret\\nanother')", "printed more than one line of text"),
        ("import os; os.write(1, b's3cret\\xff')", "printed what is no text in UTF-8"),
    ],
)
def test_a_command_that_fails_is_told_without_what_it_said(
    program: str, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Unavailable, match=told) as caught:
        printed(program)
    assert caught.value.message.startswith("the command of source.password_command")
    assert "s3cret" not in f"{caught.value!r} {caught.value} {caught.value.__cause__!r} {capfd.readouterr()}"


def test_a_command_that_takes_too_long_ends_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret, "_COMMAND_S", 2.0)
    child = tmp_path / "child"
    program = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '600']);"
        " open(sys.argv[1], 'w').write(str(p.pid)); p.wait()"
    )
    with pytest.raises(Unavailable, match="took longer than 2 s and was killed"):
        printed(program, str(child))
    until(lambda: not is_running(int(child.read_text())))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("command", [["/nowhere/print-password"], [os.devnull], ["printf", "a\0b"]])
def test_a_command_that_isnt_there_is_the_operators_turn(command: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"the command of login\.password_command can't be run"):
        secret_from_command(command, setting="login.password_command")
