"""Collects the facts of the lag report: asks the source, Kafka and every sink, over connections that stay open."""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import psycopg
from rich.table import Table

from cdc.kafka.cluster import Cluster
from cdc.kafka.control_topics import ProgressReader
from cdc.model.errors import Unavailable
from cdc.model.lsn import format_lsn, parse_lsn
from cdc.model.table import TableName
from cdc.postgres.connection import connect, connection_error
from jobs.generations import Generation, list_generations
from lockstep.config import Config
from monitor.lag import LagReport, SinkFacts, SourceFacts, report
from sinks.registry import open_sink, with_definition
from sinks.sink import Sink

APPLICATION = "lockstep lag"

_LIST_EVERY_S = 2.0
"""How often the sinks are asked which generations they have."""

_KIB, _MIB = 1024, 1024 * 1024


class LagCollector:
    """Ask it again and again; close it at the end. A server that is down shows up as an error of ``collect``."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._closing = contextlib.ExitStack()
        self._connection: psycopg.Connection[Any] | None = None
        self._cluster = Cluster(config.kafka.client())
        self._progress: ProgressReader | None = None
        self._published: tuple[int, int] | None = None
        self._sinks: dict[tuple[str, int], Sink] = {}
        self._generations: dict[str, list[Generation]] = {}
        self._listed_at = 0.0

    def collect(self) -> LagReport:
        """The lag now. Raises Unavailable or LockstepError."""
        # Against the flow: what is asked first can't be beyond what is asked later.
        sinks = [self._facts(name, generation) for name in self._config.sinks for generation in self._list(name)]
        published = self._newest_progress()
        return report(self._source(published), sinks, now_ms=time.time_ns() // 1_000_000)

    def close(self) -> None:
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _source(self, newest: tuple[int | None, int | None]) -> SourceFacts:
        row = self._query(
            "select pg_current_wal_insert_lsn()::text, s.active, r.write_lsn::text,"
            " pg_wal_lsn_diff(pg_current_wal_insert_lsn(), s.restart_lsn)::bigint"
            " from (select 1) one left join pg_replication_slots s on s.slot_name = %s"
            " left join pg_stat_replication r on r.pid = s.active_pid",
            self._config.slot,
        )
        wal_end, active, received, retained = row
        published, commit_time_ms = newest
        return SourceFacts(
            parse_lsn(wal_end),
            parse_lsn(received) if received else None,
            published,
            commit_time_ms,
            bool(active),
            retained,
        )

    def _query(self, sql: str, *parameters: str) -> tuple[Any, ...]:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = connect(self._config.source, application=APPLICATION)
                self._closing.callback(self._connection.close)
            row = self._connection.execute(sql.encode(), parameters).fetchone()
        except psycopg.OperationalError as error:
            raise connection_error(error) from error
        assert row is not None
        return tuple(row)

    def _newest_progress(self) -> tuple[int | None, int | None]:
        if self._progress is None:
            name = self._config.pipeline.name
            topics = tuple(self._config.topics().values())
            if not set(topics) <= self._cluster.partition_counts().keys():
                return None, None  # capture has never run
            self._progress = ProgressReader(self._config.kafka.client(), name, topics)
            self._closing.callback(self._progress.close)
        for record in self._progress.new_records():
            self._published = (record.lsn, record.commit_time_ms)
        return self._published or (None, None)

    def _list(self, name: str) -> list[Generation]:
        """A sink's generations, what readers see first. One that nobody has begun yet counts as the first."""
        now = time.monotonic()
        if now - self._listed_at > _LIST_EVERY_S:
            self._generations.clear()
            self._listed_at = now
        if name not in self._generations:
            found = list_generations(self._sink(name, 1))
            found.sort(key=lambda generation: not generation.is_live)
            self._generations[name] = found or [Generation(1, True, None)]
        return self._generations[name]

    def _sink(self, name: str, number: int) -> Sink:
        sink = self._sinks.get((name, number))
        if sink is None:
            sink = self._sinks[name, number] = open_sink(name, self._config.sinks[name], number)
            self._closing.callback(sink.close)
        return sink

    def _facts(self, name: str, generation: Generation) -> SinkFacts:
        progress = self._sink(name, generation.number).load_progress()
        # A sink's only generation is what it is about, also before readers see it.
        is_live = generation.is_live or len(self._generations[name]) == 1
        tables = self._tables(name, generation)
        if progress is None:
            behind = self._records_behind(tables, {})
            return SinkFacts(name, generation.number, is_live, 0, 0, behind, 0)
        return SinkFacts(
            name,
            generation.number,
            is_live,
            progress.watermark_lsn,
            progress.commit_time_ms,
            self._records_behind(tables, dict(progress.next_offsets)),
            progress.rejected,
        )

    def _tables(self, name: str, generation: Generation) -> Sequence[TableName]:
        settings = self._config.sinks[name]
        if generation.record is not None:
            settings = with_definition(settings, generation.record.definition)
        return [TableName.parse(table) for table in settings.tables] or self._config.source.keyed_names

    def _records_behind(self, tables: Sequence[TableName], next_offsets: dict[tuple[str, int], int]) -> int | None:
        topics = self._config.topics()
        read = [topics[table] for table in tables if table in topics]
        counts = self._cluster.partition_counts()
        partitions = [(topic, p) for topic in read for p in range(counts.get(topic, 0))]
        if not partitions:
            return None
        ends = self._cluster.end_offsets(partitions)
        return sum(max(0, end - next_offsets.get(at, 0)) for at, end in ends.items())


def lag_table(lag: LagReport) -> Table:
    """The report as a table for the terminal."""
    table = Table(title=None, expand=False)
    for heading in ("stage", "LSN", "bytes behind", "seconds behind", "events behind"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for stage in lag.stages:
        table.add_row(
            stage.name,
            "-" if stage.lsn is None else format_lsn(stage.lsn),
            "-" if stage.bytes_behind is None else readable_bytes(stage.bytes_behind),
            "-" if stage.seconds_behind is None else f"{stage.seconds_behind:.1f}",
            "-" if stage.events_behind is None else f"{stage.events_behind:,}",
        )
    return table


def readable_bytes(count: int) -> str:
    if count < _KIB:
        return f"{count} B"
    return f"{count / _KIB:.1f} KiB" if count < _MIB else f"{count / _MIB:.1f} MiB"


def wait_for_lsn(
    collector: LagCollector, lsn: int, *, timeout_s: float, sinks: tuple[str, ...] = (), sleep: Callable[[float], None]
) -> bool:
    """Wait until readers of the sinks (all, when none is named) see everything up to ``lsn``; False at the time-out."""
    deadline = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(Unavailable):
            stages = [
                stage
                for stage in collector.collect().stages
                if stage.sink is not None and stage.sink.is_live and (not sinks or stage.sink.name in sinks)
            ]
            if all(stage.lsn is not None and stage.lsn >= lsn for stage in stages):
                return True
        if time.monotonic() > deadline:
            return False
        sleep(0.1)
