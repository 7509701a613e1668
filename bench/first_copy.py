"""The first copy of a table, with no copy workers and with two, and its effect on transactions of the source.

Its limit is one COPY whose rows are encoded for the topic, and go nowhere: no broker, no ledger. Debezium's snapshot of
the same rows runs beside it if its jars can be fetched.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
import psycopg
from confluent_kafka import Consumer

from bench.cores import Cores, placed, split_cores, this_thread_first
from bench.debezium import Connect, wait_events
from bench.drain import Rates, Step, first_event_at, rates
from bench.figures import Figure, Limit, Target, percentile
from bench.rig import Child, Pipeline, Rig, Say, wait_until
from bench.sizes import Sizes
from bench.usage import CpuMeter, PeakMemory
from cdc.event_format.encode import TableEncoder
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import LockstepError
from cdc.postgres.catalogue import load_tables
from cdc.postgres.connection import connect
from cdc.stream.row_encoding import chosen_row_encoding
from snapshot.row_events import RowEvents
from snapshot.table_reader import RowReader
from stack import jars
from stack.errors import StackError

PHASE = "snapshot"

WORKERS = 2

_OF_LIMIT_MIN = 0.45
_OF_DEBEZIUM_MIN = 2.5
_MEMORY_MB_MAX = 100
_LATENCY_MAX = 1.25

_ACCOUNTS = 10_000
_COPY_S_MAX = 1800.0
_TRANSACTIONS_MIN = 20


@dataclass(frozen=True, slots=True)
class Copied:
    """One first copy by any program. ``worker_mb`` is the largest peak of a child's memory, 0 without children."""

    rate: Rates
    cpu_us: float
    memory_mb: float
    worker_mb: float


@dataclass(frozen=True, slots=True)
class Bare:
    rows_per_s: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Noticed:
    """The time of the source's transactions that 95 % don't exceed, in milliseconds, without a copy and during one."""

    quiet_ms: float
    alone_ms: float
    workers_ms: float


@dataclass(frozen=True, slots=True)
class Transactions:
    """The effect of a copy on transactions of the source."""

    shared: Noticed
    """The source, Kafka and capture share all cores."""
    apart: Noticed | None
    """The source and its client have a core of their own, as on a separate server. None if there is only one core."""


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """Returns figures and details. Raises LockstepError when a copy fails or takes too long."""
    alone, bare = _first_copy(rig, sizes, workers=0, say=say)
    side_by_side, _ = _first_copy(rig, sizes, workers=WORKERS, say=say)
    transactions = Transactions(
        _noticed(rig, sizes, say, None), None if (cores := split_cores()) is None else _noticed(rig, sizes, say, cores)
    )
    debezium, why_not = _debezium(rig, sizes, say)
    figures = figures_of(alone, side_by_side, bare, transactions, debezium)
    return figures, {"rows": sizes.snapshot_rows, **({"debezium_left_out": why_not} if why_not else {})}


def figures_of(
    alone: Copied, side_by_side: Copied, bare: Bare, transactions: Transactions, debezium: Copied | None
) -> list[Figure]:
    copy = Limit(value=bare.rows_per_s, what="one COPY, encoded, that goes nowhere")
    copy_cpu = Limit(value=bare.cpu_us, what="... its own")
    share = Target(bound="at least", amount=_OF_LIMIT_MIN, of_limit=True)
    figures = []
    for copied, how, target in ((alone, "", None), (side_by_side, f" with {WORKERS} workers", _OF_DEBEZIUM_MIN)):
        figures += [
            Figure(
                phase=PHASE,
                name=f"rows per second{how}",
                value=copied.rate.from_first_event,
                unit="rows/s",
                limit=copy,
                target=share,
            ),
            Figure(
                phase=PHASE,
                name=f"... second half{how}",
                value=copied.rate.second_half,
                unit="rows/s",
                limit=None
                if debezium is None
                else Limit(value=debezium.rate.second_half, what="Debezium's in the same run"),
                target=None
                if debezium is None or target is None
                else Target(bound="at least", amount=target, of_limit=True),
            ),
            Figure(phase=PHASE, name=f"processor time{how}", value=copied.cpu_us, unit="us/row", limit=copy_cpu),
            Figure(phase=PHASE, name=f"peak memory of capture{how}", value=copied.memory_mb, unit="MB"),
        ]
    figures.append(
        Figure(
            phase=PHASE,
            name="peak memory of a worker",
            value=side_by_side.worker_mb,
            unit="MB",
            target=Target(bound="at most", amount=_MEMORY_MB_MAX),
        )
    )
    figures += _noticed_figures(transactions.shared, where="")
    if transactions.apart is not None:
        figures += _noticed_figures(transactions.apart, where=" on a core of its own")
    if debezium is not None:
        figures += [
            Figure(phase=PHASE, name="Debezium: rows per second", value=debezium.rate.from_first_event, unit="rows/s"),
            Figure(phase=PHASE, name="Debezium: second half", value=debezium.rate.second_half, unit="rows/s"),
            Figure(phase=PHASE, name="Debezium: processor time", value=debezium.cpu_us, unit="us/row"),
            Figure(phase=PHASE, name="Debezium: peak memory", value=debezium.memory_mb, unit="MB"),
        ]
    return figures


def _noticed_figures(noticed: Noticed, *, where: str) -> list[Figure]:
    quiet = Limit(value=noticed.quiet_ms, what=f"without a copy{where}")
    at_most = Target(bound="at most", amount=_LATENCY_MAX, of_limit=True)
    name, with_workers = f"transactions of the source{where} meanwhile, p95", f"...{where} with {WORKERS} workers, p95"
    return [
        Figure(phase=PHASE, name=name, value=noticed.alone_ms, unit="ms", limit=quiet, target=at_most),
        Figure(phase=PHASE, name=with_workers, value=noticed.workers_ms, unit="ms", limit=quiet),
    ]


def _first_copy(rig: Rig, sizes: Sizes, *, workers: int, say: Say) -> tuple[Copied, Bare]:
    """A copy by capture, and the bare COPY of the same table right after it."""
    rows = sizes.snapshot_rows
    with _filled(rig, rows, workers) as (pipeline, _):
        capture = pipeline.start_capture()
        cpu = CpuMeter({"capture": capture.process.pid})
        with _Children(capture.process.pid) as children:
            _wait_events_begin(pipeline, capture)
            steps = wait_events(pipeline, capture, before=0, rows=rows)
            pipeline.wait_streaming(capture)
        used_s = cpu.used()["capture"]
        pipeline.stop(capture)
        if workers and not children.megabytes:
            raise LockstepError(f"capture copied {rows:,} rows without the workers that it was to have")
        copied = _copied(pipeline, capture, steps, rows, used_s, children.megabytes)
        bare = _bare_copy(pipeline)
    who = f"{workers} workers" if workers else "capture alone"
    say(
        f"{who}: {copied.rate.from_first_event:,.0f} rows/s, {copied.cpu_us:.1f} us a row;"
        f" one COPY: {bare.rows_per_s:,.0f} rows/s, {bare.cpu_us:.1f} us"
    )
    return copied, bare


@contextmanager
def _filled(rig: Rig, rows: int, workers: int) -> Iterator[tuple[Pipeline, psycopg.Connection[Any]]]:
    """A pipeline whose table has this many rows, and whose capture was never started."""
    with rig.pipeline(f"snapshot{workers}", snapshot=f"workers = {workers}") as pipeline, pipeline.sql() as connection:
        pipeline.insert_rows(connection, first=0, rows=rows)
        # Otherwise the first reader marks the rows, and the server writes their pages meanwhile.
        connection.execute(f"vacuum analyze {pipeline.name}".encode())
        connection.execute("checkpoint")
        yield pipeline, connection


def _copied(pipeline: Pipeline, child: Child, steps: list[Step], rows: int, used_s: float, worker_mb: float) -> Copied:
    count = TopicAdmin(pipeline.client).partition_counts([pipeline.topic])[pipeline.topic]
    consumer = Consumer({**pipeline.client, "group.id": "bench", "enable.auto.commit": False})
    try:
        first_event = first_event_at(consumer, pipeline.topic, dict.fromkeys(range(count), 0))
    finally:
        consumer.close()
    rate = rates(started=child.started, first_event=first_event, steps=steps, rows=rows)
    return Copied(rate, 1e6 * used_s / rows, child.memory.megabytes, worker_mb)


def _bare_copy(pipeline: Pipeline) -> Bare:
    """Read all rows by one COPY and encode them, by compiled code if it is built."""
    config = pipeline.config
    with connect(config.source, application="bench") as connection, connection.transaction():
        table = load_tables(connection, [pipeline.table], config.publication, config.source.keys)[pipeline.table]
        encoder = TableEncoder(table, server=pipeline.name, database=connection.info.dbname, version="bench")
        kernel = chosen_row_encoding().kernel(encoder)
        events = RowEvents(encoder, kernel, epoch=0, consistent_point=1, commit_time_ms=0)
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        rows = 0
        for lines in RowReader(connection).lines(table):
            rows += len(events.of_lines(lines))
        seconds, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
    return Bare(rows / seconds, 1e6 * cpu_s / rows)


class _Children:
    """Watches the memory of a process's children, in a thread."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._peaks: dict[int, PeakMemory] = {}
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory of workers", daemon=True)

    def _watch(self) -> None:
        while not self._finished.wait(0.2):
            try:
                children = self._process.children()
            except psutil.NoSuchProcess:
                return
            for child in children:
                self._peaks.setdefault(child.pid, PeakMemory(child.pid)).look()

    @property
    def megabytes(self) -> float:
        return max((peak.megabytes for peak in self._peaks.values()), default=0.0)

    def __enter__(self) -> "_Children":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finished.set()
        self._thread.join()


def _noticed(rig: Rig, sizes: Sizes, say: Say, cores: Cores | None) -> Noticed:
    """Short transactions of the source, at a steady rate, on tables that aren't copied."""
    quiet_ms, alone_ms = _latency(rig, sizes, cores, workers=0, is_quiet_first=True)
    _, workers_ms = _latency(rig, sizes, cores, workers=WORKERS, is_quiet_first=False)
    where = "" if cores is None else ", the source on a core of its own"
    say(f"p95 of transactions{where}: {quiet_ms:.1f} ms, {alone_ms:.1f} during a copy, {workers_ms:.1f} with workers")
    return Noticed(quiet_ms, alone_ms, workers_ms)


def _latency(rig: Rig, sizes: Sizes, cores: Cores | None, *, workers: int, is_quiet_first: bool) -> tuple[float, float]:
    """(without a copy, 0 if not requested; during one)."""
    rows, rate = sizes.snapshot_rows, sizes.snapshot_rate
    with (
        _filled(rig, rows, workers) as (pipeline, connection),
        _Bank(pipeline, connection) as bank,
        placed(cores, first=[rig.server_pids["postgres"]], rest=[rig.server_pids["kafka"], os.getpid()]),
        ThreadPoolExecutor(1) as pool,
    ):
        quiet_ms = 0.0
        if is_quiet_first:
            with this_thread_first(cores):
                bank.p95_ms(rate, seconds=sizes.snapshot_quiet_s / 3)  # warm-up
                quiet_ms = bank.p95_ms(rate, seconds=sizes.snapshot_quiet_s)
        capture = pipeline.start_capture()
        _wait_events_begin(pipeline, capture)
        copied = pool.submit(wait_events, pipeline, capture, before=0, rows=rows)
        with this_thread_first(cores):
            during_ms = bank.p95_ms(rate, seconds=_COPY_S_MAX, until=copied.done)
        copied.result()
        pipeline.stop(capture)
    return quiet_ms, during_ms


def _wait_events_begin(pipeline: Pipeline, child: Child) -> None:
    """Wait until something is on the topic. Raises LockstepError when that takes too long."""
    cluster = TopicAdmin(pipeline.client)

    def begun() -> bool:
        child.check()
        return pipeline.topic in cluster.partition_counts([pipeline.topic]) and any(pipeline.end_offsets().values())

    wait_until(begun, what=f"{child.name} publishes rows")


class _Bank:
    """Tables and transactions like pgbench's: three updates, a query and an insert."""

    def __init__(self, pipeline: Pipeline, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._schema = f"{pipeline.name}_bank"
        self._turn = 0

    def __enter__(self) -> "_Bank":
        run, schema = self._connection.execute, self._schema
        run(f"create schema {schema}".encode())
        for table, rows in (("accounts", _ACCOUNTS), ("tellers", 10), ("branches", 1)):
            run(f"create table {schema}.{table} (id int primary key, balance int, filler text)".encode())
            run(f"insert into {schema}.{table} select i, 0, repeat(' ', 80) from generate_series(1, {rows}) i".encode())
        run(f"create table {schema}.history (account int, delta int, at timestamptz)".encode())
        run("checkpoint")
        return self

    def p95_ms(self, rate: int, *, seconds: float, until: Callable[[], bool] = lambda: False) -> float:
        """Commit at this rate until a condition holds, or for so long; enough transactions for a slowest twentieth."""
        took_s: list[float] = []
        began_s = time.monotonic()
        while len(took_s) < _TRANSACTIONS_MIN or (time.monotonic() < began_s + seconds and not until()):
            sent_s = time.monotonic()
            self._transaction()
            took_s.append(time.monotonic() - sent_s)
            ahead_s = began_s + len(took_s) / rate - time.monotonic()
            if ahead_s > 0:
                time.sleep(ahead_s)
        return 1000 * percentile(took_s, 95)

    def _transaction(self) -> None:
        self._turn += 1
        run, schema, account = self._connection.execute, self._schema, self._turn * 7919 % _ACCOUNTS + 1
        with self._connection.transaction():
            update = "update {}.{} set balance = balance + 1 where id = %s"
            run(update.format(schema, "accounts").encode(), (account,))
            run(f"select balance from {schema}.accounts where id = %s".encode(), (account,))
            run(update.format(schema, "tellers").encode(), (account % 10 + 1,))
            run(update.format(schema, "branches").encode(), (1,))
            run(f"insert into {schema}.history values (%s, 1, now())".encode(), (account,))

    def __exit__(self, *_: object) -> None:
        self._connection.execute(f"drop schema {self._schema} cascade".encode())


def _debezium(rig: Rig, sizes: Sizes, say: Say) -> tuple[Copied | None, str]:
    """Its snapshot; None, and the reason, if its jars can't be fetched."""
    try:
        jars.fetch(["debezium"])
    except StackError as error:
        say(f"Debezium isn't measured: {error}")
        return None, str(error)
    rows = sizes.snapshot_rows
    with _filled(rig, rows, 0) as (pipeline, _):
        child = Connect(rig, pipeline).start()
        cpu = CpuMeter({"debezium": child.process.pid})
        steps = wait_events(pipeline, child, before=0, rows=rows)
        used_s = cpu.used()["debezium"]
        rig.stop(child)
        copied = _copied(pipeline, child, steps, rows, used_s, 0.0)
    say(f"Debezium: {copied.rate.from_first_event:,.0f} rows/s, {copied.cpu_us:.1f} us a row")
    return copied, ""
