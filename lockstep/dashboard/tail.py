"""Events as they come to the topics, for pages that follow them: keys and tags, no values."""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import orjson
from confluent_kafka import Message

from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.model.table import TableName
from lockstep.config import Config
from lockstep.dashboard.model import TailEvent
from monitor.tail import new_messages

FOLLOWERS_MAX: Final = 8
"""Each has a consumer and a thread of its own."""

_KEY_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Wanted:
    """Filters events by table (None: any), by a text in the key, and by operation ("": any)."""

    table: TableName | None = None
    key: str = ""
    op: str = ""


def follow(config: Config, wanted: Wanted, stopping: Callable[[], bool]) -> Iterator[TailEvent]:
    """The events that come from now on. Raises Unavailable."""
    tables = {topic: str(name) for name, topic in config.topics().items() if wanted.table in (None, name)}
    cluster = TopicAdmin(config.kafka.client())
    counts = cluster.partition_counts(tables)
    positions = cluster.committed_ends(partitions_of(counts, counts))
    for message in new_messages(config.kafka.client(), positions, stopping=stopping):
        event = event_of(message, tables)
        if event is not None and wanted.key in event.key and wanted.op in ("", event.op):
            yield event


def event_of(message: Message, tables: Mapping[str, str]) -> TailEvent | None:
    """The event without its row. None for a tombstone, which follows its delete, and for what isn't our event."""
    key, value = message.key(), message.value()
    if not isinstance(key, bytes) or not isinstance(value, bytes):
        return None
    try:
        match orjson.loads(value):
            case {"op": str(op), "tag": str(tag)}:
                return TailEvent(
                    table=tables[message.topic() or ""],
                    op=op,
                    key=key.decode()[:_KEY_MAX],
                    tag=tag,
                    partition=message.partition() or 0,
                    offset=message.offset() or 0,
                    time_ms=message.timestamp()[1],
                )
    except (orjson.JSONDecodeError, UnicodeDecodeError):
        pass
    return None


class Places:
    """Limits the number of followers."""

    def __init__(self) -> None:
        self._free = threading.Semaphore(FOLLOWERS_MAX)

    def take(self) -> bool:
        """False if all are taken."""
        return self._free.acquire(blocking=False)

    def give_back(self) -> None:
        self._free.release()
