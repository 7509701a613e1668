"""What is published beside the tables: logical messages, and the rows of an outbox table. Pure.

Neither has a newest state, so their topics keep every event. A message is

    {"op":"m","tag":"...","message":{"prefix":"...","content":"<base64>"},"source":{...},"ts_ms":...}

keyed by its prefix. An outbox row has the columns of Debezium's outbox event router: id, aggregatetype, aggregateid,
type, payload. It goes unchanged to the topic of its aggregate type: key ``aggregateid``, value ``payload``, headers
``id``, ``type`` and ``tag``.
"""

import base64
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import orjson

from cdc.model.errors import UnsupportedChange
from cdc.model.table import TableName
from cdc.protocol.envelope import CONNECTOR, TAG_HEADER, tag_text
from cdc.protocol.pgoutput import UNCHANGED, Fields, LogicalMessage, Relation

Headers = list[tuple[str, bytes]]

OUTBOX_COLUMNS: Final = ("id", "aggregatetype", "aggregateid", "type", "payload")


@dataclass(frozen=True, slots=True)
class MessageChannel:
    """Which messages are published, and where."""

    prefixes: Collection[str]
    topic: str
    server: str
    database: str
    version: str

    def event(
        self, message: LogicalMessage, *, prefix: bytes, seq: int, commit_time_ms: int, xid: int | None
    ) -> tuple[str, bytes, bytes, None]:
        """The message as an event; ``prefix`` and ``seq`` make its tag, ``xid`` is None outside of transactions."""
        content = {"prefix": message.prefix, "content": base64.b64encode(message.content).decode()}
        source = {
            "version": self.version,
            "connector": CONNECTOR,
            "name": self.server,
            "db": self.database,
            "snapshot": "false",
            "ts_ms": commit_time_ms,
            "txId": xid,
            "lsn": message.lsn,
        }
        value = b'{"op":"m","tag":"%b","message":%b,"source":%b,"ts_ms":%d}' % (
            tag_text(prefix, seq),
            orjson.dumps(content),
            orjson.dumps(source),
            commit_time_ms,
        )
        return self.topic, orjson.dumps({"prefix": message.prefix}), value, None


@dataclass(frozen=True, slots=True)
class OutboxChannel:
    """The outbox table, and the topic of an aggregate type."""

    table: TableName
    topic_of: Callable[[str], str]

    def route(self, relation: Relation) -> "OutboxRoute":
        """How rows of the table are routed, as it is described. Raises UnsupportedChange when columns are missing."""
        indexes = {column.name: index for index, column in enumerate(relation.columns)}
        missing = [name for name in OUTBOX_COLUMNS if name not in indexes]
        if missing:
            raise UnsupportedChange(
                f"the outbox table {self.table} lacks the columns {', '.join(missing)}",
                hint=f"it needs {', '.join(OUTBOX_COLUMNS)}; add them (alter table {self.table.sql} add ...), then"
                " start again: nothing was skipped",
            )
        identity, aggregate, key, kind, payload = (indexes[name] for name in OUTBOX_COLUMNS)
        return OutboxRoute(self, len(relation.columns), identity, aggregate, key, kind, payload)


@dataclass(frozen=True, slots=True)
class OutboxRoute:
    """The indexes of the columns in one shape of the table."""

    channel: OutboxChannel
    columns: int
    identity: int
    aggregate: int
    key: int
    kind: int
    payload: int

    def event(self, row: Fields, *, tag: bytes) -> tuple[str, bytes, bytes | None, Headers]:
        """An inserted row as an event. Raises UnsupportedChange for one without id, aggregate or key."""
        if len(row) != self.columns:
            raise ValueError("another number of values")
        identity, aggregate, key, kind, payload = (
            row[index] for index in (self.identity, self.aggregate, self.key, self.kind, self.payload)
        )
        if identity is None or aggregate is None or key is None or UNCHANGED in row:
            raise UnsupportedChange(
                f"a row of the outbox table {self.channel.table} has no id, aggregatetype or aggregateid",
                hint="make these columns not null; for this row: start capture once without source.outbox."
                " Nothing was skipped",
            )
        headers = [("id", identity), ("type", kind or b""), (TAG_HEADER, tag)]
        return self.channel.topic_of(aggregate.decode()), key, payload, headers  # type: ignore[union-attr,return-value]  # none is UNCHANGED
