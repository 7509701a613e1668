"""extensions.demo.directory: what a demo may overwrite and delete."""

from pathlib import Path

import pytest

from cdc.model.errors import ConfigurationError
from extensions.demo.directory import check_directory, shown
from extensions.demo.settings import configuration
from lockstep.cli.main import exit_code
from stack.stack import Endpoints

DEMOS = configuration(
    Endpoints(
        source_dsn="dbname=app",
        warehouse_dsn="dbname=warehouse",
        warehouse_url="postgresql+psycopg://postgres@127.0.0.1/warehouse",
        kafka_bootstrap="127.0.0.1:1",
        opensearch_url="http://127.0.0.1:2",
        redis_url="redis://127.0.0.1:3/0",
    ),
    listen="127.0.0.1:4",
)


def _content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"lockstep.toml": "[pipeline]\nname = 'mine'\n"}, id="configuration"),
        pytest.param({"lockstep.toml": "[pipeline]\n", "demo.lock": ""}, id="configuration of a refused demo's place"),
        pytest.param({"checkpoints/x": "7"}, id="checkpoints"),
        pytest.param({"stack/stack.json": '{"servers": {}}'}, id="servers"),
        pytest.param({"stack.json": '{"servers": {}}', "demo.lock": ""}, id="stack"),
        pytest.param({"notes.txt": "mine"}, id="anything"),
    ],
)
def test_what_no_demo_made_is_left_as_it_is(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    before = _content(tmp_path)
    assert exit_code(["demo", "--seconds", "1", "--directory", str(tmp_path)]) == 2
    assert _content(tmp_path) == before
    assert "--directory" in capsys.readouterr().err


@pytest.mark.parametrize("lock", [[], ["demo.lock"]], ids=["empty", "after a demo"])
def test_the_servers_of_up_are_no_place_for_a_demo(
    lock: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".lockstep").mkdir()
    for name in lock:
        (tmp_path / ".lockstep" / name).touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="those of `lockstep up`"):
        check_directory(Path(".lockstep").absolute())
    assert exit_code(["demo", "--directory", ".lockstep"]) == 2
    assert exit_code(["demo", "--directory", ".lockstep/../.lockstep"]) == 2


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({}, id="empty"),
        pytest.param({"lockstep.toml": DEMOS, "stack/stack.json": "{}", "checkpoints/x": "7"}, id="configuration"),
        pytest.param({"demo.lock": "", "stack/stack.json": "{}"}, id="killed before it wrote its configuration"),
        pytest.param({"demo.lock": "", "lockstep.toml": ""}, id="killed while it wrote its configuration"),
    ],
)
def test_a_demo_takes_an_empty_directory_and_one_of_a_demo(files: dict[str, str], tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    check_directory(tmp_path)


def test_a_demo_takes_a_directory_that_does_not_exist_and_the_check_makes_none(tmp_path: Path) -> None:
    check_directory(tmp_path / "absent")
    assert list(tmp_path.iterdir()) == []


def test_a_path_is_shown_from_where_commands_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "demo" / "lockstep.toml") == Path("demo/lockstep.toml")
    assert shown(Path("/elsewhere/lockstep.toml")) == Path("/elsewhere/lockstep.toml")
