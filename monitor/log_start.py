"""Where on the topics to begin for what was committed after an LSN, or published since a time."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import psycopg

from cdc.kafka.control_topics import read_progress, read_state
from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.model.errors import ConfigurationError
from cdc.model.lsn import format_lsn
from cdc.pipeline_settings import Pipeline
from cdc.postgres.connection import connect, connection_error
from cdc.postgres.slot import wal_end
from cdc.protocol.control_records import ProgressRecord
from jobs.offsets import Offsets
from jobs.query.start_position import offsets_after_lsn


@dataclass(frozen=True, slots=True)
class AfterLsn:
    """What was committed after ``lsn`` of the present server, whose LSNs have this ``epoch``."""

    lsn: int
    epoch: int
    offsets: Offsets
    """At or before the first such event."""


def offsets_since(pipeline: Pipeline, topics: Collection[str], time_ms: int) -> Offsets:
    """For each partition of these topics, the offset of the first record published at this time or later. Raises
    Unavailable, also for a topic that the brokers don't list."""
    cluster = TopicAdmin(pipeline.kafka.client())
    return cluster.offsets_at(partitions_of(topics, cluster.partition_counts(topics)), time_ms)


def offsets_after(pipeline: Pipeline, topics: Collection[str], lsn: int) -> AfterLsn:
    """For each partition of these topics, an offset from which everything committed after ``lsn`` follows, with little
    of what was before. 0 is the beginning of the log, including what was published before a recovery with other LSNs.
    Raises ConfigurationError for an LSN beyond the end of the WAL, and as ``offsets_since``."""
    client = pipeline.kafka.client()
    partitions = partitions_of(topics, TopicAdmin(client).partition_counts(topics))
    if lsn == 0:
        return AfterLsn(lsn, 0, dict.fromkeys(partitions, 0))
    newest = 0
    state = read_state(client, pipeline.name, pipeline.slot)
    epoch = 0 if state is None else state.epoch

    def published() -> Iterator[ProgressRecord]:
        nonlocal newest
        for record in read_progress(client, pipeline.name):
            # An LSN belongs to the server that is captured now.
            newest = record.lsn if record.epoch == epoch else 0
            yield record

    start = AfterLsn(lsn, epoch, offsets_after_lsn(published(), lsn, partitions, epoch=epoch))
    # Ask the source only about what isn't published yet: machines that run jobs may be unable to reach it.
    if lsn > newest:
        _refuse_future(pipeline, lsn)
    return start


def _refuse_future(pipeline: Pipeline, lsn: int) -> None:
    with connect(pipeline.source, application="lockstep --from-lsn") as connection:
        try:
            end = wal_end(connection)
        except psycopg.Error as error:
            raise connection_error(error) from error
    if lsn > end:
        raise ConfigurationError(
            f"{format_lsn(lsn)} is beyond the end of the WAL, {format_lsn(end)}",
            hint="--from-lsn is where something was committed",
        )
