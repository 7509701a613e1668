"""All records of some keys that a topic still has, including those of aborted transactions, to prove that none is left.
A log cleaner removes records gradually, and readers of committed records don't see everything that exists.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from typing import Final

from confluent_kafka import Message

from cdc.event_format.decode import DELETED, op_of, tag_of
from cdc.kafka.reading import messages, reading
from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.model.tag import TAG_HEADER
from cdc.spilling import SpillingMap

_OFFSET: Final = Struct("<q")


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """The place of a record with a wanted key, and when it was written, in milliseconds since 1970. ``tag`` is that of
    an event or a tombstone, "" for other records. ``is_deletion``: a delete, or a tombstone.
    """

    partition: int
    offset: int
    timestamp_ms: int
    is_tombstone: bool
    is_deletion: bool = False
    tag: str = ""


def key_records(
    client: Mapping[str, str | int],
    topic: str,
    is_wanted: Callable[[bytes], bool],
    *,
    while_waiting: Callable[[], None] = lambda: None,
) -> list[KeyRecord]:
    """The records of wanted keys in all partitions of a topic, as of now, in order. Reads the whole topic. Raises
    Unavailable when the brokers stop answering, and when they don't list the topic.
    """
    cluster = TopicAdmin(client)
    partitions = partitions_of([topic], cluster.partition_counts([topic]))
    ends = cluster.end_offsets(partitions, while_waiting=while_waiting)
    found = []
    for at in partitions:
        for message in _read(client, at, ends[at], committed=False, while_waiting=while_waiting):
            if is_wanted(_key(message)):
                found.append(_record(message))
    return found


def replaced_records(
    client: Mapping[str, str | int],
    topic: str,
    *,
    below: int,
    directory: Path,
    while_waiting: Callable[[], None] = lambda: None,
) -> list[KeyRecord]:
    """The records below an offset that aren't the newest committed ones of their keys, and tombstones.

    The topic must have one partition. At most two records stand for all: one for records with values, one for
    tombstones, each at the greatest offset, with the newest time. Reads the topic twice. The newest offset of each key
    is in a temporary file in ``directory`` if memory isn't enough. Raises as ``key_records``.
    """
    cluster = TopicAdmin(client)
    partitions = partitions_of([topic], cluster.partition_counts([topic]))
    assert len(partitions) == 1, topic
    at = partitions[0]
    found = dict[bool, KeyRecord]()
    with SpillingMap(directory) as newest:
        committed = cluster.committed_ends([at])[at]
        for message in _read(client, at, committed, committed=True, while_waiting=while_waiting):
            newest[_key(message)] = _OFFSET.pack(message.offset() or 0)
        end = min(below, cluster.end_offsets([at], while_waiting=while_waiting)[at])
        for message in _read(client, at, end, committed=False, while_waiting=while_waiting):
            record = _record(message)
            if not record.is_tombstone and newest.get(_key(message)) == _OFFSET.pack(record.offset):
                continue
            before = found.get(record.is_tombstone, record)
            found[record.is_tombstone] = replace(record, timestamp_ms=max(before.timestamp_ms, record.timestamp_ms))
    return list(found.values())


def _read(
    client: Mapping[str, str | int],
    at: tuple[str, int],
    end: int,
    *,
    committed: bool,
    while_waiting: Callable[[], None],
) -> Iterator[Message]:
    with reading(client, [at[0]], committed=committed) as consumer:
        yield from messages(consumer, {at: (0, end)}, while_waiting=while_waiting)


def _key(message: Message) -> bytes:
    key = message.key()
    return key if isinstance(key, bytes) else b""


def still_there(client: Mapping[str, str | int], topic: str, at: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of these (partition, offset) where a record still exists. Raises as ``key_records``."""
    with reading(client, [topic], committed=False) as consumer:
        return {
            (partition, offset)
            for partition, offset in at
            if next(messages(consumer, {(topic, partition): (offset, offset + 1)}), None) is not None
        }


def _record(message: Message) -> KeyRecord:
    value = message.value()
    if value is None:
        text = dict(message.headers() or []).get(TAG_HEADER)
        is_deletion = True
    else:
        assert isinstance(value, bytes)
        text = tag_of(value) if op_of(value) else b""
        is_deletion = op_of(value) == DELETED
    tag = text.decode(errors="replace") if isinstance(text, bytes) else ""
    at = (message.partition() or 0, message.offset() or 0, message.timestamp()[1])
    return KeyRecord(*at, value is None, is_deletion, tag)
