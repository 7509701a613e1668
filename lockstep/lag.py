"""Collects the facts of the lag report: asks the source, Kafka and every sink, over connections that stay open."""

import contextlib
import time
from collections.abc import Callable
from typing import Any, Self

import psycopg
from rich.table import Table

from cdc.kafka.cluster import Cluster
from cdc.kafka.control_topics import ProgressReader
from cdc.model.errors import Unavailable
from cdc.model.lsn import format_lsn, parse_lsn
from cdc.model.table import TableName
from cdc.postgres.connection import connect, connection_error
from lockstep.config import Config
from monitor.lag import LagReport, SinkFacts, SourceFacts, report
from sinks.registry import open_sink
from sinks.sink import Sink

APPLICATION = "lockstep lag"

FIRST_GENERATION = 1

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
        self._sinks: dict[str, Sink] = {}

    def collect(self) -> LagReport:
        """The lag now. Raises Unavailable or LockstepError."""
        # Against the flow: what is asked first can't be beyond what is asked later.
        sinks = [self._sink(name) for name in self._config.sinks]
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

    def _sink(self, name: str) -> SinkFacts:
        settings = self._config.sinks[name]
        sink = self._sinks.get(name)
        if sink is None:
            sink = self._sinks[name] = open_sink(name, settings, FIRST_GENERATION)
            self._closing.callback(sink.close)
        progress = sink.load_progress()
        if progress is None:
            return SinkFacts(name, FIRST_GENERATION, 0, 0, self._records_behind(name, {}), 0)
        return SinkFacts(
            name,
            FIRST_GENERATION,
            progress.watermark_lsn,
            progress.commit_time_ms,
            self._records_behind(name, dict(progress.next_offsets)),
            progress.rejected,
        )

    def _records_behind(self, name: str, next_offsets: dict[tuple[str, int], int]) -> int | None:
        topics = self._config.topics()
        chosen = self._config.sinks[name].tables
        read = [topics[TableName.parse(table)] for table in chosen] if chosen else list(topics.values())
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
    """Wait until the sinks (all, when none is named) have applied everything up to ``lsn``; False at the time-out."""
    deadline = time.monotonic() + timeout_s
    wanted = {f"applied: {name}" for name in sinks}
    while True:
        with contextlib.suppress(Unavailable):
            stages = [
                stage
                for stage in collector.collect().stages
                if stage.name.startswith("applied: ") and (not wanted or stage.name in wanted)
            ]
            if all(stage.lsn is not None and stage.lsn >= lsn for stage in stages):
                return True
        if time.monotonic() > deadline:
            return False
        sleep(0.1)
