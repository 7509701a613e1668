"""The units of ``deploy/systemd``: systemd takes them, and their rules are those of the commands that they run."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from pydantic import BaseModel

from lockstep import supervisor
from lockstep.cli.main import COMMANDS
from lockstep.config import Config
from lockstep.console import EXIT_CONFIGURATION, EXIT_TAKEN_OVER

UNITS = sorted((Path(__file__).parents[2] / "deploy" / "systemd").glob("*.service"))


def service(unit: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys of systemd have capitals
    parser.read_string(unit.read_text(encoding="utf-8"))
    return parser["Service"]


def named(units: list[Path]) -> list[str]:
    return [unit.stem for unit in units]


def test_there_is_a_unit_for_each_way_to_run() -> None:
    assert named(UNITS) == ["lockstep-alerts", "lockstep-apply", "lockstep-capture", "lockstep"]


@pytest.mark.parametrize("unit", UNITS, ids=named(UNITS))
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd isn't installed here")
    program = tmp_path / "lockstep"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = unit.read_text(encoding="utf-8")
    # Where the command is, and who runs it, are the machine's own.
    copy = tmp_path / unit.name
    copy.write_text(text.replace("/opt/lockstep/bin/lockstep", str(program)).replace("User=lockstep", "User=root"))
    answer = subprocess.run(
        [analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False, timeout=60
    )
    said = [line for line in answer.stderr.splitlines() if "lockstep" in line]
    assert (said, answer.returncode) == ([], 0)


@pytest.mark.parametrize("unit", UNITS, ids=named(UNITS))
def test_the_unit_runs_a_command_of_ours(unit: Path) -> None:
    program, *command, option, path = service(unit)["ExecStart"].split()
    assert (program, option, path) == ("/opt/lockstep/bin/lockstep", "--config", "/etc/lockstep/lockstep.toml")
    assert command == ["alerts", "watch"] or command in [
        [each.__name__] for commands in COMMANDS.values() for each in commands
    ]


@pytest.mark.parametrize("unit", UNITS, ids=named(UNITS))
def test_the_unit_starts_again_what_may_be_started_again(unit: Path) -> None:
    rules = service(unit)
    assert rules["Restart"] == "always"
    assert set(rules["RestartPreventExitStatus"].split()) == {str(EXIT_CONFIGURATION), str(EXIT_TAKEN_OVER)}


@pytest.mark.parametrize("unit", UNITS, ids=named(UNITS))
def test_the_unit_gives_processes_the_time_that_they_take_to_end(unit: Path) -> None:
    rules = service(unit)
    assert rules["KillMode"] == "mixed"
    assert int(rules["TimeoutStopSec"]) > supervisor._STOP_S


@pytest.mark.parametrize(
    "text", [*UNITS, Path(__file__).parents[2] / "docs" / "operations.md"], ids=lambda path: path.stem
)
def test_every_directory_that_is_written_to_is_named_where_etc_is_read_only(text: Path) -> None:
    words = text.read_text(encoding="utf-8")
    sections = {name: field.annotation for name, field in Config.model_fields.items()}
    named = [
        (section, name)
        for section, model in sections.items()
        if isinstance(model, type) and issubclass(model, BaseModel)
        for name in model.model_fields
        if name.endswith("directory")
    ]
    assert len(named) == 5
    for section, name in named:
        if text in UNITS:
            assert service(text)["ProtectSystem"] == "full"
            assert f"{section}.{name}" in words
        else:
            assert re.search(rf'^\[{section}\]\n(\w+ = .*\n)*{name} = "/var/lib/lockstep/', words, re.MULTILINE)
