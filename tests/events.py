"""A log without a database: writes events as capture does, so that readers of the log can be tested alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cdc.event_format.encode import TableEncoder, event_value
from cdc.kafka.large_rows import LargeRows
from cdc.kafka.publisher import TransactionalPublisher
from cdc.kafka.settings import KafkaSettings, TopicSettings
from cdc.kafka.topic_admin import TopicAdmin, TopicPlan, control_topic_plans, partitions_of, table_topic_plan
from cdc.kafka.topic_names import table_topic
from cdc.model.event import JsonValue
from cdc.model.table import Table, TableName
from cdc.model.tag import tag_prefix, tag_text
from cdc.protocol.control_records import CaptureState, SchemaRecord, SnapshotPhase
from tests.topics import configure, remove_later

Row = Mapping[str, JsonValue]

EPOCH = 1
_FIRST_LSN = 0x100_0000


def one_broker_topics(**changes: int) -> TopicSettings:
    return TopicSettings(**{"partitions": 4, "replication_factor": 1, **changes})


def kafka_settings(bootstrap: str, **topics: int) -> KafkaSettings:
    """Settings of a pipeline on one broker; ``topics`` override those of its topics."""
    return KafkaSettings(bootstrap_servers=bootstrap, topics=one_broker_topics(**topics))


@dataclass(frozen=True, slots=True)
class Put:
    """A row has this state now."""

    table: Table
    row: Row


@dataclass(frozen=True, slots=True)
class Delete:
    """A row is gone: a delete event and its tombstone, or with ``tombstone_only`` what compaction leaves of them."""

    table: Table
    key: Row
    tombstone_only: bool = False


@dataclass(frozen=True, slots=True)
class Empty:
    """All rows of an append-only table are gone."""

    table: Table


Change = Put | Delete | Empty


def field(value: JsonValue) -> bytes | None:
    """A value as PostgreSQL's text, for the simple types that tests use."""
    if value is None:
        return None
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, str | int):
        return str(value).encode()
    raise ValueError(f"no text for a {type(value).__name__}")


def key_bytes(table: Table, key: Row) -> bytes:
    """A row's key as it is on the topic."""
    return encoder(table).key([field(key.get(column.name)) for column in table.columns])


def encoder(table: Table) -> TableEncoder:
    return TableEncoder(table, server="test", database="app", version="0")


def value_bytes(table: Table, op: str, row: Row, *, lsn: int, seq: int, commit_time_ms: int = 0) -> bytes:
    """An event's value as it is on the topic. For a delete, ``row`` holds only the key."""
    encode = encoder(table)
    text = encode.row([field(row.get(column.name)) for column in table.columns])
    before, after = (text, b"null") if op == "d" else (b"null", text)
    source = encode.source(commit_time_ms=commit_time_ms, xid=lsn & 0xFFFF)
    return event_value(op.encode(), tag_prefix(EPOCH, lsn), seq, before, after, source, lsn, commit_time_ms)


class Log:
    """A pipeline's topics, and capture's part in writing them."""

    def __init__(self, kafka: KafkaSettings, pipeline: str, tables: Sequence[Table]) -> None:
        """Create the topics, publish the tables' shapes, and fence earlier writers."""
        self.kafka = kafka
        self.pipeline = pipeline
        self.tables = list(tables)
        self.lsn = _FIRST_LSN
        self.epoch = EPOCH
        self._seq = 0  # of the transaction that is open
        self._cluster = TopicAdmin(kafka.client())
        remove_later(kafka.client(), pipeline)
        self._create_topics()
        self._publisher = self._open_publisher()
        self.publish_shapes(tables)

    @property
    def table_names(self) -> list[TableName]:
        return [table.name for table in self.tables]

    def topic(self, table: Table) -> str:
        return table_topic(self.pipeline, table.name)

    def publish_shapes(self, tables: Iterable[Table]) -> None:
        self.commit([], schemas=[SchemaRecord(table, self.lsn) for table in tables])

    def commit(
        self,
        changes: Sequence[Change],
        *,
        schemas: Sequence[SchemaRecord] = (),
        commit_time_ms: int = 0,
        progress: bool = True,
    ) -> int:
        """Commit one source transaction in one Kafka transaction; returns its LSN, which a watermark may reach. Without
        ``progress``, writes no progress record, as for the rows of a copy."""
        self._send(changes, commit_time_ms)
        self.lsn += 8
        self._seq = 0
        # Naming the topics makes it write progress at once; capture would wait a moment under load.
        topics = [self.topic(table) for table in self.tables] if progress else []
        state = self._state(self.lsn - 8, len(changes), commit_time_ms)
        self._publisher.commit(state, schemas, covering=topics, progress=progress)
        return self.lsn

    def commit_part(self, changes: Sequence[Change]) -> None:
        """Commit the beginning, or more, of the next committed transaction, in a Kafka transaction of its own."""
        self._send(changes)
        state = self._state(self.lsn, self._seq, 0)
        self._publisher.commit(state, covering=[self.topic(table) for table in self.tables])

    def _send(self, changes: Sequence[Change], commit_time_ms: int = 0) -> None:
        commit_lsn = self.lsn
        for seq, change in enumerate(changes, start=self._seq + 1):
            topic = self.topic(change.table)
            match change:
                case Put(table, row):
                    op = "u" if table.key else "c"
                    value = value_bytes(table, op, row, lsn=commit_lsn, seq=seq, commit_time_ms=commit_time_ms)
                    self._publisher.send(topic, key_bytes(table, row), value)
                case Empty(table):
                    source = encoder(table).source(commit_time_ms=commit_time_ms, xid=commit_lsn & 0xFFFF)
                    prefix = tag_prefix(self.epoch, commit_lsn)
                    value = event_value(b"t", prefix, seq, b"null", b"null", source, commit_lsn, commit_time_ms)
                    self._publisher.send(topic, key_bytes(table, {}), value)
                case Delete(table, key, tombstone_only):
                    if not tombstone_only:
                        value = value_bytes(table, "d", key, lsn=commit_lsn, seq=seq, commit_time_ms=commit_time_ms)
                        self._publisher.send(topic, key_bytes(table, key), value)
                    self._publisher.send(
                        topic, key_bytes(table, key), None, tag_text(tag_prefix(self.epoch, commit_lsn), seq)
                    )
        self._seq += len(changes)

    def begin_epoch(self) -> None:
        """As `lockstep recover` does, before anything is copied."""
        self.epoch += 1
        self.commit([])

    def close(self) -> None:
        self._publisher.close()

    def recreate_topic(self, table: Table) -> None:
        """Delete a table's topic and create it again, as somebody might by hand."""
        self.delete_topic(table)
        self._create_topics()
        self._publisher = self._open_publisher()  # it learns at its start which topics exist

    def delete_topic(self, table: Table) -> None:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(self.kafka.client())
        admin.delete_topics([self.topic(table)], operation_timeout=15)[self.topic(table)].result(15)
        while self._cluster.partition_counts([self.topic(table)]):
            pass
        self._publisher = self._open_publisher()  # the previous one has written to the topic, and asks for its end

    def delete_records(self, table: Table) -> None:
        """Delete all records of a table's topic, as somebody might by hand."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient

        topic, client = self.topic(table), self.kafka.client()
        ends = self._cluster.end_offsets(partitions_of([topic], self._cluster.partition_counts([topic])))
        configure(client, [topic], {"cleanup.policy": "delete"})
        admin = AdminClient(client)
        for each in admin.delete_records([TopicPartition(*at, end) for at, end in ends.items()]).values():
            each.result(15)
        configure(client, [topic], {"cleanup.policy": "compact"})

    def _create_topics(self) -> None:
        plans: list[TopicPlan] = control_topic_plans(self.pipeline, self.kafka.topics)
        plans += [
            table_topic_plan(self.topic(table), self.kafka.topics, append_only=not table.key) for table in self.tables
        ]
        self._cluster.create(self._cluster.missing(plans))

    def _open_publisher(self) -> TransactionalPublisher:
        publisher = TransactionalPublisher(
            self.kafka.client(),
            f"{self.pipeline}-capture",
            LargeRows(
                [self.topic(table) for table in self.tables], max_message_bytes=self.kafka.topics.max_message_bytes
            ),
            prefix=self.pipeline,
        )
        publisher.start()
        return publisher

    def _state(self, commit_lsn: int, seq: int, commit_time_ms: int) -> CaptureState:
        return CaptureState(
            slot=f"lockstep_{self.pipeline}",
            owner="test",
            publication=f"lockstep_{self.pipeline}",
            database="app",
            system_id="1",
            timeline=1,
            epoch=self.epoch,
            phase=SnapshotPhase.DONE,
            handoff=_FIRST_LSN,
            commit_lsn=commit_lsn,
            seq=seq,
            end_lsn=self.lsn,
            commit_time_ms=commit_time_ms,
            copied={},
            memberships={},
            topics={},
        )
