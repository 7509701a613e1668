"""Alerts are delivered once, whatever ends in between. The receivers here are real servers."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.model.errors import ConfigurationError, Unavailable
from cdc.webhook import DocumentRefused, WebhookSettings
from extensions.alerts.channel import post_alert
from extensions.alerts.due_messages import Kind, Message
from extensions.alerts.outbox import Outbox
from extensions.alerts.reporter import AlertReporter
from extensions.alerts.settings import AlertSettings
from extensions.alerts.store import AlertStore, State
from monitor.condition_settings import ConditionSettings
from monitor.condition_watch import ConditionWatch
from monitor.conditions import Condition, Severity
from monitor.lag import LagReport, SinkFacts, Stage
from monitor.reporter_lock import ReporterLock
from tests.databases import until
from tests.receivers import Receiver

_BROKEN = LagReport((), True, 0, {}, wal_status="lost", broken=("the slot is lost",))
_WELL = LagReport((), True, 0, {}, wal_status="reserved")
_MESSAGE = Message(
    "shop/lag/cache/1", Kind.OPENED, "shop", 2, Condition("lag", "cache", Severity.WARNING, "late", "look", 1)
)


def _settings(port: int) -> AlertSettings:
    return AlertSettings(url=f"http://127.0.0.1:{port}/hook?a=b")


def _watch(settings: AlertSettings, directory: Path, *, lag_s: float = 300.0) -> ConditionWatch:
    reporter = AlertReporter("shop", settings, directory, retry_s=0.01)
    return ConditionWatch(ConditionSettings(lag_s=lag_s), directory, reporters=[reporter])


_PROCESS = """
import sys, time
from pathlib import Path
from extensions.alerts.settings import AlertSettings
from extensions.alerts.reporter import AlertReporter
from monitor.condition_settings import ConditionSettings
from monitor.condition_watch import ConditionWatch
from monitor.lag import LagReport, SinkFacts, Stage
settings, directory = AlertSettings(url=sys.argv[2]), Path(sys.argv[1])
reporter = AlertReporter("shop", settings, directory, retry_s=0.01)
watch = ConditionWatch(ConditionSettings(), directory, reporters=[reporter])
report = LagReport((), True, 0, {}, wal_status="lost", broken=("the slot is lost",))
while True:
    watch.look(report, now_ms=time.time_ns() // 1_000_000)
    print("looked", flush=True)
    time.sleep(0.01)
"""


@contextlib.contextmanager
def _process(settings: AlertSettings, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [sys.executable, "-c", _PROCESS, str(directory), str(settings.url)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def _looks(process: subprocess.Popen[bytes], times: int) -> None:
    assert process.stdout is not None
    for _ in range(times):
        assert process.stdout.readline() == b"looked\n"


def _undelivered(directory: Path) -> list[Message]:
    return list(AlertStore(directory).load().queue or ())


def test_kill_9_loses_no_alert_and_repeats_none_that_was_delivered(receiver: Receiver, tmp_path: Path) -> None:
    receiver.status = 503
    with _process(_settings(receiver.port), tmp_path) as process:
        _looks(process, 3)
        assert len(_undelivered(tmp_path)) == 1
        os.kill(process.pid, signal.SIGKILL)
    # Another one: what the killed process has sent may still come to the first.
    with contextlib.closing(Receiver()) as well:
        settings = _settings(well.port)
        with _process(settings, tmp_path) as process:
            until(lambda: well.reported == [("opened", "slot-lost")])
            until(lambda: not _undelivered(tmp_path))
            os.kill(process.pid, signal.SIGKILL)
        with _process(settings, tmp_path) as process:
            _looks(process, 20)
        assert well.reported == [("opened", "slot-lost")]
    assert receiver.documents == []


def test_a_message_is_on_disk_before_the_webhook_has_it(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else kill -9 in between has it told again under another id, and the first one is never over."""
    save, at_save = AlertStore.save, []

    def slow(self: AlertStore, state: State) -> None:
        if not receiver.documents and state.queue:
            receiver.arrived.wait(0.3)  # a disk that takes its time
            at_save.append(list(receiver.reported))
        save(self, state)

    monkeypatch.setattr(AlertStore, "save", slow)
    with _watch(_settings(receiver.port), tmp_path) as watch:
        watch.look(_BROKEN, now_ms=1)
        until(lambda: receiver.reported == [("opened", "slot-lost")])
    assert at_save == [[]]


def test_whoever_is_told_by_the_book_has_been_told_or_is_in_the_queue(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on the disk that an earlier message's delivery leaves behind while the next one is being reported."""
    settings = _settings(receiver.port)
    receiver.status = 503
    seen = []

    def delivers_meanwhile(record: logging.LogRecord) -> bool:
        if "rebuild-needed" in record.getMessage():
            receiver.status = 204
            until(lambda: not _undelivered(tmp_path))
            seen.append({name for name, _ in AlertStore(tmp_path).load().book})
        return True

    with _watch(settings, tmp_path) as watch:
        watch.look(_BROKEN, now_ms=1)
        monkeypatch.setattr(logging.getLogger("lockstep.alerts"), "filters", [delivers_meanwhile])
        watch.look(replace(_BROKEN, rebuild_needed={"cache": ("mask",)}), now_ms=2)
        until(lambda: len(receiver.documents) == 2)
    assert seen == [{"slot-lost"}]


@pytest.mark.parametrize(
    "content",
    [
        b'{"format":1,"open":[],"queue":[]}',
        b"{",
        b"{}",
        b"[]",
        b"null",
        b'"format"',
        b'{"format":3}',
        b'{"format":3,"open":[{}],"queue":[]}',
        b'{"format":3,"open":[],"queue":{"a":1}}',
        b'{"format":3,"open":[],"queue":[{"id":"a","kind":"shouted"}]}',
        b'{"format":3,"open":[{"name":"a","subject":"b","severity":"loud","reported":null,"seen_ms":"x"}],"queue":[]}',
    ],
)
def test_a_state_that_can_not_be_read_is_left_as_it_is_until_it_can(
    content: bytes, receiver: Receiver, tmp_path: Path
) -> None:
    settings = _settings(receiver.port)
    file = tmp_path / "state.json"
    with _watch(settings, tmp_path) as watch:
        receiver.status = 503
        watch.look(replace(_WELL, rebuild_needed={"cache": ("mask",)}), now_ms=1)
    before = file.read_bytes()
    file.write_bytes(content)
    receiver.status = 204
    with _watch(settings, tmp_path) as watch:
        watch.look(_BROKEN, now_ms=2)
        until(lambda: receiver.reported == [("opened", "slot-lost")])
        watch.look(_BROKEN, now_ms=3)
        assert file.read_bytes() == content
        file.write_bytes(before)
        watch.look(_BROKEN, now_ms=4)
        until(lambda: receiver.reported[1:] == [("opened", "rebuild-needed")])
        until(lambda: not _undelivered(tmp_path))
    assert {name for name, _ in AlertStore(tmp_path).load().book} == {"slot-lost", "rebuild-needed"}


def test_of_two_processes_one_tells_and_the_other_goes_on_after_it(receiver: Receiver, tmp_path: Path) -> None:
    settings = _settings(receiver.port)
    with _watch(settings, tmp_path) as second:
        with _process(settings, tmp_path) as process:
            _looks(process, 1)
            until(lambda: receiver.reported == [("opened", "slot-lost")])
            until(lambda: not _undelivered(tmp_path))
            second.look(_BROKEN, now_ms=1)
            assert second.open
            watcher = ReporterLock(tmp_path).holder()
            assert watcher.is_there
            until(lambda: (ReporterLock(tmp_path).holder().looked_ms or 0) > (watcher.looked_ms or 0))
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            assert not ReporterLock(tmp_path).holder().is_there
        second.look(_BROKEN, now_ms=2)
        second.look(_WELL, now_ms=3)
        second.look(_WELL, now_ms=60_003)
        until(lambda: receiver.reported == [("opened", "slot-lost"), ("cleared", "slot-lost")])


def test_who_does_not_tell_shows_what_has_held_for_long_as_who_tells_does(receiver: Receiver, tmp_path: Path) -> None:
    sink = SinkFacts("cache", 1, True, 10, 0, 0, 0)
    unmeasured = LagReport((Stage("applied: cache", 10, 0, None, 0, sink),), True, 0, {}, wal_status="reserved")
    settings = _settings(receiver.port)
    with _watch(settings, tmp_path, lag_s=60.0) as first, _watch(settings, tmp_path, lag_s=60.0) as second:
        for watch in (first, second):
            watch.look(unmeasured, now_ms=0)
            watch.look(unmeasured, now_ms=59_000)
            assert watch.open == ()
        for watch in (first, second):
            watch.look(unmeasured, now_ms=60_000)
            assert [condition.key for condition in watch.open] == [("lag", "cache")]
        until(lambda: receiver.reported == [("opened", "lag")])


def test_an_endpoint_that_is_down_holds_up_nothing_and_gets_everything_in_order(
    receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = receiver.port
    receiver.close()
    with _watch(_settings(port), tmp_path) as watch:
        for at in range(3):
            watch.look(_BROKEN, now_ms=at * 100_000)
            watch.look(_WELL, now_ms=at * 100_000 + 1)
            watch.look(_WELL, now_ms=at * 100_000 + 60_001)
        assert len(_undelivered(tmp_path)) == 6
        back = Receiver(port)
        try:
            until(lambda: back.reported == [("opened", "slot-lost"), ("cleared", "slot-lost")] * 3)
        finally:
            back.close()
    complaints = [record for record in caplog.records if "isn't delivered" in record.message]
    assert len(complaints) == 1, "once for each time that it is down"


def test_an_unusable_directory_keeps_nobody_from_being_told(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "alerts").write_text("a file")
    with _watch(_settings(receiver.port), tmp_path / "alerts") as watch:
        watch.look(_BROKEN, now_ms=1)
        watch.look(_BROKEN, now_ms=2)
        until(lambda: receiver.reported == [("opened", "slot-lost")])


class _Buggy:
    """Fails with what isn't an answer of anybody, for one condition."""

    def __init__(self) -> None:
        self.tries = 0
        self.reported: list[str] = []

    def send(self, message: Message) -> None:
        if message.condition.name == "lag":
            self.tries += 1
            raise TypeError
        self.reported.append(message.condition.name)


def test_a_message_with_which_our_code_fails_is_said_once_and_dropped_after_some_tries(
    caplog: pytest.LogCaptureFixture,
) -> None:
    channel, delivered = _Buggy(), threading.Event()
    outbox = Outbox(channel.send, delivered=delivered.set, wait_first_s=0.001)
    try:
        outbox.add(_messages("lag", "gap"))
        until(lambda: channel.reported == ["gap"])
        until(lambda: not outbox.left())
    finally:
        outbox.close()
    assert channel.tries == 5
    said = [record.getMessage() for record in caplog.records]
    assert [text[: len("alert is dropped")] for text in said] == ["alert isn't deli", "alert is dropped"]
    assert "name=lag" in said[1]


class _Refusing:
    """A webhook that refuses what it is told to. ``sent`` has every try."""

    def __init__(self, *refused: str) -> None:
        self.refused = set(refused)
        self.sent: list[str] = []
        self.reported: list[str] = []

    def send(self, message: Message) -> None:
        name = message.condition.name
        self.sent.append(name)
        if name in self.refused:
            raise DocumentRefused("hook", 413)
        self.reported.append(name)


def _messages(*names: str) -> list[Message]:
    return [replace(_MESSAGE, condition=replace(_MESSAGE.condition, name=name)) for name in names]


def test_a_message_that_a_webhook_refuses_holds_up_none_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    channel = _Refusing("gap", "lag")
    outbox = Outbox(channel.send, delivered=lambda: None, wait_first_s=0.001)
    try:
        outbox.add(_messages("gap", "lag", "stalled", "disk-filling"))
        until(lambda: not outbox.left())
    finally:
        outbox.close()
    assert channel.reported == ["stalled", "disk-filling"]
    assert channel.sent.count("gap") == 5
    dropped = [text for record in caplog.records if "alert is dropped" in (text := record.getMessage())]
    assert ["name=gap" in dropped[0], "name=lag" in dropped[1], len(dropped)] == [True, True, 2]
    assert "the webhook at hook refused it with status 413" in dropped[0]


def test_a_webhook_that_is_new_is_told_of_what_is_open(receiver: Receiver, tmp_path: Path) -> None:
    with _watch(AlertSettings(), tmp_path) as watch:
        watch.look(_BROKEN, now_ms=1)
    settings = _settings(receiver.port)
    for _ in range(2):
        with _watch(settings, tmp_path) as watch:
            watch.look(_BROKEN, now_ms=2)
            until(lambda: not _undelivered(tmp_path))
    assert receiver.reported == [("opened", "slot-lost")]


def test_what_a_webhook_lacks_that_is_not_set_any_more_is_given_up_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    AlertStore(tmp_path).save(State(queue=_messages("gap", "lag")))
    with _watch(AlertSettings(), tmp_path) as watch:
        watch.look(_WELL, now_ms=1)
    (said,) = [text for record in caplog.records if "alerts are given up" in (text := record.getMessage())]
    assert "2 messages were still to be delivered" in said
    assert AlertStore(tmp_path).load().queue is None


# -- channels


def test_a_webhook_gets_its_token_and_no_error_or_log_has_it(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOOK", "Bearer tell-nobody")
    address = f"http://127.0.0.1:{receiver.port}/services/also-secret"
    monkeypatch.setenv("LOCKSTEP_ALERTS_WEBHOOK_URL", address)
    settings = WebhookSettings(headers={"Authorization": "HOOK"})
    post_alert(settings, _MESSAGE)
    assert receiver.headers[0]["Authorization"] == "Bearer tell-nobody"
    assert receiver.documents[0] == _MESSAGE.to_json()
    receiver.status = 500
    with pytest.raises(Unavailable, match="status 500") as refused:
        post_alert(settings, _MESSAGE)
    monkeypatch.setenv("HOOK", "tell-nobody\n")
    with pytest.raises(Unavailable) as unsent:
        post_alert(settings, _MESSAGE)
    said = f"{refused.value}{unsent.value}{caplog.text}"
    assert "tell-nobody" not in said
    assert "also-secret" not in said
    monkeypatch.delenv("HOOK")
    with pytest.raises(ConfigurationError, match="HOOK"):
        post_alert(settings, _MESSAGE)
