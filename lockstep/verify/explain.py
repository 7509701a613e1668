"""What else is known about the keys that differ: the newest tag on the topic, and whether the sink has rejected the row."""

from collections.abc import Collection, Mapping
from typing import Final

from cdc.kafka.partitioner import partition_of
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_reader import TopicReader
from cdc.model.table import Table, TableName
from cdc.protocol.envelope import TAG_END, TAG_START
from lockstep.config import Config
from lockstep.rejections.commands import open_rejections
from lockstep.verify.canonical import Key, key_of
from lockstep.verify.sides.topic import NOWHERE
from lockstep.verify.waiting import Patience

KEYS_MAX: Final = 10_000
READ_MAX_S: Final = 60.0
"""A topic has no index: the tag of one key is found by reading its partition from the beginning."""


class _Enough(Exception):
    """The topic is too long to be read in good time."""


def topic_tags(
    client: Mapping[str, str | int],
    topic: str,
    keys: Collection[Key],
    *,
    patience: Patience,
    read_max_s: float = READ_MAX_S,
) -> dict[Key, str] | None:
    """The tag of the newest event of each of these keys, only of keys that have one; None when it would take too long to find out."""
    partitions = TopicAdmin(client).partition_counts().get(topic, 0)
    if not partitions or len(keys) > KEYS_MAX:
        return None if partitions else {}
    wanted = set(keys)
    # Ours are canonical already; another text of the same key would be another key.
    homes = {partition_of(key, partitions) for key in keys}
    start = {partition: 0 if partition in homes else NOWHERE for partition in range(partitions)}
    deadline = patience.now_s() + read_max_s
    found: dict[Key, str] = {}

    def in_time() -> None:
        patience.check()
        if patience.now_s() > deadline:
            raise _Enough

    try:
        for record in TopicReader(client, while_waiting=in_time).records(topic, start):
            # A tombstone's tag is that of the delete event before it.
            if record.value is not None and record.key in wanted:
                found[record.key] = record.value[TAG_START:TAG_END].decode()
    except _Enough:
        return None
    return found


def rejected(
    config: Config, *, sink: str, generation: int, tables: Collection[Table]
) -> dict[tuple[TableName, Key], str]:
    """The reasons of this generation's open rejections, by table and key."""
    topics = config.topics()
    shapes = {topics[table.name]: table for table in tables}
    found: dict[tuple[TableName, Key], str] = {}
    for letter in open_rejections(config):
        table = shapes.get(letter["topic"])
        if table is None or letter["sink"] != sink or letter.get("generation", generation) != generation:
            continue
        key = letter["key"]
        if isinstance(key, dict) and key.keys() == set(table.key):
            found[table.name, key_of(table, key)] = letter["reason"]
    return found
