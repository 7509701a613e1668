"""Commands on a directory without servers, and what `remove` and `make clean` may delete. No server is started."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.cli.main import exit_code
from stack.errors import StackError
from stack.stack import Stack
from stack.state import Remembered, State

ROOT = Path(__file__).parents[2]


def make_stack(directory: Path) -> Path:
    """A directory as a stack leaves it whose servers are stopped."""
    for folder in ("postgres-18.3", "kafka-4.1.0", "logs"):
        (directory / folder).mkdir(parents=True)
    for log in ("postgres.log", "kafka.log", "kafka.old.log"):
        (directory / "logs" / log).touch()
    State(directory / "stack.json").put("postgres", Remembered())
    (directory / "stack.lock").touch()
    return directory


def contents(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize("command", [["down"], ["status"], ["status", "--json"]], ids=" ".join)
def test_a_mistyped_directory_is_an_error_and_stays_absent(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code([*command, "--directory", str(tmp_path / "typo")]) == 1
    printed = capsys.readouterr()
    assert printed.err == f"error: there is no stack in {tmp_path}/typo\nstart it with `lockstep up`\n"
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["down", "status", "remove"])
def test_without_the_rest_of_the_program_it_is_the_same(command: str, tmp_path: Path) -> None:
    call = [sys.executable, "-m", "stack", command, "--directory", str(tmp_path / "typo")]
    ended = subprocess.run(call, check=False, capture_output=True, text=True, cwd=ROOT)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "there is no stack in" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_directory_of_a_demo_names_that_of_its_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_stack(tmp_path / "stack")
    assert exit_code(["down", "--directory", str(tmp_path)]) == 1
    assert f"the servers are in {tmp_path}/stack\n" in capsys.readouterr().err


def test_down_says_that_nothing_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_stack(tmp_path)
    assert exit_code(["down", "--directory", str(tmp_path)]) == 0
    assert capsys.readouterr().err == f"no server ran in {tmp_path}\n"


def test_who_waits_for_another_command_says_so(tmp_path: Path) -> None:
    make_stack(tmp_path)
    with (tmp_path / "stack.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        call = [sys.executable, "-m", "lockstep", "down", "--directory", str(tmp_path)]
        with subprocess.Popen(call, stderr=subprocess.PIPE, text=True, cwd=ROOT) as waiting:
            assert waiting.stderr is not None
            assert waiting.stderr.readline().startswith("stack: another command starts or stops the servers of")
            assert waiting.poll() is None
            fcntl.flock(file, fcntl.LOCK_UN)
            assert waiting.stderr.readline() == f"no server ran in {tmp_path}\n"
    assert waiting.returncode == 0


def test_remove_needs_a_stack(tmp_path: Path) -> None:
    for folder in ("logs", "postgres-data", "postgres-18.3"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine").touch()
    before = contents(tmp_path)
    with pytest.raises(StackError, match="there is no stack in"):
        Stack(tmp_path).remove()
    assert contents(tmp_path) == before


def test_remove_deletes_what_a_stack_makes_and_nothing_else(tmp_path: Path) -> None:
    make_stack(tmp_path)
    kept = {"mine.txt", "logs/mine.log", "postgres-notes/mine", "kafka-2"}
    for name in kept:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    Stack(tmp_path).remove()
    assert contents(tmp_path) == kept
    assert not (tmp_path / "postgres-18.3").exists()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the Makefile beside servers and a pipeline's own files."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    make_stack(tmp_path / ".lockstep" / "stack")
    for name in ("checkpoints/x", "values/x", "demo/lockstep.toml"):
        path = tmp_path / ".lockstep" / name
        path.parent.mkdir()
        path.touch()
    return tmp_path


def clean(checkout: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("MAKEFLAGS", None)
    return subprocess.run(["make", "clean"], check=False, capture_output=True, text=True, cwd=checkout, env=environment)


def make_python(checkout: Path, script: str) -> None:
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)


def test_clean_keeps_what_a_pipeline_has_stored(checkout: Path) -> None:
    make_python(checkout, f'exec {sys.executable} "$@"')
    ended = clean(checkout)
    assert ended.returncode == 0, ended.stderr
    assert contents(checkout) == {"Makefile", ".lockstep/checkpoints/x", ".lockstep/values/x"}
    assert not (checkout / ".lockstep" / "stack").exists()


def test_clean_stops_where_the_servers_can_not_be_stopped(checkout: Path) -> None:
    make_python(checkout, "exit 1")
    before = contents(checkout)
    assert clean(checkout).returncode != 0
    assert contents(checkout) == before


def test_clean_stops_where_nothing_can_stop_the_servers(checkout: Path) -> None:
    before = contents(checkout)
    ended = clean(checkout)
    assert ended.returncode != 0
    assert "may have servers that run" in ended.stderr
    assert contents(checkout) == before


def test_clean_without_servers_needs_no_environment(checkout: Path) -> None:
    shutil.rmtree(checkout / ".lockstep" / "stack")
    assert clean(checkout).returncode == 0


def test_a_state_without_servers_is_a_stack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_stack(tmp_path)
    assert exit_code(["status", "--json", "--directory", str(tmp_path)]) == 0
    assert {server["state"] for server in json.loads(capsys.readouterr().out)} == {"stopped"}
