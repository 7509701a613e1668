"""Every command explains itself."""

import pytest
import typer.main
from typer.testing import CliRunner

from lockstep.cli.main import app

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_the_commands_are_those_that_the_readme_names() -> None:
    assert (
        sorted(
            [
                "apply",
                "capture",
                "demo",
                "doctor",
                "down",
                "generations",
                "init",
                "lag",
                "package",
                "rebuild",
                "rejections",
                "run",
                "snapshot",
                "status",
                "switch",
                "tail",
                "up",
                "verify",
                "wait",
            ]
        )
        == COMMANDS
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_a_command_does_and_what_its_options_mean(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    options = [line for line in result.output.splitlines() if line.strip().startswith("--")]
    assert options
    for parameter in typer.main.get_command(app).commands[command].params:  # type: ignore[attr-defined]
        assert parameter.help, f"{command}: {parameter.name} has no help"


def test_a_missing_configuration_is_exit_code_two(tmp_path) -> None:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "lockstep", "lag", "--config", str(tmp_path / "none.toml")],
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 2
    assert "doesn't exist" in done.stderr
    assert "Traceback" not in done.stderr
