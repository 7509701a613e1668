"""The needs of a measurement: servers, one pipeline at a time with a table of its own, and its processes."""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from typing import Any

import psycopg
from confluent_kafka.admin import AdminClient

from bench.usage import PeakMemory
from cdc.kafka.control_topics import read_state
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import DEAD_LETTERS, PROGRESS, SCHEMA, STATE, control_topic
from cdc.model.errors import LockstepError
from cdc.model.lsn import format_lsn
from cdc.model.table import TableName
from cdc.postgres.slot import drop_slot, find_slot
from cdc.protocol.control_records import SnapshotPhase
from lockstep.config import Config, load
from stack import process as processes
from stack.process import Launch, ProcessId, Tail
from stack.stack import Endpoints, Stack

Say = Callable[[str], None]

SEARCH, CACHE, WAREHOUSE, HISTORY, LAKE = "search", "cache", "warehouse", "history", "lake"
VIEW = "view"
STORES = (SEARCH, CACHE, WAREHOUSE)
"""The kinds of sinks in most phases."""

NOTHING_ELSE: Mapping[str, str] = {}
"""No environment variables beside ours."""

_READY_S = 180.0
_GRACE_S = 60.0
_LOG_LINES = 25

# Eight columns of the usual kinds; a pgoutput message of about 180 bytes.
COLUMNS = (
    "id bigint primary key, customer_id int, kind int, note text, address text, created_at timestamptz, amount numeric,"
    " flag bool"
)
ROW = (
    "i, i %% 9973, i %% 7, 'lorem ipsum dolor sit amet number ' || i, '12 long street name in city ' || i, now(),"
    " (i %% 10000) / 100.0, i %% 2 = 0"
)


def wait_until(condition: Callable[[], bool], *, what: str, timeout_s: float = _READY_S, every_s: float = 0.05) -> None:
    """Poll until the condition holds. Raises LockstepError at the time-out."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise LockstepError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(every_s)


@dataclass(slots=True)
class Child:
    name: str
    process: ProcessId
    tail: Tail
    memory: PeakMemory
    started: float
    """Unix time just before it was started."""

    @property
    def is_alive(self) -> bool:
        return processes.is_alive(self.process)

    def check(self) -> None:
        """Raises LockstepError with the end of its log when it has ended by itself."""
        if not processes.is_alive(self.process):
            raise LockstepError(f"{self.name} ended by itself; the end of its log:\n{self.tail.last(_LOG_LINES)}")
        self.memory.look()


class Rig:
    """Servers and everything started on them. ``close`` leaves nothing running that we started."""

    def __init__(self, directory: Path | None, *, say: Say, light: bool = False) -> None:
        """Uses the directory's running stack, or else a temporary one, started as by ``lockstep up`` if ``light``."""
        self._own = directory is None
        self._work = Path(tempfile.mkdtemp(prefix="lockstep-bench-"))
        self._work.chmod(0o755)  # PostgreSQL runs as another user when we are root
        self._stack = Stack(directory or self._work / "stack", light=light)
        self._say = say
        self._children: list[Child] = []
        self._pipelines = 0

    def up(self, *names: str) -> None:
        """Start these servers, or all. Fewer servers disturb the measurement less. Raises StackError."""
        self._stack.up(names or None, report=lambda name, what: self._say(f"{name}: {what}"))

    def close(self) -> None:
        """End everything that was started, in reverse order, and delete the temporary files."""
        try:
            for child in reversed(list(self._children)):
                self.stop(child)
        finally:
            if self._own and self._stack.exists:
                self._stack.down()
            shutil.rmtree(self._work, ignore_errors=True)

    @property
    def directory(self) -> Path:
        """For temporary files, which are deleted with it."""
        return self._work

    @property
    def endpoints(self) -> Endpoints:
        return self._stack.endpoints()

    @property
    def server_pids(self) -> dict[str, int]:
        return {status.name: status.pid for status in self._stack.status() if status.pid is not None}

    def start(self, name: str, *arguments: str, environment: Mapping[str, str] = NOTHING_ELSE) -> Child:
        """Start a ``lockstep`` command in a session of its own. Raises LockstepError when it ends at once."""
        return self.start_command(name, [sys.executable, "-m", "lockstep", *arguments], environment=environment)

    def start_command(self, name: str, command: list[str], *, environment: Mapping[str, str] = NOTHING_ELSE) -> Child:
        self._pipelines += 1
        launch = Launch(
            command=command,
            environment={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            directory=self._work,
            log=self._work / f"{self._pipelines}-{name}.log",
        )
        started = time.time()
        process, tail = processes.spawn(launch)
        if process is None:
            raise LockstepError(f"{name} ended at once; its log:\n{tail.last(_LOG_LINES)}")
        child = Child(name, process, tail, PeakMemory(process.pid), started)
        self._children.append(child)
        return child

    def stop(self, child: Child) -> None:
        """Ask a command to finish; kill it and its family when it doesn't."""
        child.memory.look()
        processes.end(child.process, stop_signal=SIGTERM, grace_seconds=_GRACE_S)
        if child in self._children:
            self._children.remove(child)

    @contextlib.contextmanager
    def pipeline(
        self,
        name: str,
        *,
        sinks: Collection[str] = (),
        capture: str = "",
        snapshot: str = "",
        tables: Mapping[str, str] = NOTHING_ELSE,
        view: str = "",
    ) -> Iterator["Pipeline"]:
        """A new pipeline. Its processes end with the block, and slot, publication, tables and topics are removed.

        ``capture`` and ``snapshot`` are lines of the configuration's sections of these names. ``tables`` are further
        tables with their columns, named ``<pipeline>_<name>``. ``view`` are the lines of a view in the cache, named
        ``<pipeline>_view``; ``{name}`` in them is the pipeline's name.
        """
        # Unique, also on servers that are used again.
        unique = f"bench_{name}_{time.time_ns() // 1_000_000:x}"
        sections = f"[capture]\n{capture}\n[snapshot]\n{snapshot}\n"
        if view:
            sections += f'[views.{sink_name(unique, VIEW)}]\nsink = "{sink_name(unique, CACHE)}"\n'
            sections += view.replace("{name}", unique)
        pipeline = Pipeline(
            self, self._stack.endpoints(), self._work, unique, sinks=sinks, sections=sections, tables=tables
        )
        try:
            yield pipeline
        except Exception:
            for child in self._children:
                self._say(f"the end of the log of {child.name}:\n{child.tail.last(_LOG_LINES)}")
            raise
        finally:
            for child in reversed(list(self._children)):
                self.stop(child)
            pipeline.remove()


class Pipeline:
    """One pipeline with one table, ``public.<name>``, and optionally others."""

    def __init__(
        self,
        rig: Rig,
        endpoints: Endpoints,
        directory: Path,
        name: str,
        *,
        sinks: Collection[str],
        sections: str,
        tables: Mapping[str, str] = NOTHING_ELSE,
    ) -> None:
        """``sections`` are further sections of the configuration, ``tables`` other tables with their columns."""
        self.endpoints = endpoints
        self.name = name
        self.table = TableName("public", name)
        self.directory = directory
        self.lake = directory / f"{name}-lake"
        self._rig = rig
        self._path = directory / f"{name}.toml"
        self._others = [f"{name}_{other}" for other in tables]
        self._path.write_text(
            _toml(name, endpoints, others=self._others, sinks=sinks, lake=self.lake) + sections,
            encoding="utf-8",
        )
        self.config: Config = load(self._path)
        self.client = self.config.kafka.client()
        self.topic = self.config.topics()[self.table]
        with self.sql() as connection:
            for other, columns in zip(self._others, tables.values(), strict=True):
                connection.execute(f"create table {other} ({columns})".encode())
            connection.execute(f"create table {name} ({COLUMNS})".encode())
            connection.execute(
                f"create procedure {name}_load(first bigint, rows bigint, per_transaction bigint)"
                " language plpgsql as $$"
                " begin for k in 0 .. rows / per_transaction - 1 loop"
                f" insert into {name} select {ROW.replace('%%', '%')}"
                " from generate_series(first + k * per_transaction, first + (k + 1) * per_transaction - 1) i;"
                " commit; end loop; end $$".encode()
            )

    def sql(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.endpoints.source_dsn, autocommit=True)

    def load(self, connection: psycopg.Connection[Any], *, first: int, rows: int, per_transaction: int) -> None:
        """Insert rows with ids from ``first`` on, in transactions of that many rows."""
        connection.execute(f"call {self.name}_load(%s, %s, %s)".encode(), (first, rows, per_transaction))

    def insert_rows(self, connection: psycopg.Connection[Any], *, first: int, rows: int) -> None:
        """Insert rows with ids from ``first`` on by one statement, in the open transaction if there is one."""
        statement = f"insert into {self.name} select {ROW} from generate_series(%s::bigint, %s::bigint) i"
        connection.execute(statement.encode(), (first, first + rows - 1))

    def insert(self, connection: psycopg.Connection[Any], row: int) -> None:
        connection.execute(f"insert into {self.name} select {ROW} from (select %s::bigint) one(i)".encode(), (row,))

    def start_capture(self, *, environment: Mapping[str, str] = NOTHING_ELSE) -> Child:
        return self._rig.start("capture", "capture", "--config", str(self._path), environment=environment)

    def sender_pid(self) -> int:
        """PostgreSQL's process that sends the stream. Raises LockstepError when nobody reads it."""
        with self.sql() as connection:
            slot = find_slot(connection, self.config.slot)
        if slot is None or slot.active_pid is None:
            raise LockstepError(f"no process reads slot {self.config.slot}")
        return slot.active_pid

    def start_apply(self, *kinds: str, once: bool = False) -> Child:
        """Apply to the sinks of these kinds, or to all; ``once``: to the topic's present end."""
        sinks = [sink_name(self.name, kind) for kind in kinds]
        return self._rig.start("apply", "apply", *sinks, *(["--once"] if once else []), "--config", str(self._path))

    def start_run(self) -> Child:
        """``lockstep run``: capture, the jobs, and the page on a free port."""
        path = self.directory / f"{self.name}-run.toml"
        page = '[dashboard]\nlisten = "127.0.0.1:0"\n'
        path.write_text(self._path.read_text(encoding="utf-8") + page, encoding="utf-8")
        return self._rig.start("run", "run", "--config", str(path))

    def start_rebuild(self, sink: str) -> Child:
        return self._rig.start("rebuild", "rebuild", sink, "--json", "--config", str(self._path))

    def stop(self, child: Child) -> None:
        self._rig.stop(child)

    def wait_streaming(self, capture: Child) -> None:
        wait_streaming(self.config, self.endpoints, capture)

    def wait_published(self, capture: Child, lsn: int, *, timeout_s: float) -> None:
        wait_published(self.config, capture, lsn, timeout_s=timeout_s)

    def wait_end(self, child: Child, *, timeout_s: float) -> str:
        """Wait until a command has ended by itself. Returns its output. Raises LockstepError at the time-out."""
        wait_until(lambda: not child.is_alive, what=f"{child.name} is done", timeout_s=timeout_s, every_s=0.2)
        self.stop(child)
        return child.tail.text()

    def copy_slot(self, connection: psycopg.Connection[Any], name: str) -> None:
        """A second slot at exactly the same position, dropped by ``drop_slot``, or with the pipeline."""
        connection.execute("select pg_copy_logical_replication_slot(%s, %s)", (self.config.slot, name))

    def end_offsets(self) -> dict[int, int]:
        cluster = TopicAdmin(self.client)
        count = cluster.partition_counts([self.topic])[self.topic]
        ends = cluster.end_offsets([(self.topic, partition) for partition in range(count)])
        return {partition: offset for (_, partition), offset in ends.items()}

    def remove(self) -> None:
        """Remove what would keep WAL or fill the disk. A server that is already down needs no removal."""
        with contextlib.suppress(psycopg.OperationalError), self.sql() as connection:
            drop_slots(connection, self.config.slot)
            connection.execute(f"drop publication if exists {self.config.publication}".encode())
            for table in (self.name, *self._others):
                connection.execute(f"drop table if exists {table}".encode())
            connection.execute(f"drop procedure if exists {self.name}_load".encode())
        topics = [
            *self.config.topics().values(),
            *(control_topic(self.name, kind) for kind in (STATE, SCHEMA, PROGRESS, DEAD_LETTERS)),
        ]
        for deleted in AdminClient(dict(self.client)).delete_topics(topics, request_timeout=10).values():
            with contextlib.suppress(Exception):  # never created, or the broker is gone: the directory goes as well
                deleted.result(10)


def wait_streaming(config: Config, endpoints: Endpoints, capture: Child) -> None:
    """Wait until capture has taken the snapshot and reads the slot. Raises LockstepError at time-out or its end."""
    client = config.kafka.client()

    def streaming() -> bool:
        capture.check()
        with psycopg.connect(endpoints.source_dsn, autocommit=True) as connection:
            slot = find_slot(connection, config.slot)
        if slot is None or slot.active_pid is None:
            return False
        state = read_state(client, config.pipeline.name, config.slot)
        return state is not None and state.phase is SnapshotPhase.DONE

    wait_until(streaming, what="capture streams", every_s=0.2)


def wait_published(config: Config, capture: Child, lsn: int, *, timeout_s: float = _READY_S) -> None:
    """Wait until a pipeline's capture has published everything up to an LSN. Raises as ``wait_streaming`` does."""
    client = config.kafka.client()

    def published() -> bool:
        capture.check()
        state = read_state(client, config.pipeline.name, config.slot)
        return state is not None and state.end_lsn >= lsn

    wait_until(published, what=f"the log has everything up to {format_lsn(lsn)}", timeout_s=timeout_s, every_s=0.2)


def free_and_drop_slot(connection: psycopg.Connection[Any], name: str) -> None:
    """Drop a slot once the server notices that its reader left. Raises LockstepError after half a minute."""

    def free() -> bool:
        slot = find_slot(connection, name)
        return slot is None or slot.active_pid is None

    wait_until(free, what=f"slot {name} is free", timeout_s=30)
    drop_slot(connection, name)


def drop_slots(connection: psycopg.Connection[Any], prefix: str) -> None:
    """Drop all slots with this prefix, in the same way."""
    query = "select slot_name from pg_replication_slots where starts_with(slot_name, %s)"
    for (name,) in connection.execute(query, (prefix,)).fetchall():
        free_and_drop_slot(connection, name)


def sink_name(pipeline: str, kind: str) -> str:
    """A sink's name. The warehouse's bookkeeping uses it, so pipelines on the same servers must not share one."""
    return f"{pipeline}_{kind}"


def _toml(name: str, endpoints: Endpoints, *, others: Iterable[str], sinks: Collection[str], lake: Path) -> str:
    """Defaults, except what one broker and one node can't do. ``others`` are further tables."""
    listed = ", ".join(f'"public.{table}"' for table in (name, *others))
    text = f"""
[pipeline]
name = "{name}"
[source]
dsn = "{endpoints.source_dsn}"
tables = [{listed}]
[kafka]
bootstrap_servers = "{endpoints.kafka_bootstrap}"
topics = {{ replication_factor = 1 }}
[spark]
checkpoint_directory = "checkpoints-{name}"
view_directory = "views-{name}"
"""
    return text + sink_sections(name, endpoints, sinks, lake=lake)


def sink_sections(name: str, endpoints: Endpoints, sinks: Collection[str], *, lake: Path | None = None) -> str:
    """The configuration's sections for sinks of these kinds. Only a lake needs a directory."""
    settings = {
        SEARCH: f"""
type = "opensearch"
urls = ["{endpoints.opensearch_url}"]
prefix = "{name}"
replicas = 0
""",
        CACHE: f"""
type = "redis"
url = "{endpoints.redis_url}"
prefix = "{name}"
""",
        WAREHOUSE: f"""
type = "warehouse"
url = "{endpoints.warehouse_url}"
schema = "{name}"
""",
        HISTORY: f"""
type = "warehouse"
url = "{endpoints.warehouse_url}"
schema = "{name}_all"
history = true
""",
    }
    if lake is not None:
        settings[LAKE] = f"""
type = "delta"
root = "{lake}"
"""
    return "".join(f"[sinks.{sink_name(name, kind)}]{settings[kind]}" for kind in sinks)


def tables_toml(name: str, endpoints: Endpoints, tables: Iterable[object], *, partitions: int) -> str:
    """The sections of a pipeline of these tables, whose topics have this many partitions, without sinks."""
    listed = ", ".join(f'"{table}"' for table in tables)
    return f"""
[pipeline]
name = "{name}"
[source]
dsn = "{endpoints.source_dsn}"
tables = [{listed}]
[kafka]
bootstrap_servers = "{endpoints.kafka_bootstrap}"
topics = {{ replication_factor = 1, partitions = {partitions} }}
"""
