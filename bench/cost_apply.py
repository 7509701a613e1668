"""What an event costs on its way from Kafka into the sinks, and what a batch costs whatever is in it.

The log is written without a source. All events of a backlog become visible at once, with one Kafka transaction, so
each sink has them in a batch or two. Batches of one row come one after the other; all that is used meanwhile counts for
them.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg

from bench.cost_tables import delete_topics
from bench.many_log import ManyLog, many_log, many_tables
from bench.replay import applied
from bench.rig import CACHE, SEARCH, WAREHOUSE, Child, Rig, Say, sink_name, sink_sections, tables_toml, wait_until
from bench.usage import cpu_seconds, spark_seconds
from cdc.model.errors import LockstepError
from cdc.model.table import Table
from lockstep.config import load

_START_S = 900.0
_EVENTS_PER_S_MIN = 500
_WARM_BATCHES = 3
SERVERS: Mapping[str, str] = {SEARCH: "opensearch", CACHE: "valkey", WAREHOUSE: "warehouse"}
"""The server of each kind of sink."""


@dataclass(frozen=True, slots=True)
class ApplyCosts:
    """By stage: microseconds per event and sink, and milliseconds per batch of a sink that has one row."""

    event_us: dict[str, float]
    batch_ms: dict[str, float]


def apply_costs(
    rig: Rig, *, tables: int, partitions: int, events: int, batches: int, kinds: Collection[str], say: Say
) -> ApplyCosts:
    """Processor time of one driver with a sink of each of these kinds. Raises LockstepError when it fails or hangs."""
    name = f"cost_{tables}_{partitions}_{time.time_ns() // 1_000_000:x}"
    shapes = many_tables(tables)
    path = rig.directory / f"{name}.toml"
    path.write_text(_toml(rig, name, [str(shape.name) for shape in shapes], partitions, kinds), encoding="utf-8")
    config = load(path)
    with ExitStack() as closing:
        closing.callback(delete_topics, config)
        log = closing.enter_context(many_log(config.kafka, name, shapes))
        child = rig.start("apply", "apply", "--config", str(path))
        closing.callback(rig.stop, child)
        meter = _Meter(rig, child, kinds)
        written = _put(log, shapes, child, kinds, first=0, rows=1, before=0, name=name)
        written = _put(log, shapes, child, kinds, first=1, rows=events, before=written, name=name)

        meter.start()
        written = _put(log, shapes, child, kinds, first=1 + events, rows=events, before=written, name=name)
        backlog = meter.used()

        def one_by_one(count: int, written: int) -> int:
            for number in range(count):
                shape = shapes[number * 7 % tables]
                first = 1 + 2 * events + written
                written = _put(log, [shape], child, kinds, first=first, rows=1, before=written, name=name)
            return written

        written = one_by_one(_WARM_BATCHES, written)
        meter.start()
        one_by_one(batches, written)
        single = meter.used()
    if WAREHOUSE in kinds:
        with psycopg.connect(rig.endpoints.warehouse_dsn, autocommit=True) as warehouse:
            warehouse.execute(f'drop schema if exists "{name}" cascade'.encode())
    sinks = len(kinds)
    costs = ApplyCosts(
        {stage: 1e6 * seconds / events / _shares(stage, sinks) for stage, seconds in backlog.items()},
        {stage: 1e3 * seconds / batches / _shares(stage, sinks) for stage, seconds in single.items()},
    )
    say(
        f"{tables:,} tables, {partitions} partitions: "
        + ", ".join(f"{s} {us:.1f} us" for s, us in costs.event_us.items())
    )
    return costs


def _shares(stage: str, sinks: int) -> int:
    """Stores have a sink of their own; all sinks share the rest."""
    return 1 if stage in SERVERS.values() else sinks


class _Meter:
    def __init__(self, rig: Rig, child: Child, kinds: Collection[str]) -> None:
        pids = rig.server_pids
        self._servers = {name: pids[name] for name in [SERVERS[kind] for kind in kinds]}
        self._kafka = pids["kafka"]
        self._driver = child.process.pid
        self._before: dict[str, float] = {}

    def _now(self) -> dict[str, float]:
        spark = spark_seconds(self._driver)
        return {
            "driver, Python": spark.driver,
            "driver, JVM": spark.jvm,
            "Python workers": spark.workers,
            "kafka, read": cpu_seconds(self._kafka),
            **{name: cpu_seconds(pid) for name, pid in self._servers.items()},
        }

    def start(self) -> None:
        self._before = self._now()

    def used(self) -> dict[str, float]:
        return {stage: seconds - self._before[stage] for stage, seconds in self._now().items()}


def _put(
    log: ManyLog,
    shapes: Sequence[Table],
    child: Child,
    kinds: Collection[str],
    *,
    first: int,
    rows: int,
    before: int,
    name: str,
) -> int:
    """Publish rows that become visible together, and wait until every sink has read them; how many it has by then."""
    log.put_rows(shapes, first=first, rows=rows)
    expected = before + rows

    def is_applied() -> bool:
        child.check()
        for kind in kinds:
            try:
                outcome = applied(child.tail.text(), sink_name(name, kind))
            except LockstepError:
                return False  # it is still starting
            if outcome.rejected:
                raise LockstepError(f"{kind} rejected {outcome.rejected:,} rows; its log: {child.tail.log}")
            if outcome.rows < expected:
                return False
        return True

    timeout_s = _START_S + rows / _EVENTS_PER_S_MIN
    wait_until(is_applied, what=f"{rows:,} rows are applied", timeout_s=timeout_s, every_s=0.1)
    return expected


def _toml(rig: Rig, name: str, tables: Sequence[str], partitions: int, kinds: Collection[str]) -> str:
    head = tables_toml(name, rig.endpoints, tables, partitions=partitions)
    return head + sink_sections(name, rig.endpoints, kinds)
