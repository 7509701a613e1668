"""A view beside Flink SQL, which maintains the same query over the same topics in the same run, one after the other.

Both write their result to a compacted topic of one partition, and a read-committed reader of it sees when a change is
visible. Ours is in the cache even before that. Flink is measured at least once, where a row is visible as soon as it is
computed, and exactly once, where it is visible at the next checkpoint. Both final results are compared with the query
on the source, and with each other. Flink is left out if its jars can't be fetched.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import psycopg
from confluent_kafka.admin import AdminClient, NewTopic

from bench.figures import Figure, Limit, Target
from bench.flink_job import AT_LEAST_ONCE, EXACTLY_ONCE, FlinkJob
from bench.latency import percentiles_ms
from bench.rig import Child, Rig, Say, wait_published, wait_streaming, wait_until
from bench.sizes import Sizes
from bench.timeline import VIEW, Follower, Key, Load, Row, Timeline, TopicRows, Traffic, differing
from bench.usage import CpuMeter, FamilyMemory, cpu_seconds
from cdc.kafka.topic_names import view_topic
from cdc.model.errors import LockstepError
from stack import jars
from stack.errors import StackError
from views.state.file import FILE_NAME

PHASE = "beside Flink SQL"

_QUIET_S = 0.5
"""Rows are compared when no record has come for so long: each comparison of all rows takes the processor."""

_SETTLE_S = 60.0
_BUILD_S = 600.0
_START_S = 180.0


@dataclass(frozen=True, slots=True)
class Kept:
    """The cost of maintaining the view in one program.

    The start lasts until the first event could be read, and isn't part of the times of building. Ours is Spark's start,
    Flink's that of its cluster in the JVM, with the planning of the query.
    """

    start_s: float
    start_cpu_s: float
    events: int
    """In the backlog from which it was built."""
    build_s: float
    build_cpu_s: float
    visible_ms: Mapping[str, float]
    transactions: int
    cpu_s: Mapping[str, float]
    """Processor seconds during these transactions: ``self``, and the servers'."""
    memory_mb: float
    rows: int
    differing: int
    """Rows in the end that differ from the query on the source."""

    @property
    def build_rate(self) -> float:
        """Events per second."""
        return self.events / self.build_s

    @property
    def build_cpu_us(self) -> float:
        """Per event."""
        return 1e6 * self.build_cpu_s / self.events

    @property
    def transaction_cpu_ms(self) -> float:
        return 1e3 * self.cpu_s["self"] / self.transactions


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """Returns figures and details, or none without Flink's jars.

    Raises LockstepError when one of them fails or takes too long, and when our rows differ from the source's.
    """
    try:
        jars.fetch(["flink"])
    except StackError as error:
        say(f"Flink isn't measured: {error}")
        return [], {"left_out": str(error)}
    rig.up("postgres", "kafka", "valkey")
    timeline = Timeline(rig, users=sizes.timeline_users)
    run = _Run(rig, sizes, say, timeline)
    try:
        return run.measure()
    except Exception:
        run.say_logs()
        raise
    finally:
        run.close()


class _Run:
    def __init__(self, rig: Rig, sizes: Sizes, say: Say, timeline: Timeline) -> None:
        self._rig = rig
        self._sizes = sizes
        self._say = say
        self._timeline = timeline
        self._traffic = Traffic(timeline)
        self._children: list[Child] = []
        self._followers: list[Follower] = []
        self._jobs: list[FlinkJob] = []
        self._events = 0

    def measure(self) -> tuple[list[Figure], dict[str, Any]]:
        timeline, say = self._timeline, self._say
        capture = self._start("capture")
        wait_streaming(self._timeline.config, self._timeline.endpoints, capture)
        with timeline.sql() as connection:
            self._events += timeline.fill(connection)
            wait_published(self._timeline.config, capture, self._timeline.wal_end())
            say(f"a backlog of {self._events:,} events is published")
            ours, rows = self._ours(connection)
            if ours.differing:
                raise LockstepError(f"{ours.differing:,} rows of the view aren't those of its query on the source")
            least, _ = self._flink(connection, AT_LEAST_ONCE)
            exactly, theirs = self._flink(connection, EXACTLY_ONCE)
            wait_published(self._timeline.config, capture, self._timeline.wal_end())
            # The source's changes since ours was stopped.
            once = self._start("apply", "--once")
            wait_until(lambda: not once.is_alive, what="apply --once is done", timeout_s=_START_S, every_s=0.2)
            final = timeline.expected(connection)
            _, missing = _wait_equal(rows.seen, final, lambda: None, timeout_s=_SETTLE_S)
            between = differing(rows.seen.rows(), theirs.seen.rows())
        if missing:
            raise LockstepError(f"{missing:,} rows of the view aren't those of its query on the source")
        say(f"{len(final):,} rows in the end; {between:,} of Flink's are others than ours")
        details = {"ours": asdict(ours), "flink_at_least_once": asdict(least), "flink_exactly_once": asdict(exactly)}
        return figures_of(ours, least, exactly, between=between, rate=self._sizes.sink_rate), details

    def say_logs(self) -> None:
        """Show the ends of the logs, which may say why something failed."""
        for child in [*self._children, *(job.child for job in self._jobs)]:
            self._say(f"the end of the log of {child.name}:\n{child.tail.last(25)}")

    def close(self) -> None:
        for follower in self._followers:
            follower.finish()
        for job in self._jobs:
            job.stop()
        for child in reversed(self._children):
            self._rig.stop(child)
        self._timeline.remove()

    def _ours(self, connection: psycopg.Connection[Any]) -> tuple[Kept, Follower]:
        timeline = self._timeline
        follower = self._follow(view_topic(timeline.name, VIEW, 1))
        began = time.time()
        apply = self._start("apply")

        def builds() -> bool:
            apply.check()
            return any(timeline.states.glob(f"**/{FILE_NAME}"))

        # The file of a state is made when its building is about to read events.
        wait_until(builds, what="the view is being built", timeout_s=_START_S, every_s=0.02)
        started = _Started.now(apply, began)
        kept = self._keep(connection, follower, "ours", started, apply.check)
        self._rig.stop(apply)
        self._children.remove(apply)
        return kept, follower

    def _flink(self, connection: psycopg.Connection[Any], guarantee: str) -> tuple[Kept, Follower]:
        timeline = self._timeline
        topic = f"{timeline.name}.flink.{guarantee}"
        made = NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})
        admin = AdminClient(dict(timeline.client))
        admin.create_topics([made], operation_timeout=10)[topic].result(10)
        follower = self._follow(topic)
        began = time.time()
        job = FlinkJob(self._rig, name=guarantee)
        self._jobs.append(job)
        servers = timeline.endpoints.kafka_bootstrap
        job.prepare(timeline.topics, servers=servers, result_topic=topic, guarantee=guarantee)
        job.run()
        wait_until(job.is_running, what="Flink's job runs", timeout_s=_START_S)
        started = _Started.now(job.child, began)
        kept = self._keep(connection, follower, f"Flink, {guarantee}", started, job.check)
        job.stop()
        self._jobs.remove(job)
        return kept, follower

    def _keep(
        self,
        connection: psycopg.Connection[Any],
        follower: Follower,
        who: str,
        started: "_Started",
        check: Callable[[], None],
    ) -> Kept:
        """Wait until the view is built, then change it."""
        sizes, say, events = self._sizes, self._say, self._events
        memory = FamilyMemory(started.pid)
        memory.start()
        try:
            say(f"{who}: started in {started.seconds:.1f} s; building from {events:,} events")
            built_at, missing = _wait_equal(
                follower.seen, self._timeline.expected(connection), check, timeout_s=_BUILD_S
            )
            build_cpu_s = cpu_seconds(started.pid) - started.cpu_s
            if missing:
                say(f"{who}: {missing:,} rows aren't those of the query on the source")
            say(f"{who}: built in {built_at - started.at:.1f} s; {sizes.sink_warm_s:.0f} s of changes to get warm")
            self._change(connection, sizes.sink_warm_s)
            say(f"{who}: measuring for {sizes.timeline_s:.0f} s")
            servers = {name: self._rig.server_pids[name] for name in ("kafka", "valkey")}
            cpu = CpuMeter({"self": started.pid, **servers})
            load = self._change(connection, sizes.timeline_s)
            used = cpu.used()
            expected = self._timeline.expected(connection)
            _, missing = _wait_equal(follower.seen, expected, check, timeout_s=_SETTLE_S)
        finally:
            memory_mb = memory.finish()
        visible_ms = percentiles_ms(load.seconds_until_seen(follower.seen.first_seen))
        say(f"{who}: p50 {visible_ms['p50']:.0f} ms, p99 {visible_ms['p99']:.0f} ms; {missing:,} rows differ")
        return Kept(
            start_s=started.seconds,
            start_cpu_s=started.cpu_s,
            events=events,
            build_s=built_at - started.at,
            build_cpu_s=build_cpu_s,
            visible_ms=visible_ms,
            transactions=load.transactions,
            cpu_s=used,
            memory_mb=memory_mb,
            rows=len(expected),
            differing=missing,
        )

    def _change(self, connection: psycopg.Connection[Any], seconds: float) -> Load:
        load = self._traffic.run(connection, rate=self._sizes.sink_rate, seconds=seconds)
        self._events += load.changes
        return load

    def _start(self, command: str, *options: str) -> Child:
        child = self._rig.start(command, command, *options, "--config", str(self._timeline.path))
        self._children.append(child)
        return child

    def _follow(self, topic: str) -> Follower:
        follower = Follower(self._timeline.client, topic)
        self._followers.append(follower)
        follower.start()
        return follower


@dataclass(frozen=True, slots=True)
class _Started:
    """A program that is about to read its first event."""

    pid: int
    at: float
    seconds: float
    cpu_s: float
    """Both since it was started."""

    @classmethod
    def now(cls, child: Child, began: float) -> Self:
        now = time.time()
        return cls(child.process.pid, now, now - began, cpu_seconds(child.process.pid))


def _wait_equal(
    topic: TopicRows, expected: Mapping[Key, Row], check: Callable[[], None], *, timeout_s: float
) -> tuple[float, int]:
    """Wait until a topic has exactly these rows. Returns its last record's time, and how many rows differ then."""
    deadline = time.monotonic() + timeout_s
    compared, differ = -1, len(expected)
    while differ and time.monotonic() < deadline:
        check()
        records, last_at = topic.records, topic.last_at
        if records != compared and time.time() - last_at > _QUIET_S:
            compared, differ = records, differing(topic.rows(), expected)
            if not differ:
                return last_at, 0
        time.sleep(0.1)
    return topic.last_at, differ


def figures_of(ours: Kept, least: Kept, exactly: Kept, *, between: int, rate: int) -> list[Figure]:
    """Ours beside Flink's at least once; its latency exactly once shows the price of the guarantee. Pure."""
    beside: list[tuple[str, Callable[[Kept], float], str]] = [
        (f"commit to visible at {rate}/s, p50", lambda kept: kept.visible_ms["p50"], "ms"),
        (f"commit to visible at {rate}/s, p99", lambda kept: kept.visible_ms["p99"], "ms"),
        (f"processor time of a transaction at {rate}/s", lambda kept: kept.transaction_cpu_ms, "ms"),
        ("building from the backlog", lambda kept: kept.build_rate, "events/s"),
        ("... processor time of an event", lambda kept: kept.build_cpu_us, "us"),
        ("start, before the building", lambda kept: kept.start_s, "s"),
        ("... processor time", lambda kept: kept.start_cpu_s, "s"),
        ("peak memory", lambda kept: kept.memory_mb, "MB"),
    ]
    figures = [
        Figure(
            phase=PHASE,
            name=name,
            value=value(ours),
            unit=unit,
            limit=Limit(value=value(least), what="Flink SQL in the same run, at least once"),
        )
        for name, value, unit in beside
    ]
    figures += [
        Figure(
            phase=PHASE, name=f"Flink exactly once: commit to visible, {at}", value=exactly.visible_ms[at], unit="ms"
        )
        for at in ("p50", "p99")
    ]
    equal = Target(bound="at most", amount=0)
    counts = {
        "rows that aren't the source's": ours.differing,
        "Flink at least once: the same": least.differing,
        "Flink exactly once: the same": exactly.differing,
        "rows that differ between the two": between,
    }
    figures += [
        Figure(phase=PHASE, name=name, value=count, unit="rows", target=equal) for name, count in counts.items()
    ]
    return figures
