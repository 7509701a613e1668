"""Capture as a process: what must stop it instead of passing silently, and that it stops with the way out."""

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from cdc.kafka.large_rows import LargeRows
from cdc.kafka.publisher import TransactionalPublisher
from cdc.kafka.topic_names import STATE, control_topic
from cdc.protocol.control_records import FORMAT
from cdc.stream.topics import create_missing_topics
from tests.history import state
from tests.pipeline import Pipeline

pytestmark = pytest.mark.live

_numbers = itertools.count(1)


@pytest.fixture
def pipeline(stack: Any, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(stack.endpoints(), tmp_path, f"capture{os.getpid()}_{next(_numbers)}")
    yield made
    made.close()


def _run(pipeline: Pipeline, *statements: str) -> None:
    with pipeline.sql() as connection:
        for statement in statements:
            connection.execute(statement.format(s=pipeline.name, p=pipeline.config.publication).encode())


STOPS = {
    "a table without its key": (
        ("alter table {s}.account drop constraint account_pkey", "insert into {s}.account values (1)"),
        "has no primary key any more",
        "alter table {s}.account add primary key (id)",
    ),
    "a configured key that is gone": (
        ("alter table {s}.entry drop column line", "insert into {s}.entry values (1)"),
        "has no primary key any more",
        "alter table {s}.entry add primary key (account_id)",
    ),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if "configured" in case else pytest.mark.soak) for case in STOPS]
)
def test_what_cannot_be_published_stops_capture_until_it_is_mended(pipeline: Pipeline, case: str) -> None:
    statements, message, remedy = STOPS[case]
    running = pipeline.start_capture()
    pipeline.wait_streaming(running)
    _run(pipeline, *statements)
    _assert_stopped(running, message)
    _assert_stopped(pipeline.start_capture(), message)
    _run(pipeline, remedy)
    mended = pipeline.start_capture()
    pipeline.wait_published(mended)
    assert pipeline.stop(mended) == 0, mended.log.read_text()


def test_a_change_that_came_without_its_key_stops_capture_at_every_start(pipeline: Pipeline) -> None:
    running = pipeline.start_capture()
    pipeline.wait_streaming(running)
    _run(
        pipeline,
        "insert into {s}.account values (1, 'a')",
        "alter table {s}.account alter owner set not null",
        "create unique index {s}_owner on {s}.account (owner)",
        "alter table {s}.account replica identity using index {s}_owner",
        "update {s}.account set id = 2",
    )
    _assert_stopped(running, "doesn't deliver its key", "lockstep recover")
    _assert_stopped(pipeline.start_capture(), "doesn't deliver its key", "lockstep recover")


def _assert_stopped(process: Any, message: str, way_out: str = "start again") -> None:
    assert process.wait(300) == 1, process.log.read_text()
    log = process.log.read_text()
    assert re.search(message, log), log
    assert way_out in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("pg_replication_slot_advance('{}', pg_current_wal_lsn())", "the changes in between are lost to this slot"),
        ("pg_drop_replication_slot('{}')", "is gone"),
    ],
    ids=["moved", "gone"],
)
def test_a_slot_that_moved_without_us_or_is_gone_is_noticed(pipeline: Pipeline, change: str, said: str) -> None:
    capture = pipeline.start_capture()
    pipeline.wait_streaming(capture)
    assert pipeline.stop(capture) == 0
    _run(pipeline, "insert into {s}.account values (1)", f"select {change.format(pipeline.config.slot)}")
    again = pipeline.start_capture()
    assert again.wait(300) == 1
    assert said in again.log.read_text()


@pytest.mark.soak
def test_a_slot_without_state_is_not_taken_for_ours(pipeline: Pipeline) -> None:
    _run(pipeline, f"select pg_create_logical_replication_slot('{pipeline.config.slot}', 'pgoutput')")
    capture = pipeline.start_capture()
    assert capture.wait(300) == 1
    assert "Kafka holds no state for it" in capture.log.read_text()


@pytest.mark.parametrize(
    "its_format", [FORMAT + 1, *(pytest.param(other, marks=pytest.mark.soak) for other in (None, FORMAT - 1))]
)
def test_a_state_of_another_version_stops_capture_and_leaves_the_process_that_wrote_it_alone(
    pipeline: Pipeline, its_format: int | None
) -> None:
    create_missing_topics(pipeline.config.as_pipeline(), print)
    slot, kafka = pipeline.config.slot, pipeline.config.kafka
    other = TransactionalPublisher(
        pipeline.client,
        f"{pipeline.name}.{slot}",
        LargeRows(max_message_bytes=kafka.topics.max_message_bytes),
        prefix=pipeline.name,
    )
    other.start()
    theirs = orjson.loads(state(slot=slot).to_bytes()) | {"format": its_format}
    other.send(control_topic(pipeline.name, STATE), slot.encode(), orjson.dumps(theirs))
    other.commit(state(slot=f"{slot}_beside"))
    words = ("was written by another version of Lockstep", "run the version that wrote it")
    if its_format is None:
        words = ("doesn't say which format", "find out who else does")
    _assert_stopped(pipeline.start_capture(), *words)
    other.commit(state(slot=f"{slot}_beside"))  # raises Fenced if another capture has taken over
    other.close()


def test_no_log_holds_a_rows_value(pipeline: Pipeline) -> None:
    secret = "s3cr3t-value-of-a-row"
    _run(pipeline, f"insert into {{s}}.account (id, owner) values (1, '{secret}')")
    capture = pipeline.start_capture()
    pipeline.wait_streaming(capture)
    _run(
        pipeline,
        f"update {{s}}.account set owner = '{secret}2'",
        f"alter table {{s}}.account add column more text default '{secret}3'",
        "update {s}.account set id = 2",
        "truncate {s}.account",
        f"insert into {{s}}.account (id, owner) values (1, '{secret}')",
        "alter table {s}.account drop constraint account_pkey",
        f"insert into {{s}}.account (id, owner) values (1, '{secret}')",
    )
    assert capture.wait(300) == 1
    assert secret not in capture.log.read_text()
