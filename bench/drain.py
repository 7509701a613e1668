"""Draining a backlog that was written while capture was stopped, beside a null reader of the same slot position."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition

from bench import null_reader
from bench.figures import Figure, Limit, Target
from bench.memory import bare_process_megabytes
from bench.null_reader import Drained
from bench.rig import NOTHING_ELSE, Child, Pipeline, Rig, Say, free_and_drop_slot
from bench.sizes import Sizes
from bench.usage import CpuMeter
from cdc.kafka.topic_names import PROGRESS, control_topic
from cdc.model.errors import LockstepError
from cdc.model.lsn import Lsn
from cdc.postgres.slot import wal_end
from cdc.protocol.compiled_code import VARIABLE, KernelChoice
from cdc.protocol.control_records import ProgressRecord
from cdc.stream.row_encoding import chosen_row_encoding

PHASE = "drain"
SECOND_HALF = "... second half"
PYTHON_SECOND_HALF = "without compiled code, second half"

_ROWS_PER_S_MIN = 1_000
"""A lower rate means that it is stuck, on any machine."""


@dataclass(frozen=True, slots=True)
class Step:
    """When a read-committed reader could see a batch, and how many events there were by then."""

    at: float
    events: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Rows per second of one drain, from three starting points to the last committed event."""

    from_first_event: float
    from_process_start: float
    second_half: float


def rates(*, started: float, first_event: float, steps: Sequence[Step], rows: int) -> Rates:
    """Times are Unix seconds; the last step is the end. Raises ValueError when there are no steps.

    The second half begins with the step nearest to half of the rows. If one batch holds everything, there is no second
    half and its rate is NaN.
    """
    end = steps[-1].at
    half = min(steps, key=lambda step: abs(step.events - rows / 2))
    rest = rows - half.events
    return Rates(
        from_first_event=rows / (end - first_event),
        from_process_start=rows / (end - started),
        second_half=rest / (end - half.at) if end > half.at else math.nan,
    )


class Follower:
    """Reads the pipeline's progress records, read-committed: one small record per Kafka transaction."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._topic = pipeline.topic
        self._base = pipeline.end_offsets()
        progress = TopicPartition(control_topic(pipeline.name, PROGRESS), 0)
        self._consumer = Consumer(
            {
                **pipeline.client,
                "group.id": "bench",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 20,
            }
        )
        self._last: tuple[float, int] | None = None
        _, end = self._consumer.get_watermark_offsets(progress, timeout=10)
        self._consumer.assign([TopicPartition(progress.topic, 0, end)])

    def follow(self, capture: Child, *, until_lsn: int, rows: int) -> list[Step]:
        """Wait until everything up to ``until_lsn`` is committed. Raises LockstepError when that takes too long."""
        steps: list[Step] = []
        markers = dict.fromkeys(self._base, 0)
        seen_ends = dict(self._base)
        for at, record in self._records(capture, rows):
            bounds = dict(enumerate(record.bounds.get(self._topic, ())))
            steps.append(Step(at, sum(bounds[p] - self._base[p] - markers[p] for p in bounds)))
            for partition, bound in bounds.items():
                # The transaction's own marker follows its events, and lies below the next bound.
                if bound > seen_ends[partition]:
                    markers[partition] += 1
                seen_ends[partition] = bound + 1
            if record.lsn >= until_lsn:
                break
        return [step for step in steps if step.events]

    def published_at(self, capture: Child, *, after_lsn: int, rows: int) -> float:
        """When the first transaction that ends after ``after_lsn`` is or was published. Raises LockstepError."""
        if self._last is not None and self._last[1] > after_lsn:
            return self._last[0]
        return next(at for at, record in self._records(capture, rows) if record.lsn > after_lsn)

    def _records(self, capture: Child, rows: int) -> Iterator[tuple[float, ProgressRecord]]:
        """Progress records as they arrive, endlessly. Raises LockstepError when no more arrive."""
        deadline = time.monotonic() + 60 + rows / _ROWS_PER_S_MIN
        while True:
            message = self._consumer.poll(0.1)
            if message is None:
                capture.check()
                if time.monotonic() > deadline:
                    raise LockstepError(
                        f"capture drained less than {_ROWS_PER_S_MIN} rows/s; its log: {capture.tail.log}"
                    )
                continue
            if message.error() is not None:
                raise LockstepError(f"the progress topic can't be read: {message.error()}")
            at, record = (
                time.time(),
                ProgressRecord.from_bytes(_bytes(message.value()), "a record of the progress topic"),
            )
            self._last = at, record.lsn
            yield at, record

    def first_event_at(self) -> float:
        """When capture handed the first event of the backlog to its producer. Raises as ``first_event_at`` does."""
        return first_event_at(self._consumer, self._topic, self._base)

    def close(self) -> None:
        self._consumer.close()


def first_event_at(consumer: Consumer, topic: str, base: Mapping[int, int]) -> float:
    """When the first event at or after these offsets was handed to its producer, by its own time stamp, in Unix
    seconds.

    Raises LockstepError when the events can't be read back.
    """
    consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in base.items()])
    earliest: dict[int, float] = {}
    deadline = time.monotonic() + 10
    while len(earliest) < len(base) and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            earliest.setdefault(message.partition() or 0, message.timestamp()[1] / 1000)
    if not earliest:
        raise LockstepError("the drained events can't be read back")
    return min(earliest.values())


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value


@dataclass(frozen=True, slots=True)
class _Drained:
    rate: Rates
    seconds_from_first_event: float
    seconds_to_first_event: float
    kafka_transactions: int
    cpu_s: dict[str, float]
    memory_mb: float


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """Write a backlog, read it with the null reader, drain it with capture. Returns figures and details.

    If capture has compiled code, another backlog is drained without it. Raises LockstepError when capture fails or
    takes too long.
    """
    rows, warm = sizes.drain_rows, sizes.drain_warm_rows
    with rig.pipeline("drain") as pipeline, pipeline.sql() as connection:
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
        pipeline.stop(capture)
        if warm:
            say(f"warm-up: {warm:,} rows")
            _drain(rig, pipeline, _backlog(pipeline, connection, sizes, first=0, rows=warm, say=say), warm, say)
        null_slot = f"{pipeline.config.slot}_null"
        pipeline.copy_slot(connection, null_slot)
        target = _backlog(pipeline, connection, sizes, first=warm, rows=rows, say=say)
        null_cpu = CpuMeter(rig.server_pids)
        floor = null_reader.drain(
            pipeline.endpoints.source_dsn, slot=null_slot, publication=pipeline.config.publication, rows=rows
        )
        free_and_drop_slot(connection, null_slot)
        floor_cpu = null_cpu.used()
        say(f"null reader: {floor.rows / floor.seconds_from_first:,.0f} rows/s")
        drained = _drain(rig, pipeline, target, rows, say)
        figures, details = _figures(drained, floor, rows), _details(drained)
        if chosen_row_encoding().module is not None:
            say("the same without compiled code")
            target = _backlog(pipeline, connection, sizes, first=warm + rows, rows=rows, say=say)
            python = _drain(rig, pipeline, target, rows, say, environment={VARIABLE: KernelChoice.OFF})
            figures += _python_figures(python, drained, rows)
            details["without_compiled_code"] = _details(python)
    return figures, details | {
        "rows": rows,
        "transaction_rows": sizes.drain_transaction_rows,
        "null_reader": {key: round(value, 3) for key, value in asdict(floor).items()} | {"server_cpu_s": floor_cpu},
    }


def _backlog(
    pipeline: Pipeline, connection: psycopg.Connection[Any], sizes: Sizes, *, first: int, rows: int, say: Say
) -> Lsn:
    """Write it. Returns the end of the WAL after it."""
    began = time.monotonic()
    pipeline.load(connection, first=first, rows=rows, per_transaction=sizes.drain_transaction_rows)
    target = wal_end(connection)
    # Otherwise the server would write its pages during a measurement.
    connection.execute("checkpoint")
    say(f"backlog of {rows:,} rows written in {time.monotonic() - began:.1f} s")
    return target


def _drain(
    rig: Rig,
    pipeline: Pipeline,
    target: Lsn,
    rows: int,
    say: Say,
    *,
    environment: Mapping[str, str] = NOTHING_ELSE,
) -> _Drained:
    follower = Follower(pipeline)
    cpu = CpuMeter(rig.server_pids)
    capture = pipeline.start_capture(environment=environment)
    capture_cpu = CpuMeter({"capture": capture.process.pid})
    try:
        steps = follower.follow(capture, until_lsn=target, rows=rows)
        used = capture_cpu.used() | cpu.used()
        pipeline.stop(capture)
        first_event = follower.first_event_at()
    finally:
        follower.close()
    rate = rates(started=capture.started, first_event=first_event, steps=steps, rows=rows)
    say(f"capture: {rate.from_first_event:,.0f} rows/s, {capture.memory.megabytes:.0f} MB")
    return _Drained(
        rate,
        steps[-1].at - first_event,
        first_event - capture.started,
        len(steps),
        used,
        capture.memory.megabytes,
    )


def _figures(drained: _Drained, floor: Drained, rows: int) -> list[Figure]:
    null = Limit(value=floor.rows / floor.seconds_from_first, what="null libpq reader, same slot position")
    at_least = Target(bound="at least", amount=0.5, of_limit=True)
    return [
        _figure("rows per second", drained.rate.from_first_event, null, at_least),
        _figure(SECOND_HALF, drained.rate.second_half, null),
        _figure(
            "... from process start",
            drained.rate.from_process_start,
            Limit(value=floor.rows / floor.seconds, what=null.what),
        ),
        Figure(
            phase=PHASE,
            name="processor time of capture",
            value=1e6 * drained.cpu_s["capture"] / rows,
            unit="us/row",
            limit=Limit(value=1e6 * floor.cpu_s / rows, what="the null reader's own"),
            target=Target(bound="at most", amount=10),
        ),
        Figure(
            phase=PHASE,
            name="peak memory of capture",
            value=drained.memory_mb,
            unit="MB",
            limit=Limit(value=bare_process_megabytes(), what="Python with the same clients, idle"),
            target=Target(bound="at most", amount=150),
        ),
    ]


def _python_figures(python: _Drained, drained: _Drained, rows: int) -> list[Figure]:
    what = "the same with compiled code"
    return [
        _figure(
            "without compiled code", python.rate.from_first_event, Limit(value=drained.rate.from_first_event, what=what)
        ),
        _figure(PYTHON_SECOND_HALF, python.rate.second_half, Limit(value=drained.rate.second_half, what=what)),
        Figure(
            phase=PHASE,
            name="without compiled code, processor time of capture",
            value=1e6 * python.cpu_s["capture"] / rows,
            unit="us/row",
            limit=Limit(value=1e6 * drained.cpu_s["capture"] / rows, what=what),
        ),
    ]


def _details(drained: _Drained) -> dict[str, Any]:
    return {
        "seconds_from_first_event": round(drained.seconds_from_first_event, 3),
        "seconds_to_first_event": round(drained.seconds_to_first_event, 3),
        "kafka_transactions": drained.kafka_transactions,
        "cpu_s": drained.cpu_s,
    }


def _figure(name: str, value: float, limit: Limit, target: Target | None = None) -> Figure:
    return Figure(phase=PHASE, name=name, value=value, unit="rows/s", limit=limit, target=target)
