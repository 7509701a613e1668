"""Exit codes, and what goes where."""

import errno
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from rich.table import Table
from rich.text import Text

from cdc.model.errors import ConfigurationError, Fenced
from jobs.driver import TAKEN_OVER
from lockstep.console import EXIT_TAKEN_OVER, exit_code_of
from lockstep.terminal import out


def _raise(error: BaseException):
    raise error


def test_a_wrong_configuration_is_two_and_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    code = exit_code_of(lambda: _raise(ConfigurationError("bad file", problems=["a.b: wrong"], hint="mend it")))
    printed = capsys.readouterr()
    assert code == 2
    assert printed.err == "error: bad file\n  a.b: wrong\nmend it\n"
    assert printed.out == ""


def test_a_process_whose_place_was_taken_has_a_code_of_its_own() -> None:
    assert exit_code_of(lambda: _raise(Fenced("another capture has taken over"))) == EXIT_TAKEN_OVER == TAKEN_OVER


def test_a_file_that_the_system_refuses_is_named_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert exit_code_of((tmp_path / "file" / "below").mkdir) == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/file/below: Not a directory\n")


def test_a_full_disk_is_told_without_a_traceback() -> None:
    code = "import sys; from lockstep.console import exit_code_of; sys.exit(exit_code_of(lambda: print('result')))"
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: standard output, or a file in ")
    assert ended.stderr.endswith(": No space left on device\n")


def test_a_file_that_the_disk_has_no_room_for_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(lambda: _raise(OSError(errno.ENOSPC, "No space left on device", "lockstep.toml"))) == 1
    assert capsys.readouterr().err == "error: lockstep.toml: No space left on device\n"


def test_what_the_database_refuses_is_told_without_a_traceback_and_without_a_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code_of(lambda: _raise(psycopg.errors.InsufficientPrivilege("permission denied for table t"))) == 1
    assert exit_code_of(lambda: _raise(psycopg.errors.CharacterNotInRepertoire("invalid byte sequence: 0xaa"))) == 1
    assert exit_code_of(lambda: _raise(psycopg.OperationalError("server closed the connection unexpectedly"))) == 1
    told = capsys.readouterr().err
    assert "error: PostgreSQL refused: permission denied for table t\n" in told
    assert "error: PostgreSQL refused: CharacterNotInRepertoire, SQLSTATE 22021\n" in told
    assert "error: PostgreSQL is not available: server closed the connection unexpectedly\n" in told


def test_a_question_that_the_database_cannot_read_is_a_bug() -> None:
    with pytest.raises(psycopg.errors.SyntaxError):
        exit_code_of(lambda: _raise(psycopg.errors.SyntaxError("syntax error")))


def test_an_unanswered_call_of_our_own_is_a_bug() -> None:
    with pytest.raises(ConnectionRefusedError):
        exit_code_of(lambda: _raise(ConnectionRefusedError(111, "refused")))


def test_square_brackets_and_colons_of_a_name_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table()
    table.add_column("name")
    table.add_row("a[/b] [bold]c :key: d")
    out.file = sys.stdout
    try:
        out.print(table)
        out.print("[/x]")
    finally:
        out.file = sys.__stdout__  # type: ignore[assignment]
    printed = capsys.readouterr().out
    assert "a[/b] [bold]c :key: d" in printed
    assert "[/x]" in printed


_FORGED = "t\n2026-01-01 00:00:00,000 ERROR all is lost\x1b[2J"


def test_no_text_of_others_begins_a_record_of_the_log_or_steers_a_terminal() -> None:
    code = (
        "import logging; from lockstep.console import log_to_stderr, say; log_to_stderr();"
        f"logging.getLogger('x').warning('table=%s', {_FORGED!r}); say({_FORGED!r})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second, *said = ended.stderr.splitlines()
    assert first.endswith(" WARNING table=t")
    assert second == r"    2026-01-01 00:00:00,000 ERROR all is lost\u001b[2J"
    assert said == ["t", r"2026-01-01 00:00:00,000 ERROR all is lost\u001b[2J"]


def test_tables_and_texts_show_controls_of_others() -> None:
    shown = Table("name")
    shown.add_row("a\x1b[31mb\x9bc")
    with out.capture() as captured:
        out.print(shown, Text("f\x1bg"), "h\x1bi")
    printed = captured.get()
    assert all(text in printed for text in (r"a\u001b[31mb\u009bc", r"f\u001bg", r"h\u001bi"))
