"""The cost of a pipeline of many tables beside one of few: its start, its batches of one row, and its idle seconds.

The log is written without a source, with topics of one partition. The sink is the warehouse. Processor time is that of
the driver with Spark and its workers, of the warehouse and of Kafka. Batches of one row follow each other, each of
another table, and everything used meanwhile counts for them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from bench.figures import Figure, Limit, Target
from bench.many_log import many_log, many_tables
from bench.rig import Child, Rig, Say, tables_toml, wait_until
from bench.sizes import Sizes
from bench.usage import CpuMeter
from lockstep.config import load

PHASE = "many"

_FEW = 10
_START_S = 900.0
_SETTLE_S = 5.0
_TIMES_MAX = 2.0
_IDLE_PERCENT_MAX = 5.0
_START_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds to the first applied row; processor seconds per idle second and batch, ``used`` by process."""

    start_s: float
    idle: float
    batch_s: float
    used: dict[str, dict[str, float]]


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """Returns figures and details. Raises LockstepError when a command fails or applies nothing."""
    rig.up("postgres", "kafka", "warehouse")
    few = _costs(rig, sizes, _FEW, say)
    many = _costs(rig, sizes, sizes.many_tables, say)
    return figures_of(few, many, sizes.many_tables), {"few": few.used, "many": many.used}


def figures_of(few: Costs, many: Costs, tables: int) -> list[Figure]:
    what = f"the same with {_FEW} tables"
    at_most = Target(bound="at most", amount=_START_S_MAX)
    idle_at_most = Target(bound="at most", amount=_IDLE_PERCENT_MAX)
    times_at_most = Target(bound="at most", amount=_TIMES_MAX, of_limit=True)
    return [
        Figure(
            phase=PHASE,
            name=f"{tables:,} tables: start to first row",
            value=many.start_s,
            unit="s",
            limit=Limit(value=few.start_s, what=what),
            target=at_most,
        ),
        Figure(
            phase=PHASE,
            name=f"{tables:,} tables: processor time while idle",
            value=many.idle * 100,
            unit="% of a core",
            limit=Limit(value=few.idle * 100, what=what),
            target=idle_at_most,
        ),
        Figure(
            phase=PHASE,
            name=f"{tables:,} tables: processor time of a batch of one row",
            value=many.batch_s * 1000,
            unit="ms",
            limit=Limit(value=few.batch_s * 1000, what=what),
            target=times_at_most,
        ),
    ]


def _costs(rig: Rig, sizes: Sizes, count: int, say: Say) -> Costs:
    name = f"many_{count}_{time.time_ns() // 1_000_000:x}"
    tables = many_tables(count)
    path = rig.directory / f"{name}.toml"
    path.write_text(_toml(rig, name, [str(table.name) for table in tables]), encoding="utf-8")
    say(f"creating {count:,} topics")
    with (
        many_log(load(path).kafka, name, tables) as log,
        psycopg.connect(rig.endpoints.warehouse_dsn, autocommit=True) as warehouse,
    ):

        def applied(table: str, row: int) -> Callable[[], bool]:
            def is_there() -> bool:
                child.check()
                # Not of a table that doesn't exist: this doesn't wait for the transaction that creates it.
                known = warehouse.execute("select to_regclass(%s)", (f'"{name}"."{table}"',)).fetchone()
                if known is None or known[0] is None:
                    return False
                query = f'select 1 from "{name}"."{table}" where id = {row}'
                return warehouse.execute(query.encode()).fetchone() is not None

            return is_there

        log.put(tables[0], 1)
        child = rig.start("apply", "apply", "--config", str(path))
        began = time.monotonic()
        meter = _meter(rig, child)
        first = tables[0].name.name
        wait_until(applied(first, 1), what=f"{first} has its first row", timeout_s=_START_S, every_s=0.2)
        start_s = time.monotonic() - began
        used = {"start": meter.used()}
        say(f"{count:,} tables: {start_s:.1f} s to the first row")
        # The first batches load code.
        for number in range(3):
            log.put(tables[number], 2)
            wait_until(applied(tables[number].name.name, 2), what="a row is applied", every_s=0.05)
        time.sleep(_SETTLE_S)

        meter, began = _meter(rig, child), time.monotonic()
        time.sleep(sizes.many_idle_s)
        used["idle"] = meter.used()
        idle = sum(used["idle"].values()) / (time.monotonic() - began)
        say(f"{count:,} tables: {idle:.1%} of a core while idle: {used['idle']}")

        meter = _meter(rig, child)
        for number in range(sizes.many_batches):
            table = tables[(number * 7) % count]
            log.put(table, 100 + number)
            wait_until(applied(table.name.name, 100 + number), what="a row is applied", every_s=0.05)
        used["batches"] = meter.used()
        batch_s = sum(used["batches"].values()) / sizes.many_batches
        say(f"{count:,} tables: {batch_s * 1000:.0f} ms a batch: {used['batches']}")
        rig.stop(child)
        warehouse.execute(f'drop schema if exists "{name}" cascade'.encode())
    return Costs(start_s, idle, batch_s, used)


def _meter(rig: Rig, child: Child) -> CpuMeter:
    servers = {server: pid for server, pid in rig.server_pids.items() if server in ("kafka", "warehouse")}
    return CpuMeter({"apply": child.process.pid, **servers})


def _toml(rig: Rig, name: str, tables: list[str]) -> str:
    return f"""{tables_toml(name, rig.endpoints, tables, partitions=1)}[sinks.{name}]
type = "warehouse"
url = "{rig.endpoints.warehouse_url}"
schema = "{name}"
"""
