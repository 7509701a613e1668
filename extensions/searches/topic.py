"""The topic of matches, ``<pipeline>.__matches``: each document that begins or ceases to match a standing search.

A record's key is sink, search, table and the document's id, so compaction keeps the last report. A report that a
document ceases to match is followed by a tombstone, so a compacted topic has the present matches. One partition and one
transactional producer per sink keep everything in one order, and a newer producer fences an older one.

The topic is the only memory of reports, and a process reads it first. So its memory can't differ from what was
reported, wherever a process was killed.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson

from cdc.kafka.large_rows import LargeRows
from cdc.kafka.settings import KafkaSettings, TopicSettings
from cdc.kafka.topic_admin import TopicAdmin, TopicPlan, ordered_topic_plan
from cdc.kafka.topic_names import MATCHES, control_topic
from cdc.kafka.topic_policy import check_kept
from cdc.kafka.topic_reader import TopicReader
from cdc.kafka.transactions import Transactions
from cdc.model.errors import Unavailable
from cdc.model.event import JsonValue
from cdc.protocol.record_fields import FORMAT, parse_record
from extensions.searches.matches import Reported

BEGINS, CEASES = "begins", "ceases"

_KEPT_MS: Final = 24 * 3600 * 1000
"""The topic keeps each record for at least this long, so a consumer that reads daily misses none."""


def match_topic_plan(prefix: str, settings: TopicSettings) -> TopicPlan:
    return ordered_topic_plan(control_topic(prefix, MATCHES), settings, kept_ms=_KEPT_MS)


@dataclass(frozen=True, slots=True)
class Match:
    """A record of the topic. ``identity`` is JSON that finds the document in its index: ``_id``, and ``routing`` if it
    has one. ``key`` has the key's columns by their names in the sink.
    """

    sink: str
    search: str
    table: str
    identity: bytes
    key: Mapping[str, JsonValue]
    reported: Reported

    def record_key(self) -> bytes:
        identity = orjson.loads(self.identity)
        return orjson.dumps({"sink": self.sink, "search": self.search, "table": self.table, "id": identity["_id"]})

    def to_bytes(self) -> bytes:
        identity = orjson.loads(self.identity)
        return orjson.dumps(
            {
                "format": FORMAT,
                "event": BEGINS if self.reported.matches else CEASES,
                "tag": self.reported.tag,
                "sink": self.sink,
                "search": self.search,
                "table": self.table,
                "key": dict(self.key),
                "id": identity["_id"],
                "routing": identity.get("routing"),
            }
        )

    @classmethod
    def from_bytes(cls, value: bytes, what: str) -> Self:
        """Raises as ``parse_record``, and ForeignRecord."""
        fields = parse_record(value, what)
        document: dict[str, Any] = orjson.loads(value)
        routing = document.get("routing")
        identity = {"_id": fields.text("id"), **({} if routing is None else {"routing": routing})}
        return cls(
            fields.text("sink"),
            fields.text("search"),
            fields.text("table"),
            orjson.dumps(identity),
            document["key"],
            Reported(fields.text("event") == BEGINS, fields.text("tag")),
        )


class MatchTopic:
    """Writes one sink's reports, after ``start``. The constructor and ``check`` raise LockstepError if the topic has
    other settings than it needs (``check_kept``). Every method raises Unavailable if the open transaction is lost, and
    LockstepError if the brokers refuse. Close it then, and open a new one.
    """

    def __init__(self, kafka: KafkaSettings, pipeline: str, sink: str) -> None:
        self._sink = sink
        self._client = kafka.client()
        self._topic = control_topic(pipeline, MATCHES)
        self._servers = kafka.bootstrap_servers
        self._cluster = TopicAdmin(self._client)
        self._plan = match_topic_plan(pipeline, kafka.topics)
        if missing := self._cluster.missing([self._plan]):
            self._cluster.create(missing)
        self._id = self._current_id()
        self.check()
        sizes = LargeRows(max_message_bytes=kafka.topics.max_message_bytes)
        self._publisher = Transactions(self._client, f"{self._topic}.{sink}", sizes)

    def start(self) -> None:
        """Fence any process that reported these matches before."""
        self._publisher.start()

    def check(self) -> None:
        """Check that the topic is the one that this began with: reports are remembered nowhere else. Raises Unavailable
        if it isn't, so that the next start reports all matches on it.
        """
        if self._current_id() != self._id:
            raise Unavailable(
                f"topic {self._topic} was deleted and created again: all matches have to be reported again"
            )
        check_kept(self._cluster, self._plan, self._servers)

    def _current_id(self) -> str:
        return self._cluster.topic_ids([self._topic])[self._topic]

    def reported(self) -> Iterator[Match]:
        """The reports on this sink's documents that still exist, in order. A later one replaces an earlier one."""
        with closing(TopicReader(self._client).records(self._topic)) as records:
            for record in records:
                if record.value is None:
                    continue
                match = Match.from_bytes(record.value, f"the record at offset {record.offset} of topic {self._topic}")
                if match.sink == self._sink:
                    yield match

    def report(self, match: Match) -> None:
        key = match.record_key()
        self._publisher.send(self._topic, key, match.to_bytes())
        if not match.reported.matches:
            self._publisher.send(self._topic, key, None, match.reported.tag.encode())

    def commit(self) -> None:
        """Make the added records visible to readers."""
        self._publisher.commit_events()

    def close(self) -> None:
        """Uncommitted records are dropped."""
        self._publisher.close()
