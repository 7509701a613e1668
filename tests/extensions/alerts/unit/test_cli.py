"""``lockstep alerts``: what is open, and whether the webhook works."""

import contextlib
import json
import os
from pathlib import Path

import pytest

from extensions.alerts.due_messages import Entry, Kind, Message
from extensions.alerts.store import AlertStore, State
from lockstep.cli.main import exit_code
from lockstep.config import load
from monitor.conditions import Condition, Severity
from monitor.reporter_lock import ReporterLock
from tests.receivers import Receiver


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "lockstep.toml"
    path.write_text(
        "[pipeline]\nname = 'shop'\n[source]\ndsn = 'host=h dbname=d'\ntables = ['public.t']\n"
        "[kafka]\nbootstrap_servers = 'k:9092'\n"
        "[sinks.cache]\ntype = 'redis'\n"
    )
    return path


def _store(config: Path) -> AlertStore:
    directory = load(config).watch_directory
    assert directory == config.parent / ".lockstep" / "alerts" / "shop", "it counts from where the file is"
    directory.mkdir(parents=True, exist_ok=True)
    return AlertStore(directory)


def test_what_is_open_is_listed_and_the_exit_code_tells(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watching = ReporterLock(load(config).watch_directory)
    assert watching.take()
    assert exit_code(["alerts", "list", "-c", str(config)]) == 0
    assert "no alert is open" in capsys.readouterr().out
    condition = Condition("lag", "cache", Severity.WARNING, "it is late", "look", 1_800_000_000_000)
    message = Message("i", Kind.OPENED, "shop", 2, condition)
    entry = Entry(condition, 1, Severity.WARNING)
    _store(config).save(State({condition.key: entry}, [message]))
    assert exit_code(["alerts", "list", "-c", str(config)]) == 1
    page = capsys.readouterr().out
    assert "lag/cache: warning since 2027-01-15 08:00:00 UTC" in page
    assert "it is late" in page
    assert "1 messages are still to be delivered" in page
    assert exit_code(["alerts", "list", "--json", "-c", str(config)]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in document["open"]] == ["lag"]
    assert document["undelivered"] == 1
    assert document["watched"] is True
    watching.close()


def test_a_list_that_nobody_keeps_says_so_and_since_when(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["alerts", "list", "-c", str(config)]
    assert exit_code(command) == 4
    never = capsys.readouterr().out
    assert "no process on this machine has ever looked for alerts" in never
    assert "no alert" not in never
    watching = ReporterLock(load(config).watch_directory)
    assert watching.take()
    assert exit_code(command) == 0
    lock = load(config).watch_directory / "lock"
    os.utime(lock, (0, 800_000_000))
    assert exit_code(command) == 4
    assert "the process that reports alerts hangs since 1995-" in capsys.readouterr().out
    assert watching.take()
    watching.close()
    os.utime(lock, (0, 0))
    assert exit_code(command) == 4
    ended = capsys.readouterr().out
    assert "no process on this machine has looked for alerts since 1970-01-01 00:00:00 UTC" in ended
    assert "no alert was open then" in ended
    assert exit_code([*command, "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["watched"] is False


def test_a_test_message_goes_to_the_webhook(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["alerts", "test", "-c", str(config)]) == 0
    assert "alerts.url isn't set" in capsys.readouterr().err
    with contextlib.closing(Receiver()) as receiver:
        config.write_text(f"{config.read_text()}[alerts]\nurl = 'http://127.0.0.1:{receiver.port}/'\n")
        assert exit_code(["alerts", "test", "-c", str(config)]) == 0
        assert receiver.documents[0]["kind"] == "test"
        receiver.status = 500
        assert exit_code(["alerts", "test", "-c", str(config)]) != 0
        assert "status 500" in capsys.readouterr().err


def test_a_webhook_with_a_secret_in_its_address_is_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(config.read_text() + "[alerts]\nurl = 'https://h/hook?token=tell-nobody'\n")
    assert exit_code(["alerts", "list", "-c", str(config)]) == 2
    said = capsys.readouterr().err
    assert "alerts.url_file" in said
    assert "tell-nobody" not in said
