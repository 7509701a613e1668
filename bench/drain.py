"""Draining a backlog that was written while capture was stopped, beside a null reader of the same slot position."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from bench import null_reader
from bench.figures import Figure, Limit, Target
from bench.memory import bare_process_megabytes
from bench.rig import Child, Pipeline, Rig, Say
from bench.sizes import Sizes
from bench.usage import CpuMeter
from cdc.kafka.topic_names import PROGRESS, control_topic
from cdc.model.errors import LockstepError
from cdc.postgres.slot import wal_end
from cdc.protocol.control_records import ProgressRecord

PHASE = "drain"

_ROWS_PER_S_MIN = 1_000
"""Slower than this is stuck, whatever the machine."""


@dataclass(frozen=True, slots=True)
class Step:
    """A batch that a read-committed reader can see: when it could, and how many events there were by then."""

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

    The second half begins with the step nearest to half of the rows. Where one batch holds everything, there is no
    second half and its rate is NaN.
    """
    end = steps[-1].at
    half = min(steps, key=lambda step: abs(step.events - rows / 2))
    rest = rows - half.events
    return Rates(
        from_first_event=rows / (end - first_event),
        from_process_start=rows / (end - started),
        second_half=rest / (end - half.at) if end > half.at else math.nan,
    )


class _Follower:
    """Follows the pipeline's progress records as a read-committed reader: one small record per Kafka transaction."""

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
        _, end = self._consumer.get_watermark_offsets(progress, timeout=10)
        self._consumer.assign([TopicPartition(progress.topic, 0, end)])

    def follow(self, capture: Child, *, until_lsn: int, rows: int) -> list[Step]:
        """Wait until everything up to ``until_lsn`` is committed. Raises LockstepError when that takes too long."""
        deadline = time.monotonic() + 60 + rows / _ROWS_PER_S_MIN
        steps: list[Step] = []
        markers = dict.fromkeys(self._base, 0)
        seen_ends = dict(self._base)
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
            record = ProgressRecord.from_bytes(_bytes(message.value()), "a record of the progress topic")
            bounds = dict(enumerate(record.bounds.get(self._topic, ())))
            steps.append(Step(time.time(), sum(bounds[p] - self._base[p] - markers[p] for p in bounds)))
            for partition, bound in bounds.items():
                # The transaction's own marker follows its events, and lies below the next bound.
                if bound > seen_ends[partition]:
                    markers[partition] += 1
                seen_ends[partition] = bound + 1
            if record.lsn >= until_lsn:
                return [step for step in steps if step.events]

    def first_event_at(self) -> float:
        """When capture handed the first event of the backlog to its producer. Raises as ``first_event_at``."""
        return first_event_at(self._consumer, self._topic, self._base)

    def close(self) -> None:
        self._consumer.close()


def first_event_at(consumer: Consumer, topic: str, base: Mapping[int, int]) -> float:
    """When the first event at or after these offsets was handed to its producer, by the event's own time stamp.

    In Unix seconds. Raises LockstepError when the events can't be read back.
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


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """Write a backlog, read it with the null reader, drain it with capture. Returns figures and details.

    Raises LockstepError when capture fails or takes too long.
    """
    with rig.pipeline("drain") as pipeline:
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
        pipeline.stop(capture)
        if sizes.drain_warm_rows:
            say(f"warm-up: {sizes.drain_warm_rows:,} rows")
            _drain(rig, pipeline, sizes, first=0, rows=sizes.drain_warm_rows, say=say)
        return _drain(rig, pipeline, sizes, first=sizes.drain_warm_rows, rows=sizes.drain_rows, say=say)


def _drain(
    rig: Rig, pipeline: Pipeline, sizes: Sizes, *, first: int, rows: int, say: Say
) -> tuple[list[Figure], dict[str, Any]]:
    null_slot = f"{pipeline.config.slot}_null"
    with pipeline.sql() as connection:
        pipeline.copy_slot(connection, null_slot)
        began = time.monotonic()
        pipeline.load(connection, first=first, rows=rows, per_transaction=sizes.drain_transaction_rows)
        target = wal_end(connection)
        # Else the server writes its pages while somebody is measured.
        connection.execute("checkpoint")
        say(f"backlog of {rows:,} rows written in {time.monotonic() - began:.1f} s")
        null_cpu = CpuMeter(rig.server_pids)
        floor = null_reader.drain(
            pipeline.endpoints.source_dsn, slot=null_slot, publication=pipeline.config.publication, rows=rows
        )
        pipeline.drop_slot(connection, null_slot)
        floor_cpu = null_cpu.used()
        limit = floor.rows / floor.seconds_from_first
        say(f"null reader: {limit:,.0f} rows/s")

    follower = _Follower(pipeline)
    cpu = CpuMeter(rig.server_pids)
    capture = pipeline.start_capture()
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

    null = Limit(value=limit, what="null libpq reader, same slot position")
    figures = [
        _figure("rows per second", rate.from_first_event, null, Target(bound="at least", amount=0.2, of_limit=True)),
        _figure("... second half", rate.second_half, null),
        _figure(
            "... from process start", rate.from_process_start, Limit(value=floor.rows / floor.seconds, what=null.what)
        ),
        Figure(
            phase=PHASE,
            name="processor time of capture",
            value=1e6 * used["capture"] / rows,
            unit="us/row",
            limit=Limit(value=1e6 * floor.cpu_s / rows, what="the null reader's own"),
        ),
        Figure(
            phase=PHASE,
            name="peak memory of capture",
            value=capture.memory.megabytes,
            unit="MB",
            limit=Limit(value=bare_process_megabytes(), what="Python with the same clients, idle"),
            target=Target(bound="at most", amount=150),
        ),
    ]
    details = {
        "rows": rows,
        "transaction_rows": sizes.drain_transaction_rows,
        "seconds_from_first_event": round(steps[-1].at - first_event, 3),
        "seconds_to_first_event": round(first_event - capture.started, 3),
        "kafka_transactions": len(steps),
        "cpu_s": used,
        "null_reader": {key: round(value, 3) for key, value in asdict(floor).items()} | {"server_cpu_s": floor_cpu},
    }
    return figures, details


def _figure(name: str, value: float, limit: Limit, target: Target | None = None) -> Figure:
    return Figure(phase=PHASE, name=name, value=value, unit="rows/s", limit=limit, target=target)
