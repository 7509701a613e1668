"""Records of the log, tasks and sinks, for tests of what runs inside Spark's tasks."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pyarrow as pa

from cdc.model.event import RowEvent
from jobs.executor.driver_line import Until
from jobs.executor.log_reader import Polled
from jobs.executor.open_sinks import close_sink
from jobs.executor.result import Failure, Result
from jobs.executor.rows import Rows
from jobs.executor.task_input import Task
from sinks.contract import Batch, OpenedSink, Outcome, Sink
from sinks.memory import MemorySink, MemoryStore, open_memory
from sinks.redis.settings import RedisSettings
from sinks.registry import SinkSettings
from tests.builders import table
from tests.events import key_bytes, value_bytes

ORDERS = table()
TOPIC = "shop.public.orders"
Record = tuple[bytes, bytes | None, str, int, int, bytes | None]
"""Key, value, topic, partition, offset, and a tombstone's tag."""

offsets = count()


def task(sink: Sink, fence: int = 0) -> Task:
    def open_it(_name: str, _settings: SinkSettings, _generation: int) -> OpenedSink:
        return replace(open_memory(MemoryStore()), sink=sink)

    return Task(
        "cache",
        RedisSettings(),
        1,
        fence,
        {TOPIC: ORDERS.name},
        {ORDERS.name: ORDERS},
        window_bytes=1 << 20,
        retry_s=0.01,
        run="first",
        open=open_it,
    )


def put(key: int, note: str, *, lsn: int, partition: int = 0) -> Record:
    row = {"id": key, "note": note}
    value = value_bytes(ORDERS, "u", row, lsn=lsn, seq=1, commit_time_ms=lsn * 10)
    return key_bytes(ORDERS, row), value, TOPIC, partition, next(offsets), None


def tombstone(key: int, *, lsn: int, partition: int = 0) -> Record:
    tag = f"0001{lsn:016x}00000001".encode()
    return key_bytes(ORDERS, {"id": key}), None, TOPIC, partition, next(offsets), tag


def event(op: str, key: int, note: str | None, *, lsn: int) -> Record:
    row = {"id": key, "note": note}
    value = value_bytes(ORDERS, op, row, lsn=lsn, seq=1, commit_time_ms=lsn * 10)
    return key_bytes(ORDERS, row), value, TOPIC, 0, next(offsets), None


def batch_of(records: Sequence[Record]) -> pa.RecordBatch:
    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("tombstone_tag", pa.binary()),
        ]
    )
    columns = zip(*records, strict=True) if records else [[]] * 6
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


def run(what: Task, *batches: Sequence[Record]) -> Result:
    return run_batches(what, *map(batch_of, batches))


def run_batches(what: Task, *batches: pa.RecordBatch) -> Result:
    """The same, with the error if there is one."""
    result = Result()
    rows = Rows(what, [], Until(), None, result)
    try:
        rows.take(Polled(batches, {}))
        rows.end()
    except Exception as error:
        close_sink(what)
        result.failures += Failure.all_of(error)
    return result


def rows(store: MemoryStore) -> dict[object, object]:
    return {row.key["id"]: row.row["note"] for row in MemorySink(store, 1).scan(ORDERS)}


class Recording(MemorySink):
    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, 1)
        self.batches: list[Batch] = []

    def apply(self, batch: Batch) -> Outcome:
        self.batches.append(batch)
        return super().apply(batch)


class Failing(MemorySink):
    def __init__(self, error: Exception) -> None:
        super().__init__(MemoryStore(), 1)
        self._error = error

    def apply(self, batch: Batch) -> Outcome:
        raise self._error


def refuse_twos(event: RowEvent) -> str | None:
    return "no twos" if event.key["id"] == 2 else None
