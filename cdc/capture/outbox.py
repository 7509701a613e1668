"""Events of an outbox table. Pure.

A row of it has no newest state, so its topics retain every event. The table has the columns of Debezium's outbox event
router: id, aggregatetype, aggregateid, type, payload. A row goes unchanged to the topic of its aggregate type: key
``aggregateid``, value ``payload``, headers ``id``, ``type`` and ``tag``. Rows without a topic of their own share one,
with an additional header ``aggregatetype``.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, cast

from cdc.model.errors import UnsupportedChange
from cdc.model.event import Headers
from cdc.model.table import TableName
from cdc.model.tag import TAG_HEADER
from cdc.protocol.pgoutput import UNCHANGED, Fields, Relation

TYPE_HEADER: Final = "aggregatetype"

OUTBOX_COLUMNS: Final = ("id", "aggregatetype", "aggregateid", "type", "payload")


class OutboxTopics:
    """The topic of each aggregate type, and the topic that all other rows share. The writers of rows choose the types,
    so at most ``most`` topics are used: the ``existing`` ones, which keep their types, and new ones. ``say`` gets a
    sentence when rows begin to go to the shared topic."""

    def __init__(
        self,
        topic_of: Callable[[str], str],
        shared: str,
        existing: Collection[str],
        *,
        most: int,
        say: Callable[[str], None],
    ) -> None:
        self.shared = shared
        self._topic_of = topic_of
        self._known = set(existing)
        self._most = most
        self._say = say
        self._said: set[str] = set()

    def of(self, kind: bytes) -> str:
        try:
            topic = self._topic_of(kind.decode())
        except UnicodeDecodeError:
            return self.instead("have an aggregatetype that isn't UTF-8")
        if topic not in self._known:
            if len(self._known) >= self._most:
                return self.instead(f"have further types than the {self._most} that get a topic of their own")
            self._known.add(topic)
        return topic

    def instead(self, why: str) -> str:
        """The shared topic; reports each reason once."""
        if why not in self._said:
            self._said.add(why)
            self._say(f"warning: rows of the outbox {why}; they go to topic {self.shared}")
        return self.shared


@dataclass(frozen=True, slots=True)
class OutboxChannel:
    table: TableName
    topics: OutboxTopics

    def route(self, relation: Relation) -> "OutboxRoute":
        """Where the columns of this shape are. Raises UnsupportedChange if columns are missing."""
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
        """An inserted row as an event, whatever it holds: no inserted row stops capture. Raises UnsupportedChange for a
        row that an update moved into the publication's filter, if PostgreSQL left a value out."""
        if len(row) != self.columns:
            raise ValueError("another number of values")
        sent = [row[index] for index in (self.identity, self.aggregate, self.key, self.kind, self.payload)]
        table, topics = self.channel.table, self.channel.topics
        if UNCHANGED in sent:
            raise UnsupportedChange(
                f"an update moved a row of the outbox {table} into the publication's row filter, and left large values"
                " untouched, so PostgreSQL didn't send them",
                hint=f"run: alter table {table.sql} replica identity full; that holds for changes from then on, and"
                " this one was made before. Then run `lockstep recover`, which leaves it out and copies the tables"
                " again. Or insert rows only when they fulfil the filter",
            )
        identity, aggregate, key, kind, payload = cast("list[bytes | None]", sent)
        if identity is None or aggregate is None or key is None:
            topic = topics.instead("have no id, aggregatetype or aggregateid")
        else:
            topic = topics.of(aggregate)
        headers = [("id", identity or b""), ("type", kind or b""), (TAG_HEADER, tag)]
        if topic == topics.shared:
            headers.append((TYPE_HEADER, aggregate or b""))
        return topic, key or b"", payload, headers
