"""The units of ``deploy/systemd``: systemd takes them, and their rules are those of the commands that they run."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from cdc.model.timeouts import STOPS_S
from lockstep.cli.main import COMMANDS
from lockstep.config import load
from lockstep.console import EXIT_CONFIGURATION, EXIT_TAKEN_OVER
from lockstep.doctor.directories import directory_findings

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
    assert int(rules["TimeoutStopSec"]) > STOPS_S


@pytest.mark.parametrize("unit", UNITS, ids=named(UNITS))
def test_the_unit_writes_only_where_systemd_makes_directories(
    unit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = service(unit)
    assert (rules["ProtectSystem"], rules["UMask"], rules["LimitCORE"]) == ("strict", "0077", "0")
    state = tmp_path / "lib" / rules["StateDirectory"]
    monkeypatch.setenv("STATE_DIRECTORY", str(state))
    file = tmp_path / "lockstep.toml"
    file.write_text(
        '[pipeline]\nname = "shop"\n[source]\ndsn = "host=x"\ntables = ["public.orders"]\n'
        '[kafka]\nbootstrap_servers = "x:9092"\n[capture]\ncommit_interval_ms = 100\n'
        '[sinks.cache]\ntype = "redis"\nurl = "redis://x"\n'
        '[views.latest]\nsink = "cache"\nsql = "select id from public.orders"\nkey = ["id"]\n'
    )
    outside: list[Path] = []

    def is_below(directory: Path) -> bool:
        outside.extend([] if directory == state else [directory])
        return True

    state.mkdir(parents=True)
    directory_findings(load(file), may_write=is_below)
    assert outside == []


def test_one_setting_moves_all_directories_that_are_not_named_singly(tmp_path: Path) -> None:
    file = tmp_path / "lockstep.toml"
    file.write_text(
        '[pipeline]\nname = "shop"\ndata_directory = "data"\n[source]\ndsn = "host=x"\ntables = ["public.orders"]\n'
        '[kafka]\nbootstrap_servers = "x:9092"\n[spark]\ncheckpoint_directory = "fast"\n'
    )
    config = load(file)
    data = tmp_path / "data"
    assert config.pipeline.data_directory == data
    assert config.spark.checkpoint_directory == str(tmp_path / "fast")
    assert config.as_pipeline().values_directory == data / "values"
    assert config.spark.view_directory == data / "views"
    assert config.watch_directory == data / "alerts" / "shop"
