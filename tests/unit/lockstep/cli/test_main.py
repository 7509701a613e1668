"""The command's entry: help, usage errors, exit codes, and what it imports."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from lockstep.cli.main import COMMANDS, app, exit_code
from lockstep.extension import installed


def _added(title: str) -> list[str]:
    """What extensions add."""
    return [command.__name__ for each in installed() for command in each.commands.get(title, ())]


GROUPS = {
    "Local servers": ["up", "status", "down", *_added("Local servers")],
    "Set up": ["init", "doctor", "package"],
    "Run": ["run", "capture", "apply", "dashboard"],
    "Operate": [
        *("lag", "wait", "tail", "state", "bundle", "verify", "rebuild", "switch", "generations"),
        *("pause", "resume", "take-out", "recover", *_added("Operate")),
        *("snapshot", "rejections", "views", "tables"),
        *(group.name for each in installed() for group in each.groups),
    ],
}


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))


ALL = dict(_commands(typer.main.get_command(app)))


def _lockstep(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lockstep", *arguments],
        capture_output=True,
        check=False,
        text=True,
        env=os.environ | {"COLUMNS": "80"},
        **options,
    )


def test_a_terminal_without_the_letters_of_a_table_gets_others(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text('{"servers": {}}')
    ended = subprocess.run(
        [sys.executable, "-m", "lockstep", "status", "--directory", str(tmp_path)],
        capture_output=True,
        check=False,
        text=True,
        env=os.environ | {"TTY_COMPATIBLE": "1", "TERM": "dumb", "PYTHONIOENCODING": "ascii"},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "| server " in ended.stdout


def test_the_groups_hold_every_command() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(
        path[0] for path in ALL if len(path) == 1
    )
    assert list(COMMANDS) == list(GROUPS)


def test_help_lists_the_commands_by_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["--help"]) == 0
    page = capsys.readouterr().out
    listed: dict[str, list[str]] = {}
    for line in page.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            listed[line[:-1]] = []
        elif line.startswith("  ") and listed:
            listed[list(listed)[-1]].append(line.split()[0])
    assert {title: names for title, names in listed.items() if title != "Options"} == GROUPS


@pytest.mark.parametrize("arguments", [(), *ALL], ids=" ".join)
def test_help_fits_80_columns_and_cuts_no_sentence(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert exit_code([*arguments, "-h"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("Usage: " + " ".join(["lockstep", *arguments]))
    assert [line for line in page.splitlines() if len(line) > 80] == []
    assert [line for line in page.splitlines() if line.endswith("...") and not line.startswith("Usage")] == []


def test_a_narrow_terminal_wraps_the_sentences_of_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert exit_code(["--help"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert [path[0] for path, command in ALL.items() if len(path) == 1 and _sentence(command) not in page] == []


def _sentence(command: Any) -> str:
    return " ".join(command.help.split(". ")[0].split("\n\n")[0].split())


def test_every_command_and_each_of_its_parameters_has_a_help() -> None:
    assert [path for path, command in ALL.items() if not command.help] == []
    assert [(path, each.name) for path, command in ALL.items() for each in command.params if not each.help] == []


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert exit_code(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"lockstep {version('lockstep')}, Python 3.")


@pytest.mark.parametrize("group", [(), ("snapshot",), ("rejections",)], ids=" ".join)
def test_without_a_command_a_group_shows_its_help_and_fails(
    group: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code([*group]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"Usage: {' '.join(['lockstep', *group])} [OPTIONS] COMMAND [ARGS]...")


MISTAKES: dict[str, tuple[list[str], str, str]] = {
    "unknown command": (["verfy"], "no such command 'verfy'. Did you mean 'verify'?", "lockstep"),
    "unknown command of a group": (["snapshot", "tabel"], "Did you mean 'table'?", "lockstep snapshot"),
    "unknown option": (["lag", "--jsom"], "no such option: --jsom (Possible options: --json)", "lockstep lag"),
    "unknown short option": (["lag", "-x"], "no such option: -x", "lockstep lag"),
    "option before the command": (["--json", "lag"], "no such option: --json", "lockstep"),
    "argument too many": (["switch", "search", "2"], "got unexpected extra argument(s) (2)", "lockstep switch"),
    "argument missing": (["rebuild"], "missing argument 'SINK'", "lockstep rebuild"),
    "option missing": (["init"], "missing option '--dsn'", "lockstep init"),
    "value missing": (["lag", "--config"], "option '--config' requires an argument", "lockstep"),
    "no number": (["wait", "--timeout", "soon"], "invalid value for '--timeout'", "lockstep wait"),
    "no time": (["apply", "search", "--from-time", "noon"], "'noon' does not match the formats", "lockstep apply"),
    "a time to come": (
        ["apply", "search", "--from-time", "9000-01-01T00:00:00"],
        "invalid value for '--from-time': nothing can be published in the future yet",
        "lockstep apply",
    ),
    "no LSN": (["apply", "search", "--from-lsn", "x"], "invalid value for '--from-lsn'", "lockstep apply"),
    "no sink to move": (["apply", "--from-lsn", "0/1"], "need the name of one sink", "lockstep apply"),
}


@pytest.mark.parametrize(("arguments", "message", "command"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_wrong_call_is_exit_code_two_and_a_few_lines_that_say_what_and_where_to_look(
    arguments: list[str], message: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    first, *_, last = printed.err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert last == f"see `{command} --help`"
    assert len(printed.err.splitlines()) <= 3


def test_the_real_command_reports_a_wrong_call_without_a_traceback() -> None:
    done = _lockstep("verfy")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: no such command 'verfy'. Did you mean 'verify'?\n"
        "usage: lockstep [OPTIONS] COMMAND [ARGS]...\n"
        "see `lockstep --help`\n"
    )


def test_a_missing_configuration_is_exit_code_two(tmp_path: Path) -> None:
    done = _lockstep("lag", "--config", str(tmp_path / "none.toml"))
    assert done.returncode == 2
    assert "doesn't exist" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["--help"], ["status", "--directory", "."]], ids=["a text", "a table"])
def test_a_reader_that_has_gone_gets_no_traceback(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text('{"servers": {}}')
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "lockstep", *words]
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, check=False, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")


def test_ctrl_c_ends_a_command_without_a_traceback(tmp_path: Path) -> None:
    configuration = tmp_path / "lockstep.toml"
    os.mkfifo(configuration)  # the command waits where it reads its configuration
    process = subprocess.Popen(
        [sys.executable, "-m", "lockstep", "doctor", "--config", str(configuration)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A shell starts what runs in its background deaf to Ctrl-C, and so everything below it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  it takes no lock
    )
    writer = _open_once_it_is_read(configuration, process)
    process.send_signal(signal.SIGINT)
    os.close(writer)  # it sees the signal now, even where it was just about to wait for bytes
    printed = process.communicate(timeout=60)
    assert (process.returncode, printed) == (130, ("", ""))


def _open_once_it_is_read(fifo: Path, process: subprocess.Popen[str]) -> int:
    while process.poll() is None:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.02)  # nobody reads it yet
    raise AssertionError(process.communicate())


@pytest.mark.parametrize(
    "modules",
    [
        "monitor.collector, monitor.settled_report, monitor.lag_table",
        "monitor.waits",
        "lockstep.watcher",
    ],
)
def test_what_is_asked_again_and_again_loads_nothing_of_what_writes(modules: str) -> None:
    """``lockstep lag`` and ``lockstep wait`` are in scripts: what they load is most of the time that they take."""
    code = f"import sys; import lockstep.config, {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    loaded = set(done.stdout.split())
    heavy = {"pyspark", "pyarrow", "sqlalchemy", "opensearchpy", "deltalake", "redis", "jobs.executor", "views.view"}
    assert loaded & heavy == set()


def test_help_imports_nothing_that_commands_need_only_when_they_run() -> None:
    code = "import sys; from lockstep.cli.main import exit_code; exit_code(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    modules = {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}
    heavy = {
        "click",
        "confluent_kafka",
        "jobs",
        "monitor",
        "psycopg",
        "pyarrow",
        "pydantic",
        "pyspark",
        "rich",
        "sinks",
    }
    assert modules & heavy == set()
