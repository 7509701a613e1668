"""cdc.secret: what a command prints."""

import os
import sys
from pathlib import Path

import pytest

from cdc import secret
from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.secret import secret_from_command, while_passwords_change
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


# Hangs as long as there is a file.
_HANGS = """
import os, sys, time
while os.path.exists(sys.argv[1]):
    time.sleep(0.01)
print("word")
"""


def test_a_command_that_hangs_is_left_alone_for_a_while_and_the_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that waits for it would else stand still for most of the time."""
    monkeypatch.setattr(secret, "_LEFT_ALONE_S", (1000.0,))
    hangs = tmp_path / "hangs"
    hangs.touch()
    with monkeypatch.context() as impatient:
        impatient.setattr(secret, "_COMMAND_S", 0.5)
        with pytest.raises(Unavailable, match=r"was killed\n"):
            printed(_HANGS, str(hangs))
    hangs.unlink()
    with pytest.raises(Unavailable, match=r"it is run again in (1000|9\d\d) s") as caught:
        printed(_HANGS, str(hangs))
    assert caught.value.retry_after_s > 500
    assert printed(_HANGS, str(tmp_path / "nowhere")) == "word"


def test_a_command_that_hung_is_run_again_and_what_it_did_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret, "_LEFT_ALONE_S", (0.0, 1000.0))
    hangs = tmp_path / "hangs"

    def left_alone_s() -> float:
        """After one more run that hangs."""
        hangs.touch()
        with monkeypatch.context() as impatient:
            impatient.setattr(secret, "_COMMAND_S", 0.5)
            with pytest.raises(Unavailable) as caught:
                printed(_HANGS, str(hangs))
        hangs.unlink()
        return caught.value.retry_after_s

    for _ in range(2):
        assert left_alone_s() == 0, "the first of a row"
        assert printed(_HANGS, str(hangs)) == "word"
    assert left_alone_s() == 0
    assert left_alone_s() > 500, "the second of a row"


_COMMAND = ("print-password",)


@pytest.mark.parametrize("method", ["password", "PAM", "LDAP", "RADIUS", "SASL"])
def test_a_password_that_a_command_has_printed_may_be_taken_later(method: str) -> None:
    refused = LockstepError(f'FATAL:  {method} authentication failed for user "b"', hint="look")
    ours = while_passwords_change(refused, _COMMAND, setting="source.password_command")
    assert isinstance(ours, Unavailable)
    assert ours.message.startswith("the password that source.password_command prints isn't taken: FATAL:")
    assert while_passwords_change(refused, None, setting="source.password_command") is refused


@pytest.mark.parametrize("method", ["GSSAPI", "SSPI", "Peer", "Ident", "certificate"])
def test_a_refusal_that_no_password_is_the_reason_of_stays_one(method: str) -> None:
    refused = LockstepError(f'FATAL:  {method} authentication failed for user "b"', hint="look")
    assert while_passwords_change(refused, _COMMAND, setting="source.password_command") is refused


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("command", [["/nowhere/print-password"], [os.devnull], ["printf", "a\0b"]])
def test_a_command_that_isnt_there_is_the_operators_turn(command: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"the command of login\.password_command can't be run"):
        secret_from_command(command, setting="login.password_command")
