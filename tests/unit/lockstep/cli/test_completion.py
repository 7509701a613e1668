"""What the shell offers for a word, asked as bash, zsh and fish ask the command."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

FILE = """
[source]
tables = ["public.orders", "public.customer", "audit.log"]

[sinks.search]
type = "opensearch"

[sinks.cache]
type = "redis"
"""


def offered(directory: Path, *words: str, shell: str = "bash") -> Sequence[str]:
    """What the command answers a shell whose line has these words, the last of which isn't complete."""
    line = " ".join(words)
    of_shell = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }
    answer = subprocess.run(
        [sys.executable, "-c", "from lockstep.cli.main import main; main()"],
        env={**os.environ, **of_shell[shell], "_LOCKSTEP_COMPLETE": f"complete_{shell}"},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stderr == ""
    return answer.stdout.split()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "lockstep.toml").write_text(FILE)
    return tmp_path


def test_sinks_and_tables_complete_from_the_file_and_local_servers_do(directory: Path) -> None:
    assert offered(directory, "lockstep", "verify", "se") == ["search"]
    assert sorted(offered(directory, "lockstep", "wait", "--sink", "''")) == ["cache", "search"]
    assert offered(directory, "lockstep", "tail", "public.") == ["public.orders", "public.customer"]
    assert offered(directory, "lockstep", "verify", "search", "--table", "aud") == ["audit.log"]
    assert offered(directory, "lockstep", "up", "ka") == ["kafka"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_answered_too(directory: Path, shell: str) -> None:
    assert any("search" in word for word in offered(directory, "lockstep", "verify", "se", shell=shell))


def test_the_file_that_the_line_names_is_read(directory: Path) -> None:
    (directory / "other.toml").write_text("[sinks.lake]\n")
    assert offered(directory, "lockstep", "rebuild", "--config", "other.toml", "l") == ["lake"]


@pytest.mark.parametrize("text", [None, "not TOML [", "sinks = 1\n[source]\ntables = 'public.orders'\n"])
def test_nothing_is_offered_and_nothing_said_without_a_file_that_can_be_read(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "lockstep.toml").write_text(text)
    assert offered(tmp_path, "lockstep", "verify", "se") == []
    assert offered(tmp_path, "lockstep", "tail", "public.") == []
