"""``lockstep alerts watch`` beside a real pipeline: it tells when capture ends, and when it is back."""

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.capture.standby import wait_for_turn
from monitor.alerts.facts import has_capture_standby
from stack.stack import Endpoints
from tests.captured import Captured
from tests.databases import Database, until
from tests.pipeline import Process

pytestmark = pytest.mark.live

_PATIENCE_S = 300.0
_KEEP = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')"
_SECRET = "tell-nobody"


@pytest.fixture
def captured(database: Database, endpoints: Endpoints, tmp_path: Path) -> Iterator[Captured]:
    database.execute("create table t (id int primary key, word text)", f"insert into t values (1, '{_SECRET}')")
    command = json.dumps([sys.executable, "-c", _KEEP, str(tmp_path / "told")])
    alerts = f"[alerts]\nopen_after_s = 0\nclear_after_s = 0\ndisk_free_percent = 0\ncommand = {command}\n"
    with Captured(database, endpoints.kafka_bootstrap, tmp_path, ["public.t"], sections=alerts) as captured:
        yield captured


def _told(directory: Path) -> list[tuple[str, str]]:
    told = directory / "told"
    documents = map(json.loads, told.read_text().splitlines()) if told.exists() else ()
    return [(document["kind"], document["name"]) for document in documents]


def test_the_end_of_capture_is_told_once_and_its_return(captured: Captured, tmp_path: Path) -> None:
    captured.start().settle()
    watch = Process(tmp_path / "watch.log", "lockstep", "alerts", "watch", "--config", str(captured.path))
    try:
        until((captured.config.alerts.directory / "state.json").exists, seconds=_PATIENCE_S)
        captured.stop()
        until(lambda: ("opened", "capture-stopped") in _told(tmp_path), seconds=_PATIENCE_S)
        captured.start()
        until(lambda: ("cleared", "capture-stopped") in _told(tmp_path), seconds=_PATIENCE_S)
    finally:
        watch.terminate()
        assert watch.wait(300) == 0
    assert _told(tmp_path) == [("opened", "capture-stopped"), ("cleared", "capture-stopped")]
    assert "alert opened name=capture-stopped subject=capture" in watch.told()
    assert _SECRET not in watch.told() + (tmp_path / "told").read_text()


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
