"""From commit to a read-committed consumer, at a steady rate of small transactions, and then at a higher one.

Two figures without Lockstep are measured beside it: when a null reader of the WAL sees the same commits, and Kafka
transactions of one record, from their begin to the same consumer.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import orjson
import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.figures import Figure, Limit, Target, percentile
from bench.null_reader import CommitWatcher
from bench.rig import Pipeline, Rig, Say, wait_until
from bench.sizes import Sizes
from bench.usage import CpuMeter
from cdc.model.errors import LockstepError

PHASE = "into Kafka"
BROKER = "processor time of Kafka"

PERCENTS = (50.0, 90.0, 99.0, 99.9)

_TARGETS_MS = {"p50": 10.0, "p99": 30.0}
_HIGH_TARGETS_MS = {"p99": 60.0}
_RATE_OF_A_WRITER = 250

_SETTLE_S = 20.0
"""How long to wait for the last events; then missing ones are an error."""

_BARE_TRANSACTIONS = 300


class Watcher(threading.Thread):
    """A read-committed consumer of one topic. ``seen`` maps the row's id in the key to its time of arrival."""

    def __init__(self, client: Mapping[str, str | int], topic: str) -> None:
        super().__init__(name="consumer", daemon=True)
        self.seen: dict[int, float] = {}
        self._finished = threading.Event()
        self._consumer = Consumer(
            {
                **client,
                "group.id": "bench",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
            }
        )
        partitions = self._consumer.list_topics(topic, timeout=10).topics[topic].partitions
        ends = [
            (partition, self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)[1])
            for partition in partitions
        ]
        self._consumer.assign([TopicPartition(topic, partition, end) for partition, end in ends])

    def run(self) -> None:
        while not self._finished.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            now = time.time()
            self.seen.setdefault(orjson.loads(message.key() or b"{}")["id"], now)

    def finish(self) -> None:
        self._finished.set()
        self.join(10)
        self._consumer.close()


def commit_steadily(
    pipeline: Pipeline, connection: psycopg.Connection[Any], *, first: int, rate: int, seconds: float
) -> dict[int, tuple[float, float]]:
    """Insert rows one by one at ``rate`` on average. Returns id -> (before the statement, when its commit returned)."""
    times: dict[int, tuple[float, float]] = {}
    began = time.time()
    for k in range(round(rate * seconds)):
        row = first + k
        sent_at = time.time()
        pipeline.insert(connection, row)
        times[row] = (sent_at, time.time())
        ahead_s = began + (k + 1) / rate - time.time()
        if ahead_s > 0:
            time.sleep(ahead_s)
    return times


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    return {f"p{percent:g}": round(1000 * percentile(seconds, percent), 3) for percent in PERCENTS}


def commit_side_by_side(pipeline: Pipeline, *, first: int, rate: int, seconds: float) -> dict[int, tuple[float, float]]:
    """The same with as many connections as the rate needs, since each waits for its durable commits."""
    writers = -(-rate // _RATE_OF_A_WRITER)
    each = rate // writers

    def write(number: int) -> dict[int, tuple[float, float]]:
        with pipeline.sql() as connection:
            return commit_steadily(
                pipeline, connection, first=first + number * round(each * seconds), rate=each, seconds=seconds
            )

    with ThreadPoolExecutor(writers) as pool:
        return {row: times for written in pool.map(write, range(writers)) for row, times in written.items()}


@dataclass(frozen=True, slots=True)
class _Followed:
    """One rate: when each row's commit returned, when it arrived, and the cost."""

    rate: int
    sent: Mapping[int, tuple[float, float]]
    took_s: float
    cpu_s: dict[str, float]
    consumer_ms: dict[str, float]
    null_reader_ms: dict[str, float]


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """Returns figures and details. Raises LockstepError when events don't arrive in time."""
    with rig.pipeline("latency", capture="commit_interval_ms = 10") as pipeline:
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
        null_slot = f"{pipeline.config.slot}_null"
        with pipeline.sql() as connection:
            pipeline.copy_slot(connection, null_slot)
        null = CommitWatcher(pipeline.endpoints.source_dsn, slot=null_slot, publication=pipeline.config.publication)
        watcher = Watcher(pipeline.client, pipeline.topic)
        null.start()
        watcher.start()
        first = 0

        def follow(rate: int) -> _Followed:
            nonlocal first
            say(f"warm-up: {sizes.latency_warm_s:.0f} s at {rate} transactions/s")
            first += len(commit_side_by_side(pipeline, first=first, rate=rate, seconds=sizes.latency_warm_s))
            say(f"measuring: {sizes.latency_s:.0f} s")
            cpu = CpuMeter(rig.server_pids | {"capture": capture.process.pid})
            began = time.time()
            sent = commit_side_by_side(pipeline, first=first, rate=rate, seconds=sizes.latency_s)
            first += len(sent)
            took_s = time.time() - began
            used = cpu.used()
            wait_for_all(sent, watcher.seen, null.seen)
            returned = {row: returned_at for row, (_, returned_at) in sent.items()}
            followed = _Followed(
                rate,
                sent,
                took_s,
                used,
                percentiles_ms([watcher.seen[row] - returned_at for row, returned_at in returned.items()]),
                percentiles_ms([null.seen[row] - returned_at for row, returned_at in returned.items()]),
            )
            say(f"capture: p50 {followed.consumer_ms['p50']:.1f} ms, p99 {followed.consumer_ms['p99']:.1f} ms")
            return followed

        try:
            usual, high = follow(sizes.latency_rate), follow(sizes.latency_high_rate)
        finally:
            null.finish()
            watcher.finish()
        capture.check()
        pipeline.stop(capture)
        bare = percentiles_ms(_bare_transactions(pipeline, rate=sizes.latency_rate))
    figures = [
        *_figures(usual, bare, name="commit to consumer", targets_ms=_TARGETS_MS),
        broker_figure(PHASE, usual.cpu_s["kafka"], usual.took_s),
        *_figures(high, bare, name=f"at {high.rate:,} transactions/s", targets_ms=_HIGH_TARGETS_MS),
    ]
    details = {
        "bare_kafka_transaction_ms": bare,
        "capture_peak_memory_mb": round(capture.memory.megabytes, 1),
        "rates": [_details(followed) for followed in (usual, high)],
    }
    return figures, details


def _figures(
    followed: _Followed, bare_ms: Mapping[str, float], *, name: str, targets_ms: Mapping[str, float]
) -> list[Figure]:
    return [
        Figure(
            phase=PHASE,
            name=f"{name}, {percent}",
            value=value,
            unit="ms",
            limit=Limit(
                value=followed.null_reader_ms[percent] + bare_ms[percent],
                what="commit to null reader, plus a bare Kafka transaction",
            ),
            target=Target(bound="at most", amount=targets_ms[percent]) if percent in targets_ms else None,
        )
        for percent, value in followed.consumer_ms.items()
    ]


def _details(followed: _Followed) -> dict[str, Any]:
    return {
        "rate": followed.rate,
        "achieved_rate": round(len(followed.sent) / followed.took_s, 1),
        "events": len(followed.sent),
        "commit_to_consumer_ms": followed.consumer_ms,
        "commit_to_null_reader_ms": followed.null_reader_ms,
        "statement_and_commit_ms": percentiles_ms(
            [returned_at - sent_at for sent_at, returned_at in followed.sent.values()]
        ),
        "cpu_s": followed.cpu_s,
    }


def broker_figure(phase: str, used_s: float, took_s: float) -> Figure:
    """The broker's use of one core: mostly for the publisher, and for the consumer that watches."""
    return Figure(phase=phase, name=BROKER, value=100 * used_s / took_s, unit="% of a core")


def wait_for_all(sent: Mapping[int, object], *arrivals: Mapping[int, float]) -> None:
    def all_seen() -> bool:
        return all(row in watched for watched in arrivals for row in sent)

    wait_until(
        all_seen, what="every committed row was seen by the consumer and by the null reader", timeout_s=_SETTLE_S
    )


def _bare_transactions(pipeline: Pipeline, *, rate: int) -> list[float]:
    """Begin to seen, of Kafka transactions of one record, one after the other at up to ``rate`` per second."""
    topic = f"{pipeline.name}.bare"
    admin = AdminClient(dict(pipeline.client))
    partitions = pipeline.config.kafka.topics.partitions
    admin.create_topics([NewTopic(topic, partitions, 1)], operation_timeout=10)[topic].result(10)
    producer = Producer({**pipeline.client, "transactional.id": topic, "linger.ms": 0, "retry.backoff.ms": 5})
    producer.init_transactions(30)
    watcher = Watcher(pipeline.client, topic)
    watcher.start()
    began: dict[int, float] = {}
    try:
        for row in range(_BARE_TRANSACTIONS):
            began[row] = time.time()
            producer.begin_transaction()
            producer.produce(topic, b"x" * 400, orjson.dumps({"id": row}))
            producer.commit_transaction(30)
            ahead_s = began[row] + 1 / rate - time.time()
            if ahead_s > 0:
                time.sleep(ahead_s)
        wait_for_all(began, watcher.seen)
    finally:
        watcher.finish()
        admin.delete_topics([topic])[topic].result(10)
    # The first ones open connections.
    measured = [watcher.seen[row] - begin for row, begin in began.items()][_BARE_TRANSACTIONS // 10 :]
    if not measured:
        raise LockstepError("no bare Kafka transaction was seen")
    return measured
