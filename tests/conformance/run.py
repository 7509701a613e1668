"""Runs cases against one server: as many as possible in one run of capture, each in schemas of its own."""

import itertools
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus

from cdc.capture.batch import Committed
from cdc.capture.batch_size import BatchSize
from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from cdc.postgres.connection import connect
from cdc.postgres.settings import SourceSettings
from cdc.postgres.slot import emit_heartbeat
from lockstep.capture.run import Observer, capture
from lockstep.config import Config, load
from tests.conformance.case import PIPELINE, PUBLICATION, SCHEMA, Case, On, Step, Way
from tests.conformance.judge import (
    Change,
    Fold,
    Judge,
    Row,
    complaints_about_log,
    complaints_about_transactions,
    fold,
    message,
    parse,
    row_of,
    shapes,
)
from tests.topics import read_committed

_PATIENCE_S = 300.0
_PATIENCE_WITH_STOPS_S = 15.0
_HEARTBEAT_S = 0.3
_BATCH_WITH_RESTARTS = BatchSize(10, 1 << 20)

Complaints = dict[str, list[str]]
"""Case id -> what is wrong; an empty list is a case that passed."""


class CaptureFailed(Exception):
    """Capture ended, or hung, in a run of cases that it should have come through."""


class Runner:
    """All cases of one server. The names of pipelines are its own as long as ``prefix`` is."""

    def __init__(self, server_dsn: str, kafka_bootstrap: str, directory: Path, *, prefix: str) -> None:
        self._server_dsn = server_dsn
        self._kafka_bootstrap = kafka_bootstrap
        self._directory = directory
        self._prefix = prefix
        self._numbers = itertools.count(1)

    def run(self, cases: Sequence[Case]) -> Complaints:
        """Run cases, those together that can share a pipeline."""
        complaints: Complaints = {}
        for group in _groups(cases):
            complaints |= self._run_group(group)
        return complaints

    def _run_group(self, cases: Sequence[Case]) -> Complaints:
        """Where capture doesn't come through, halves are run until it is known which case it was."""
        try:
            return _Pipeline(
                self._server_dsn,
                self._kafka_bootstrap,
                self._directory,
                f"{self._prefix}_{next(self._numbers)}",
                cases,
            ).run()
        except CaptureFailed as error:
            if len(cases) == 1:
                return {cases[0].id: [str(error)]}
            middle = len(cases) // 2
            return self._run_group(cases[:middle]) | self._run_group(cases[middle:])


def _groups(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases that need a publication, settings or an end of their own are alone."""
    shared: dict[bool, list[Case]] = {}
    alone = []
    for case in cases:
        if case.stops or case.published or case.source:
            alone.append([case])
        else:
            shared.setdefault(case.restarts, []).append(case)
    return [*shared.values(), *alone]


class _Pipeline:
    """One run of capture over a database of its own."""

    def __init__(
        self,
        server_dsn: str,
        kafka_bootstrap: str,
        directory: Path,
        name: str,
        cases: Sequence[Case],
    ) -> None:
        self._cases = cases
        self._name = name
        with psycopg.connect(server_dsn, autocommit=True) as server:
            server.execute(f"create database {name} template template0".encode())
        self._dsn = make_conninfo(server_dsn, dbname=name)
        self._kafka_bootstrap = kafka_bootstrap
        self._path = directory / f"{name}.toml"
        self._complaints: Complaints = {case.id: [] for case in cases}
        self._sessions: dict[tuple[str, str], psycopg.Connection[Any]] = {}
        self._closing = ExitStack()

    @property
    def _runs(self) -> list[tuple[Case, Way]]:
        """Cases that are still in it, in each of their ways."""
        return [(case, way) for case in self._cases if not self._complaints[case.id] for way in case.ways]

    def run(self) -> Complaints:
        with self._closing:
            for case, way in self._runs:
                self._sql(case, way, (f"create schema {case.schema(way)}", *case.setup))
            for case, way in self._runs:
                if way is not Way.STREAM:
                    self._sql(case, way, case.before)
                if way is Way.SNAPSHOT:
                    self._sql(case, way, (*case.after, *case.later))
            if not self._runs:
                return self._complaints
            self._create_publication()
            config = self._config()
            try:
                if self._cases[0].stops:
                    self._run_until_it_stops(config)
                else:
                    self._run_through(config)
                    self._judge(config)
            finally:
                self._delete_topics(config)
        return self._complaints

    def _sql(self, case: Case, way: Way, steps: Sequence[Step]) -> None:
        """Run statements; one that fails takes its case out."""
        for step in steps:
            name, text = (step.connection, step.sql) if isinstance(step, On) else ("", step)
            text = text.replace(SCHEMA, case.schema(way))
            text = text.replace(PUBLICATION, f"lockstep_{self._name}").replace(PIPELINE, self._name)
            try:
                self._session(case, way, name).execute(text.encode())
            except psycopg.Error as error:
                self._complaints[case.id].append(f"{text[:100]}: {error}")
                return

    def _session(self, case: Case, way: Way, name: str) -> psycopg.Connection[Any]:
        """A case's own connections by name; all other statements share one."""
        at = (case.schema(way), name) if name else ("", "")
        session = self._sessions.get(at)
        if session is None:
            session = psycopg.connect(self._dsn, autocommit=True, options="-c timezone=America/New_York")
            self._sessions[at] = self._closing.enter_context(closing(session))
        if session.info.transaction_status is TransactionStatus.IDLE:
            session.execute(f"set search_path to {case.schema(way)}, public".encode())
        return session

    def _create_publication(self) -> None:
        objects = dict.fromkeys(
            text.replace(SCHEMA, case.schema(way)) for case, way in self._runs for text in case.published
        )
        if not objects:
            return
        # PostgreSQL 14 takes the word TABLE once, before all tables.
        tables = [each.removeprefix("table ") for each in objects if each.startswith("table ")]
        clauses = [each for each in objects if not each.startswith("table ")]
        if tables:
            clauses.append(f"table {', '.join(tables)}")
        options = self._cases[0].publication_with
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(
                f"create publication lockstep_{self._name} for {', '.join(clauses)}"
                f"{f' with ({options})' if options else ''}".encode()
            )

    def _config(self) -> Config:
        tables = [TableName(case.schema(way), table) for case, way in self._runs for table in case.tables]
        options = [
            (TableName(case.schema(way), table), toml)
            for case, way in self._runs
            for table, toml in case.options.items()
        ]
        self._path.write_text(
            "\n".join(
                (
                    f'pipeline = {{ name = "{self._name}" }}',
                    "[kafka]",
                    f'bootstrap_servers = "{self._kafka_bootstrap}"',
                    "topics = { partitions = 1, replication_factor = 1 }",
                    "[source]",
                    f'dsn = "{self._dsn}"',
                    f"heartbeat_interval_s = {_HEARTBEAT_S}",
                    f"tables = {[str(table) for table in tables]}",
                    *dict.fromkeys(case.source for case in self._cases),
                    *(f"[source.options.'{table}']\n{toml}" for table, toml in options),
                )
            ),
            encoding="utf-8",
        )
        return load(self._path)

    def _run_through(self, config: Config) -> None:
        with _running(config, restarts=any(case.restarts for case in self._cases)) as running:
            running.wait(lambda: running.is_streaming, "capture streams")
            self._after()
            self._settle(config, running)
            if any(case.unseen for case in self._cases):
                # Capture looks for what the stream doesn't show when a heartbeat is due, and copies what it found.
                time.sleep(3 * _HEARTBEAT_S)
                self._settle(config, running)
                for case, way in self._runs:
                    if way is not Way.SNAPSHOT:
                        self._sql(case, way, case.later)
                self._settle(config, running)

    @staticmethod
    def _settle(config: Config, running: "_Running") -> None:
        """Wait until everything that is committed now is published, and no table is to be copied."""
        with connect(config.source, application="test") as connection:
            target = emit_heartbeat(connection)
        names = set(config.source.table_names)
        running.wait(lambda: running.end_lsn >= target and running.copied >= names, "everything is published")

    def _after(self) -> None:
        for case, way in self._runs:
            if way is Way.STREAM:
                self._sql(case, way, case.before)
            if way is not Way.SNAPSHOT:
                self._sql(case, way, case.after)

    def _run_until_it_stops(self, config: Config) -> None:
        (case,) = self._cases
        with _running(config, restarts=False) as running:
            try:
                running.wait(lambda: running.is_streaming, "capture streams")
                self._after()
                running.wait(lambda: False, "capture stops", patience_s=_PATIENCE_WITH_STOPS_S)
            except CaptureFailed:
                error = running.error
                if not isinstance(error, LockstepError) or not re.search(case.stops, str(error)):
                    self._complaints[case.id].append(f"it should stop with {case.stops!r}, but: {error!r}")
            running.error = None

    def _judge(self, config: Config) -> None:
        topics = config.topics()
        exist = AdminClient(config.kafka.client()).list_topics(timeout=30).topics
        there = {topic for topic in exist if topic.startswith(f"{self._name}.") and ".__" not in topic}
        schema_topic, message_topic = f"{self._name}.__schema", f"{self._name}.__messages"
        wanted = {*there, schema_topic, *({message_topic} & set(exist))}
        by_topic = {topic: events for (topic, _), events in read_committed(config.kafka.client(), wanted).items()}
        histories = shapes(by_topic[schema_topic])
        for case in self._cases:
            folds: dict[Way, dict[str, Fold]] = {}
            changed_shape: set[str] = set()
            for way in case.ways if not self._complaints[case.id] else ():
                names = {table: TableName(case.schema(way), table) for table in case.tables}
                changes = {
                    table: [parse(table, event) for event in by_topic[topics[name]]] for table, name in names.items()
                }
                folds[way] = {table: fold(table_changes) for table, table_changes in changes.items()}
                history = {table: histories[name.schema, name.name] for table, name in names.items()}
                rows = {
                    table: [row_of(change, history[table]) for change in table_fold.values()]
                    for table, table_fold in folds[way].items()
                }
                changed_shape |= {table for table, records in history.items() if len(records) > 1}
                prefix = f"{self._name}.{case.schema(way)}."
                unwanted = {topic for topic in there if topic.startswith(prefix)} - {topics[n] for n in names.values()}
                complaints = [
                    *([f"there are topics {unwanted}"] if unwanted else []),
                    *self._complaints_about_events(case, way, changes),
                    *self._complaints_about_rows(case, way, rows),
                ]
                self._complaints[case.id] += [f"{way}: {complaint}" for complaint in complaints]
            self._complaints[case.id] += _complaints_about_ways(folds, changed_shape)
            messages = tuple(message(event) for event in by_topic.get(message_topic, ()))
            if case.source and messages != case.messages:
                self._complaints[case.id].append(f"the messages are {messages}, not {case.messages}")

    @staticmethod
    def _complaints_about_events(case: Case, way: Way, changes: dict[str, list[Change]]) -> list[str]:
        complaints = [
            complaint
            for table_changes in changes.values()
            for complaint in complaints_about_log(table_changes, unseen=case.unseen)
        ]
        if way is Way.STREAM and case.transactions:
            everything = [change for table_changes in changes.values() for change in table_changes]
            complaints += complaints_about_transactions(case, everything)
        return complaints

    def _complaints_about_rows(self, case: Case, way: Way, rows: dict[str, list[Row]]) -> list[str]:
        with connect(SourceSettings(dsn=self._dsn, tables=("a.b",)), application="test") as connection:
            return Judge(connection, case, way).complaints(rows)

    def _delete_topics(self, config: Config) -> None:
        """The broker serves all versions; what is judged isn't needed any more."""
        admin = AdminClient(config.kafka.client())
        mine = [topic for topic in admin.list_topics(timeout=30).topics if topic.startswith(f"{self._name}.")]
        if mine:
            for done in admin.delete_topics(mine).values():
                done.result(300)


def _complaints_about_ways(folds: dict[Way, dict[str, Fold]], changed_shape: Collection[str]) -> list[str]:
    """A row has the same bytes whichever way it came, where its table kept its shape."""
    if not folds:
        return []
    first, *others = folds
    return [
        f"{table}: row {key.decode()} has other bytes by {way} than by {first}"
        for way in others
        for table, rows in folds[way].items()
        for key, change in rows.items()
        if table not in changed_shape and key in folds[first][table] and change.after != folds[first][table][key].after
    ][:3]


class _Running(threading.Thread):
    """Capture in a thread of this process."""

    def __init__(self, config: Config, *, restarts: bool) -> None:
        super().__init__(daemon=True)
        self._config = config
        self._restarts = restarts
        self._stop_now = threading.Event()
        self._stop_for_restart = threading.Event()
        self._said: list[str] = []
        self.is_streaming = False
        self.end_lsn = 0
        self.copied: set[TableName] = set()
        self.error: BaseException | None = None

    def run(self) -> None:
        observer = Observer(say=self._say, committed=self._committed)
        pipeline = self._config.as_pipeline()
        if self._restarts:
            pipeline = replace(pipeline, batch=_BATCH_WITH_RESTARTS)
        try:
            while not self._stop_now.is_set():
                self._stop_for_restart.clear()
                capture(pipeline, stopping=self._is_stopping, observer=observer)
        except BaseException as error:
            self.error = error

    def _is_stopping(self) -> bool:
        return self._stop_now.is_set() or self._stop_for_restart.is_set()

    def _say(self, sentence: str) -> None:
        self._said.append(sentence)
        if "streaming from" in sentence:
            self.is_streaming = True

    def _committed(self, committed: Committed) -> None:
        self.end_lsn = committed.state.end_lsn
        self.copied = set(committed.state.copied)
        if self._restarts and committed.events:
            self._stop_for_restart.set()

    def wait(self, condition: Callable[[], bool], what: str, *, patience_s: float = _PATIENCE_S) -> None:
        """Raises CaptureFailed when capture ends first, or takes too long."""
        deadline = time.monotonic() + patience_s
        while not condition():
            if not self.is_alive():
                raise CaptureFailed(f"capture ended before {what}: {self.error!r}")
            if time.monotonic() > deadline:
                raise CaptureFailed(f"not within {patience_s:.0f} s: {what}; it said {self._said[-3:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        self._stop_now.set()
        self.join(_PATIENCE_S)
        if self.error is not None:
            raise CaptureFailed(f"capture ended with an error: {self.error!r}")
        if self.is_alive():
            raise CaptureFailed("capture doesn't stop")


@contextmanager
def _running(config: Config, *, restarts: bool) -> Iterator[_Running]:
    running = _Running(config, restarts=restarts)
    running.start()
    try:
        yield running
    finally:
        running.stop()
