"""A pipeline under test: its own tables, configuration, processes and traffic on the shared servers."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import orjson
import psycopg
from pyspark.sql import SparkSession

from cdc.capture.published_table import PublishedTable
from cdc.capture.questions import Event
from cdc.event_format.encode import TableEncoder
from cdc.kafka.control_topics import read_state, read_tables
from cdc.model.errors import Unavailable
from cdc.model.lsn import parse_lsn
from cdc.model.table import quote_identifier
from cdc.postgres.connection import connect
from cdc.postgres.settings import SourceSettings
from cdc.postgres.slot import drop_slot, emit_heartbeat, find_slot
from cdc.protocol.control_records import CaptureState
from cdc.protocol.copy_text import split_row
from cdc.protocol.pgoutput import decode
from lockstep.apply import apply_sinks
from lockstep.config import Config, load
from lockstep.verify.full_comparison import compare_sinks, open_source
from monitor.waits import Waits
from sinks.registry import open_sink
from sinks.wrappers.projection import Projection
from stack.stack import Endpoints
from tests import history
from tests.spark_here import Job, Rebuild
from tests.topics import read_committed, remove_later

ROOT = Path(__file__).parent.parent


def wait_until(condition: Callable[[], bool], *, what: str, timeout_s: float = 300.0, every_s: float = 0.05) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(every_s)


class Process(subprocess.Popen[bytes]):
    """A command in a process group of its own, whose output goes to ``log``."""

    def __init__(self, log: Path, *command: str) -> None:
        self.log = log
        with log.open("ab") as output:
            super().__init__(
                [sys.executable, "-m", *command], cwd=ROOT, stdout=output, stderr=output, start_new_session=True
            )

    def output(self) -> str:
        return self.log.read_text()


_HEAP = 'conf = { "spark.driver.memory" = "512m" }'


class Running(Protocol):
    """A process, or something that runs in a thread of this one."""

    def poll(self) -> int | None:
        """The exit code once it has ended."""
        ...

    def output(self) -> str: ...


def quick(endpoints: Endpoints) -> Endpoints:
    """The same, with a short time-out for a Redis server that hangs."""
    return replace(endpoints, redis_url=f"{endpoints.redis_url}?socket_timeout=1.5")


class Pipeline:
    """One pipeline named ``name`` with tables ``account`` and ``entry`` in a schema of the same name."""

    def __init__(
        self,
        endpoints: Endpoints,
        directory: Path,
        name: str,
        *,
        sinks: bool = False,
        dsn_options: str = "",
        replicas: int = 1,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """``replicas``: on how many brokers each topic is; one of several may be down. ``more`` are lines for
        configuration sections: ``kafka``, ``capture``, ``snapshot``, ``spark`` or a sink's (``search``, ``cache``,
        ``warehouse``)."""
        self.endpoints = endpoints
        self.directory = directory
        self.name = name
        self.path = directory / f"{name}.toml"
        self._processes: list[Process] = []
        self._here: list[Job | Rebuild] = []
        self.path.write_text(self._toml(sinks=sinks, dsn_options=dsn_options, replicas=replicas, more=more))
        self.config: Config = load(self.path)
        self.client = self.config.kafka.client()
        remove_later(self.client, name)
        with self.sql() as connection:
            connection.execute(f"create schema {name}")
            connection.execute(
                f"create table {name}.account (id bigint primary key, owner text, balance numeric, tags text[],"
                " changed timestamptz default clock_timestamp())"
            )
            connection.execute(
                f"create table {name}.entry (account_id bigint, line int, note text, doc jsonb,"
                " primary key (account_id, line))"
            )
            # Unchanged large values would stop capture otherwise.
            connection.execute(f"alter table {name}.entry replica identity full")

    def _toml(self, *, sinks: bool, dsn_options: str, replicas: int, more: Mapping[str, str]) -> str:
        text = f"""
[pipeline]
name = "{self.name}"
[source]
dsn = "{self.endpoints.source_dsn} {dsn_options}"
tables = ["{self.name}.account", "{self.name}.entry"]
heartbeat_interval_s = 0.5
[kafka]
bootstrap_servers = "{self.endpoints.kafka_bootstrap}"
topics = {{ partitions = 3, replication_factor = {replicas} }}
{more.get("kafka", "")}
[capture]
{more.get("capture", "")}
[spark]
checkpoint_directory = "checkpoints-{self.name}"
{_HEAP if "conf" not in more.get("spark", "") else ""}
{more.get("spark", "")}
[snapshot]
{more.get("snapshot", "")}
"""
        if sinks:
            text += f"""
[sinks.{self.name}_search]
type = "opensearch"
urls = ["{self.endpoints.opensearch_url}"]
replicas = 0
{more.get("search", "")}
[sinks.{self.name}_cache]
type = "redis"
url = "{self.endpoints.redis_url}"
{more.get("cache", "")}
[sinks.{self.name}_warehouse]
type = "warehouse"
url = "{self.endpoints.warehouse_url}"
{more.get("warehouse", "")}
"""
        return text

    def sql(self) -> psycopg.Connection[Any]:
        connection = connect(SourceSettings(dsn=self.endpoints.source_dsn, tables=("x.y",)), application="test")
        connection.execute("set search_path = public")  # as applications have it
        return connection

    def state(self) -> CaptureState | None:
        return read_state(self.client, self.name, self.config.slot)

    # Processes.

    def start(self, *command: str) -> Process:
        """Start ``python -m ...`` in a process group of its own; its output goes to ``<n>.log``."""
        log = self.directory / f"{self.name}-{len(self._processes)}-{command[0].rpartition('.')[2]}.log"
        self._processes.append(Process(log, *command))
        return self._processes[-1]

    def run(self, *command: str, ends_with: int = 0, timeout_s: float = 600) -> str:
        """Run a command and return its standard output, once it has ended with this code."""
        done = subprocess.run(
            [sys.executable, "-m", "lockstep", *command, "--config", str(self.path)],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == ends_with, done.stdout + done.stderr
        return done.stdout

    def start_capture(self, *, kill: str | None = None, nth: int = 3) -> Process:
        extra = ["--kill", kill, "--nth", str(nth)] if kill else []
        return self.start("tests.crash.capture_process", "--config", str(self.path), *extra)

    def start_apply(self) -> Process:
        """Apply to all sinks in a process with a Spark of its own, for kills and signals."""
        return self.start("lockstep", "apply", "--config", str(self.path))

    def apply(self, spark: SparkSession, *sinks: str, once: bool = False) -> Job:
        job = Job(spark, partial(apply_sinks, load(self.path), sinks=sinks, once=once))
        self._here.append(job)
        return job

    def rebuild(self, spark: SparkSession, sink: str, *, path: Path | None = None, **options: Any) -> Rebuild:
        """Rebuild a sink in this process, by this configuration file or the pipeline's own."""
        rebuild = Rebuild(spark, load(path or self.path), sink, **options)
        self._here.append(rebuild)
        return rebuild

    def stop(self, process: Process, *, timeout_s: float = 300.0) -> int:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        return process.wait(timeout_s)

    def wait_ended(self, process: Process, *, timeout_s: float = 300.0) -> int:
        """The exit code. A process that doesn't end writes its stacks before the test fails."""
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.tell_where(process)
            raise AssertionError(f"still running after {timeout_s:.0f} s: {process.output()[-8000:]}") from None

    def tell_where(self, process: Process) -> None:
        """Make a process that seems to hang write all its threads' stacks to its log."""
        if process.poll() is None:
            process.send_signal(signal.SIGUSR1)
            time.sleep(1)

    def close(self) -> None:
        for here in self._here:
            here.ask_to_stop()
        for here in self._here:
            here.close()
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        with self.sql() as connection:
            for slot in (self.config.slot, f"{self.config.slot}_oracle"):
                slot_now = find_slot(connection, slot)
                if slot_now is None:
                    continue
                if slot_now.active_pid is not None:
                    connection.execute("select pg_terminate_backend(%s)", (slot_now.active_pid,))
                    wait_until(
                        lambda name=slot: find_slot(connection, name).active_pid is None,  # type: ignore[union-attr]
                        what=f"slot {slot} is free",
                    )
                drop_slot(connection, slot)

    # Positions.

    def wait_streaming(self, process: Process) -> None:
        """Wait until capture has taken the snapshot and reads the slot."""

        def streaming() -> bool:
            assert process.poll() is None, process.output()
            return "streaming from" in process.output()

        wait_until(streaming, what="capture streams")

    def wait_published(self, *processes: Process, timeout_s: float = 300.0) -> None:
        """Wait until everything committed now is published. None of these captures may end."""
        with self.sql() as connection:
            target = emit_heartbeat(connection)

        def published() -> bool:
            for process in processes:
                assert process.poll() is None, process.output()
            try:
                state = self.state()
            except Unavailable:  # while brokers change roles
                return False
            return state is not None and state.end_lsn >= target

        # Each look reads a topic, which slows the capture that is waited for.
        wait_until(published, what=f"published up to {target:X}", timeout_s=timeout_s, every_s=0.25)

    def wait_applied(self, applier: Running, *, timeout_s: float = 300.0) -> None:
        """Wait until every sink has applied everything committed now."""
        with self.sql() as connection:
            target = emit_heartbeat(connection)

        deadline = time.monotonic() + timeout_s
        with Waits(self.config.as_pipeline(), self.config.sinks) as waits:
            while not (waited := waits.wait(target, timeout_s=2.0)).is_reached:
                assert applier.poll() is None, applier.output()
                assert time.monotonic() < deadline, f"{waited.late}\n{applier.output()[-5000:]}"

    def assert_sinks_equal(self) -> None:
        sinks = {name: open_sink(name, settings, 1) for name, settings in self.config.sinks.items()}
        with open_source(
            self.config.source,
            names=self.config.source.table_names,
            publication=self.config.publication,
            application="test",
        ) as source:
            compared = compare_sinks(source, {name: (opened.sink, Projection()) for name, opened in sinks.items()})
        for opened in sinks.values():
            progress = opened.generations.load_progress()
            assert progress is not None
            assert progress.rejected == 0
            opened.sink.close()
        assert compared.keys() == self.config.sinks.keys() != set()
        for name, tables in compared.items():
            for table in tables:
                assert table.source_rows > 0
                assert table.is_equal, f"{name}: {table.to_json()}"

    # What the topics should hold, and what they do.

    def make_oracle(self) -> None:
        """Create a second slot over the same WAL. Its uninterrupted decoding is what the topics must hold."""
        with self.sql() as connection:
            connection.execute(
                "select pg_create_logical_replication_slot(%s, 'pgoutput')", (f"{self.config.slot}_oracle",)
            )

    def expected(self) -> list[Event]:
        """The stream's events by one uninterrupted decoding, from the handoff on."""
        state = self.state()
        assert state is not None
        tables = read_tables(self.client, self.name)
        topics = self.config.topics()
        encoder = {"server": self.name, "database": state.database, "version": "0.1.0"}
        follower = history.assembler(
            tables={name: PublishedTable(topics[name], TableEncoder(tables[name], **encoder)) for name in topics},
            at=replace(state, commit_lsn=state.handoff, seq=0, end_lsn=0, begun=None),
        )
        events: list[Event] = []
        with self.sql() as connection:
            for lsn, data in connection.execute(
                "select lsn::text, data from pg_logical_slot_peek_binary_changes(%s, null, null,"
                " 'proto_version', '1', 'publication_names', %s, 'messages', 'true')",
                (f"{self.config.slot}_oracle", self.config.publication),
            ):
                events += history.fed(follower, decode(data), parse_lsn(lsn))
        return events

    def published(self, *, snapshot: bool = False) -> dict[tuple[str, int], list[Event]]:
        """Every event that a read-committed consumer sees, per partition in order; snapshot rows only if asked for."""
        events_of_partition = read_committed(self.client, self.config.topics().values())
        return {
            at: [event for event in events if snapshot or not (event[2] or b"").startswith(b'{"op":"r"')]
            for at, events in events_of_partition.items()
        }

    def change_accounts(self, text: str) -> None:
        table = f"{self.name}.account"
        with self.sql() as connection:
            for statement in (
                f"update {table} set owner = '{text}' where id % 10 = 1",
                f"delete from {table} where id % 97 = 5",
                f"insert into {table} (id, owner) select max(id) + 1, '{text}' from {table}",
            ):
                connection.execute(statement.encode())

    def newest_rows(self) -> dict[tuple[str, bytes], Any]:
        """What compaction would leave: the last event of every key, unless it is a delete."""
        newest: dict[tuple[str, bytes], Any] = {}
        for events in self.published(snapshot=True).values():
            for topic, key, value, _ in events:
                after = orjson.loads(value)["after"] if value is not None else None
                newest.pop((topic, key), None)
                if after is not None:
                    newest[topic, key] = after
        return newest

    def source_rows(self) -> dict[tuple[str, bytes], Any]:
        """The same for the tables as they are now."""
        rows: dict[tuple[str, bytes], Any] = {}
        topics = self.config.topics()
        with self.sql() as connection, connection.cursor() as cursor:
            for name, table in read_tables(self.client, self.name).items():
                encoder = TableEncoder(table, server="", database="", version="")
                columns = ", ".join(quote_identifier(column.name) for column in table.columns)
                with cursor.copy(f"copy {name.sql} ({columns}) to stdout") as copy:
                    for line in copy:
                        fields = split_row(bytes(line)[:-1])
                        rows[topics[name], encoder.key(fields)] = orjson.loads(encoder.row(fields))
        return rows

    def assert_published_exactly_once(self) -> None:
        """Each partition holds exactly the expected events of its keys, in commit order."""
        expected = self.expected()
        published = self.published()
        home = {(topic, event[1]): (topic, p) for (topic, p), events in published.items() for event in events}
        by_partition: dict[tuple[str, int], list[Event]] = {at: [] for at in published}
        missing = []
        for event in expected:
            at = home.get((event[0], event[1]))
            if at is None:
                missing.append(event[1])
            else:
                by_partition[at].append(event)
        assert missing == []
        for at, events in published.items():
            tags = [_tag(event) for event in events]
            assert tags == [_tag(event) for event in by_partition[at]], f"other changes than committed on {at}"
            assert events == by_partition[at]
        assert sum(map(len, published.values())) == len(expected) > 0


def _tag(event: Event) -> bytes:
    return event[3] if event[2] is None else event[2][17:45]  # type: ignore[return-value]


class Traffic(threading.Thread):
    """Random transactions until stopped: inserts, updates, deletes, key changes, several tables, at times many rows."""

    def __init__(self, pipeline: Pipeline, *, seed: int = 1, pause_s: float = 0.01) -> None:
        super().__init__(daemon=True)
        self._pipeline = pipeline
        self._random = random.Random(seed)
        self._pause_s = pause_s
        self._finished = threading.Event()
        self._ids: list[int] = []
        self._next = seed * 1_000_000
        self.transactions = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with self._pipeline.sql() as connection:
                while not self._finished.is_set():
                    with connection.transaction():
                        self._transaction(connection)
                    self.transactions += 1
                    time.sleep(self._pause_s)
        except BaseException as error:
            self.failure = error

    def finish(self) -> None:
        self._finished.set()
        self.join()
        assert self.failure is None, self.failure
        assert self.transactions > 0

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        schema = self._pipeline.name
        pick = self._random.random()
        if pick < 0.4 or len(self._ids) < 20:
            self._next += 1
            self._ids.append(self._next)
            connection.execute(
                f"insert into {schema}.account (id, owner, balance, tags) values (%s, %s, %s, %s)",
                (self._next, f"owner {self._next}", self._random.randrange(10**6) / 100, ["a", None, 'b "q"']),
            )
            connection.execute(
                f"insert into {schema}.entry values (%s, 1, %s, %s)",
                (self._next, "x" * self._random.choice((10, 10, 3000)), '{"n": 1}'),
            )
        elif pick < 0.7:
            connection.execute(
                f"update {schema}.account set balance = balance + 1, changed = clock_timestamp() where id = %s",
                (self._random.choice(self._ids),),
            )
        elif pick < 0.8:
            chosen = self._ids.pop(self._random.randrange(len(self._ids)))
            connection.execute(f"delete from {schema}.entry where account_id = %s", (chosen,))
            connection.execute(f"delete from {schema}.account where id = %s", (chosen,))
        elif pick < 0.9:
            self._next += 1
            at = self._random.randrange(len(self._ids))
            old, self._ids[at] = self._ids[at], self._next
            connection.execute(f"update {schema}.account set id = %s where id = %s", (self._next, old))
            connection.execute(f"update {schema}.entry set account_id = %s where account_id = %s", (self._next, old))
        elif pick < 0.97:
            several = self._random.sample(self._ids, min(10, len(self._ids)))
            connection.execute(f"update {schema}.entry set doc = '[]' where account_id = any(%s)", (several,))
        else:
            first = self._next + 1
            self._next += 200
            self._ids += range(first, self._next + 1)
            connection.execute(
                f"insert into {schema}.account (id, owner) select i, 'many' from"
                " generate_series(%s::bigint, %s::bigint) i",
                (first, self._next),
            )


@contextmanager
def traffic(pipeline: Pipeline, **options: Any) -> Iterator[Traffic]:
    thread = Traffic(pipeline, **options)
    thread.start()
    try:
        yield thread
    finally:
        thread.finish()


class Writes(Protocol):
    transactions: int


def kill_a_job(pipeline: Pipeline, *, begun: Callable[[], bool], writes: Writes) -> None:
    """Start to apply in another process, and kill it once it has seen some traffic."""
    job = pipeline.start_apply()
    wait_until(begun, what="the job has begun")
    seen = writes.transactions
    wait_until(lambda: writes.transactions > seen + 100, what="some traffic")
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
