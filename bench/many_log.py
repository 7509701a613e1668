"""The log of a pipeline with many tables, written without a source: topics of one partition, and rows of one shape."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from cdc.event_format.encode import TableEncoder, event_value
from cdc.kafka.large_rows import LargeRows
from cdc.kafka.publisher import TransactionalPublisher
from cdc.kafka.settings import KafkaSettings
from cdc.kafka.topic_admin import TopicAdmin, control_topic_plans, table_topic_plan
from cdc.kafka.topic_names import table_topic
from cdc.model.table import Column, ReplicaIdentity, Table, TableName
from cdc.model.tag import tag_prefix
from cdc.protocol.control_records import CaptureState, SchemaRecord, SnapshotPhase

_EPOCH = 1
_FIRST_LSN = 0x100_0000
_TOPICS_AT_ONCE = 100

_TYPES = {
    "id": ("int8", 20),
    "customer_id": ("int4", 23),
    "kind": ("int4", 23),
    "note": ("text", 25),
    "address": ("text", 25),
    "created_at": ("timestamptz", 1184),
    "amount": ("numeric", 1700),
    "flag": ("bool", 16),
}
_ROW = (b"17", b"3", b"lorem ipsum dolor sit amet", b"12 long street name", b"2026-01-02 03:04:05+00", b"12.34", b"t")


def many_tables(count: int) -> list[Table]:
    """Tables of eight columns of the usual types."""
    columns = tuple(
        Column(name, kind, kind, is_array=False, type_oid=oid, type_modifier=-1, number=number)
        for number, (name, (kind, oid)) in enumerate(_TYPES.items(), start=1)
    )
    return [
        Table(TableName("public", f"many_{number:05}"), columns, ("id",), ReplicaIdentity.DEFAULT)
        for number in range(count)
    ]


class ManyLog:
    """A pipeline's topics, written as capture does."""

    def __init__(self, publisher: TransactionalPublisher, pipeline: str) -> None:
        self._publisher = publisher
        self._pipeline = pipeline
        self._lsn = _FIRST_LSN

    def publish_shapes(self, tables: Sequence[Table]) -> None:
        self._commit([SchemaRecord(table, self._lsn) for table in tables])

    def put(self, table: Table, row: int) -> None:
        """Write a row with this number in a transaction."""
        now_ms = time.time_ns() // 1_000_000
        encode = TableEncoder(table, server="bench", database="bench", version="0")
        source = encode.source(commit_time_ms=now_ms, xid=self._lsn & 0xFFFF)
        fields = [str(row).encode(), *_ROW]
        value = event_value(
            b"u", tag_prefix(_EPOCH, self._lsn), 1, b"null", encode.row(fields), source, self._lsn, now_ms
        )
        self._publisher.send(table_topic(self._pipeline, table.name), encode.key(fields), value)
        self._commit([])

    def _commit(self, shapes: Sequence[SchemaRecord]) -> None:
        commit_lsn = self._lsn
        self._lsn += 8
        state = CaptureState(
            slot="bench",
            owner="bench",
            publication="bench",
            database="bench",
            system_id="1",
            timeline=1,
            epoch=_EPOCH,
            phase=SnapshotPhase.DONE,
            handoff=_FIRST_LSN,
            commit_lsn=commit_lsn,
            seq=1,
            end_lsn=self._lsn,
            commit_time_ms=time.time_ns() // 1_000_000,
            copied={},
            memberships={},
            topics={},
        )
        self._publisher.commit(state, shapes)


@contextmanager
def many_log(kafka: KafkaSettings, pipeline: str, tables: Sequence[Table]) -> Iterator[ManyLog]:
    """Create the topics and publish the shapes. The topics stay."""
    cluster = TopicAdmin(kafka.client())
    cluster.create(control_topic_plans(pipeline, kafka.topics))
    plans = [table_topic_plan(table_topic(pipeline, table.name), kafka.topics) for table in tables]
    for start in range(0, len(plans), _TOPICS_AT_ONCE):
        cluster.create(plans[start : start + _TOPICS_AT_ONCE])
    publisher = TransactionalPublisher(
        kafka.client(),
        f"{pipeline}-capture",
        LargeRows(max_message_bytes=kafka.topics.max_message_bytes),
        prefix=pipeline,
    )
    with closing(publisher):
        publisher.start()
        log = ManyLog(publisher, pipeline)
        log.publish_shapes(tables)
        yield log
