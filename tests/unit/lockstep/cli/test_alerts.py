"""``lockstep alerts``: what is open, silences, and whether the channels work."""

import json
import os
import time
from pathlib import Path

import pytest

from lockstep.cli.main import exit_code
from lockstep.config import load
from monitor.alerts.book import Dropped, Entry, Kind, Message
from monitor.alerts.conditions import Condition, Severity
from monitor.alerts.store import AlertStore, State


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "lockstep.toml"
    path.write_text(
        "[pipeline]\nname = 'shop'\n[source]\ndsn = 'host=h dbname=d'\ntables = ['public.t']\n"
        "[kafka]\nbootstrap_servers = 'k:9092'\n"
        "[sinks.cache]\ntype = 'redis'\n[alerts]\ncommand = ['sh', '-c', 'cat > told.json']\n".replace(
            "told.json", str(tmp_path / "told.json")
        )
    )
    return path


def _store(config: Path) -> AlertStore:
    directory = load(config).alerts.directory
    assert directory == config.parent / ".lockstep" / "alerts" / "shop", "it counts from where the file is"
    directory.mkdir(parents=True, exist_ok=True)
    return AlertStore(directory)


def test_what_is_open_is_listed_and_the_exit_code_tells(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watching = _store(config)
    assert watching.take_lock()
    assert exit_code(["alerts", "list", "-c", str(config)]) == 0
    assert "no alert is open" in capsys.readouterr().out
    condition = Condition("lag", "cache", Severity.WARNING, "it is late", "look", 1_800_000_000_000)
    message = Message("i", Kind.OPENED, "shop", 2, condition)
    entry = Entry(condition, 1, Severity.WARNING)
    _store(config).save(State({condition.key: entry}, {"webhook": [message]}))
    assert exit_code(["alerts", "list", "-c", str(config)]) == 1
    page = capsys.readouterr().out
    assert "lag/cache: warning since 2027-01-15 08:00:00 UTC" in page
    assert "it is late" in page
    assert "webhook: 1 messages are still to be delivered" in page
    assert exit_code(["alerts", "list", "--json", "-c", str(config)]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in document["open"]] == ["lag"]
    assert document["undelivered"] == {"webhook": 1}
    assert document["watched"] is True
    watching.close()


def test_what_a_channel_never_got_is_listed(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watching = _store(config)
    assert watching.take_lock()
    condition = Condition("gap", "shop", Severity.CRITICAL, "changes never came", "look", 1_800_000_000_000)
    message = Message("i", Kind.OPENED, "shop", 1_800_000_030_000, condition)
    _store(config).save(State(dropped=[Dropped("webhook", message, "it refused it with status 413", 2)]))
    assert exit_code(["alerts", "list", "-c", str(config)]) == 0
    page = capsys.readouterr().out
    assert "webhook never got: opened gap/shop of 2027-01-15 08:00:30 UTC" in page
    assert "changes never came" in page
    assert "it refused it with status 413" in page
    assert exit_code(["alerts", "list", "--json", "-c", str(config)]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["dropped"]
    assert (shown["channel"], shown["reason"], shown["message"]["name"]) == (
        "webhook",
        "it refused it with status 413",
        "gap",
    )
    watching.close()


def test_a_list_that_nobody_keeps_says_so_and_since_when(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["alerts", "list", "-c", str(config)]
    assert exit_code(command) == 4
    never = capsys.readouterr().out
    assert "nobody on this machine has ever looked for alerts" in never
    assert "no alert" not in never
    store = _store(config)
    assert store.take_lock()
    store.mark_look()
    assert exit_code(command) == 0
    lock = load(config).alerts.directory / "lock"
    os.utime(lock, (0, 800_000_000))
    assert exit_code(command) == 4
    assert "the process that tells of alerts hangs since 1995-" in capsys.readouterr().out
    store.mark_look()
    store.close()
    os.utime(lock, (0, 0))
    assert exit_code(command) == 4
    ended = capsys.readouterr().out
    assert "nobody on this machine looks for alerts since 1970-01-01 00:00:00 UTC" in ended
    assert "no alert was open then" in ended
    assert exit_code([*command, "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["watched"] is False


def test_a_silence_is_kept_until_then_and_can_be_ended(config: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    assert exit_code(["alerts", "silence", "lag/cache", "--for", "2h", "-c", str(config)]) == 0
    assert exit_code(["alerts", "silence", "gap", "-c", str(config)]) == 0
    silences = _store(config).silences(now_ms=now_ms)
    assert silences.keys() == {"lag/cache", "gap"}
    assert silences["lag/cache"] >= now_ms + 7_200_000
    assert exit_code(["alerts", "silence", "lag/cache", "--for", "0m", "-c", str(config)]) == 0
    assert _store(config).silences(now_ms=now_ms).keys() == {"gap"}


def test_a_silence_of_nothing_that_there_is_is_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["alerts", "silence", "lagg", "-c", str(config)]) == 2
    assert "no such condition: lagg" in capsys.readouterr().err
    assert exit_code(["alerts", "silence", "lag", "--for", "soon", "-c", str(config)]) == 2
    assert exit_code(["alerts", "silence", "lag/cahce", "-c", str(config)]) == 2
    assert "lag is never about 'cahce'; there are lag, lag/cache" in " ".join(capsys.readouterr().err.split())
    assert _store(config).silences(now_ms=1) == {}


def test_what_was_told_of_a_sink_that_was_taken_out_can_be_silenced_and_heard_again(config: Path) -> None:
    condition = Condition("lag", "gone", Severity.WARNING, "it is late", "look", 1)
    _store(config).save(State({condition.key: Entry(condition, 1, Severity.WARNING)}))
    assert exit_code(["alerts", "silence", "lag/gone", "-c", str(config)]) == 0
    _store(config).save(State())
    assert exit_code(["alerts", "silence", "lag/gone", "--for", "0m", "-c", str(config)]) == 0
    assert _store(config).silences(now_ms=1) == {}


def test_a_test_message_goes_over_every_channel(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["alerts", "test", "-c", str(config)]) == 0
    assert json.loads((tmp_path / "told.json").read_text())["kind"] == "test"
    config.write_text(config.read_text().replace("'sh'", "'/missing'"))
    assert exit_code(["alerts", "test", "-c", str(config)]) == 1
    assert "command: /missing can't be started" in capsys.readouterr().err


def test_a_webhook_with_a_secret_in_its_address_is_refused(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(config.read_text() + "[alerts.webhook]\nurl = 'https://h/hook?token=tell-nobody'\n")
    assert exit_code(["alerts", "list", "-c", str(config)]) == 2
    said = capsys.readouterr().err
    assert "alerts.webhook.url_file" in said
    assert "tell-nobody" not in said
