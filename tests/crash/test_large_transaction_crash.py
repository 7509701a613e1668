"""Kill -9 of capture around a transaction of millions of rows: each row comes once."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from bench.usage import high_water_mark
from cdc.kafka.topic_admin import TopicAdmin
from cdc.postgres.slot import find_slot
from tests.pipeline import Pipeline, Process, wait_until
from tests.topics import assign

pytestmark = [pytest.mark.live, pytest.mark.crash, pytest.mark.soak]

_ROWS = 2_000_000
_MEMORY_BYTES_MAX = 150_000_000
_SEQ_AT = slice(37, 45)
"""Where an event's value has the last part of its tag."""


@pytest.fixture
def pipeline(stack: Any, tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline of one narrow table. PostgreSQL's own defaults decide what is large."""
    name = f"large{os.getpid()}"
    made = Pipeline(stack.endpoints(), tmp_path, name)
    with made.sql() as connection:
        connection.execute(f"create table {name}.narrow (id bigint primary key, amount int)".encode())
    settings = made.path.read_text().replace(f'"{name}.account", "{name}.entry"', f'"{name}.narrow"')
    made.path.write_text(settings)
    yield made
    made.close()


def _memory(process: Process) -> int:
    return high_water_mark(Path(f"/proc/{process.pid}/status").read_text()) or 0


def _kill(process: Process) -> int:
    """Kill it; returns its greatest memory use."""
    memory = _memory(process)
    process.send_signal(signal.SIGKILL)
    assert process.wait(300) == -signal.SIGKILL
    return memory


def _spilled_bytes(pipeline: Pipeline) -> int:
    """How many bytes PostgreSQL has spilled of transactions that hadn't committed."""
    with pipeline.sql() as connection:
        query = "select spill_bytes from pg_stat_replication_slots where slot_name = %s"
        row = connection.execute(query, (pipeline.config.slot,)).fetchone()
    return 0 if row is None else int(row[0])


def _published_rows(pipeline: Pipeline) -> tuple[bytearray, bytearray]:
    """How often each ``seq``, and each key, is on the topic, for a read-committed reader."""
    seqs, keys = bytearray(_ROWS + 1), bytearray(_ROWS + 1)
    topic = f"{pipeline.name}.{pipeline.name}.narrow"
    partitions = [
        (topic, partition) for partition in range(TopicAdmin(pipeline.client).partition_counts([topic])[topic])
    ]
    ends = TopicAdmin(pipeline.client).end_offsets(partitions)
    consumer = Consumer(
        {
            **pipeline.client,
            "group.id": "test",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    assign(consumer, [TopicPartition(topic, partition, 0) for _, partition in partitions])
    try:
        at_end = 0
        while at_end < len(ends):
            for message in consumer.consume(10_000, 1.0):
                if message.error() is not None:
                    at_end += 1  # nothing is written any more, so each partition ends once
                    continue
                seqs[int((message.value() or b"")[_SEQ_AT], 16)] += 1
                keys[int((message.key() or b"")[len(b'{"id":') : -1])] += 1
    finally:
        consumer.close()
    return seqs, keys


def test_kill_9_around_a_transaction_of_millions_of_rows_loses_and_repeats_nothing(pipeline: Pipeline) -> None:
    capture = pipeline.start_capture()
    pipeline.wait_streaming(capture)
    pipeline.wait_published(capture)
    many = f"insert into {pipeline.name}.narrow select i, i % 100 from generate_series({{}}, {{}}) i"
    with pipeline.sql() as running, running.transaction():
        running.execute(many.format(1, _ROWS // 2).encode())
        wait_until(lambda: _spilled_bytes(pipeline) > 0, what="PostgreSQL decodes it")
        memory = [_kill(capture)]
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
        running.execute(many.format(_ROWS // 2 + 1, _ROWS).encode())
    before = pipeline.state()
    assert before is not None

    def in_its_middle() -> bool:
        assert capture.poll() is None, capture.output()
        state = pipeline.state()
        return state is not None and state.begun is not None and state.seq > 0

    wait_until(in_its_middle, what="a part of it is published")
    memory.append(_kill(capture))
    state = pipeline.state()
    assert state is not None
    assert 0 < state.seq < _ROWS, "all of it was published before the kill"
    with pipeline.sql() as connection:
        wait_until(
            lambda: getattr(find_slot(connection, pipeline.config.slot), "active_pid", None) is None,
            what="PostgreSQL has noticed",
        )
    capture = pipeline.start_capture()
    pipeline.wait_streaming(capture)
    pipeline.wait_published(capture, timeout_s=600)
    memory.append(_memory(capture))
    assert pipeline.stop(capture) == 0, capture.output()

    seqs, keys = _published_rows(pipeline)
    assert (seqs[0], set(seqs[1:])) == (0, {1})
    assert (keys[0], set(keys[1:])) == (0, {1})
    assert max(memory) <= _MEMORY_BYTES_MAX, memory
