"""``lockstep alerts watch`` beside a real pipeline: it tells when the slot is gone."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.capture.standby import wait_for_turn
from monitor.condition_facts import has_capture_standby
from stack.stack import Endpoints
from tests.captured import Captured
from tests.databases import Database, until
from tests.pipeline import Process
from tests.receivers import Receiver

pytestmark = pytest.mark.live

_PATIENCE_S = 300.0
_SECRET = "tell-nobody"


@pytest.fixture
def captured(database: Database, endpoints: Endpoints, receiver: Receiver, tmp_path: Path) -> Iterator[Captured]:
    database.execute("create table t (id int primary key, word text)", f"insert into t values (1, '{_SECRET}')")
    alerts = f"[alerts]\nurl = 'http://127.0.0.1:{receiver.port}/'\n"
    with Captured(database, endpoints.kafka_bootstrap, tmp_path, ["public.t"], sections=alerts) as captured:
        yield captured


def test_a_slot_that_is_gone_is_told_once(captured: Captured, receiver: Receiver, tmp_path: Path) -> None:
    captured.start().settle()
    watch = Process(tmp_path / "watch.log", "lockstep", "alerts", "watch", "--config", str(captured.path))
    try:
        until((captured.config.watch_directory / "state.json").exists, seconds=_PATIENCE_S)
        captured.stop()
        captured.database.drop_slot(captured.config.slot)
        until(lambda: ("opened", "slot-lost") in receiver.reported, seconds=_PATIENCE_S)
    finally:
        watch.terminate()
        assert watch.wait(300) == 0
    assert receiver.reported.count(("opened", "slot-lost")) == 1
    assert "alert opened name=slot-lost subject=capture" in watch.output()
    assert _SECRET not in watch.output() + json.dumps(receiver.documents)


def test_a_standby_is_found_where_it_waits(captured: Captured) -> None:
    captured.start()
    pipeline = captured.config.as_pipeline()
    assert has_capture_standby(pipeline) is False
    stop = threading.Event()
    waiting = threading.Thread(
        target=wait_for_turn, args=(pipeline,), kwargs={"stopping": stop.is_set, "say": lambda _: None}
    )
    waiting.start()
    try:
        until(lambda: has_capture_standby(pipeline))
        assert has_capture_standby(replace(pipeline, name="another")) is False, "it waits for another slot"
    finally:
        stop.set()
        waiting.join()
    until(lambda: has_capture_standby(pipeline) is False)
