"""What else is known of keys that differ: the newest tag on the topic, and whether the sink has rejected the row."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

import orjson

from cdc.event_format.decode import tag_of
from cdc.kafka.partitioner import partition_of
from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.kafka.topic_reader import TopicReader
from cdc.model.append_only import is_append_only
from cdc.model.table import Table, TableName
from cdc.model.timeouts import TOPIC_READ_S
from lockstep.config import Config
from lockstep.rejections.open_records import OpenRecords
from lockstep.verify.canonical import Key, key_of
from lockstep.verify.progress import OnStep, Step
from lockstep.verify.report import Difference, TableReport
from lockstep.verify.sides.topic import AFTER_EVERY_END
from lockstep.verify.waiting import Waiting

KEYS_MAX: Final = 10_000


class _OutOfTime(Exception):
    """Reading the topic takes too long."""


def explain(
    config: Config,
    table: Table,
    report: TableReport,
    *,
    sink: str,
    generation: int,
    waiting: Waiting,
    progress: OnStep,
) -> TableReport:
    """The same report with what the topic and the dead letters know of its differences. Raises Unavailable if Kafka
    doesn't answer, LockstepError if a stop is asked for."""
    if not report.differences or is_append_only(table):  # no event of such a table has a newer one
        return report
    keys = {difference.key for difference in report.differences}
    tags: dict[Key, str] | None = None
    if (topic := config.topics().get(table.name)) is not None:  # a view's result has none
        progress(Step(table.name, "the newest tags on the topic", len(keys)))
        tags = topic_tags(config.kafka.client(), topic, keys, waiting=waiting)
    reasons, unreadable = rejection_reasons(config, sink=sink, generation=generation, tables=[table])
    return replace(
        report,
        unreadable_dead_letters=unreadable,
        differences=tuple(
            explained(
                difference,
                None if tags is None else tags.get(difference.key),
                reasons.get((table.name, difference.key)),
            )
            for difference in report.differences
        ),
    )


def explained(difference: Difference, topic_tag: str | None, rejection: str | None) -> Difference:
    """A difference with its reason, as far as it is known. Pure."""
    notes = [difference.note] if difference.note else []
    if rejection is not None:
        notes.append(f"rejected: {rejection}")
    if topic_tag is not None and difference.sink_tag is not None and difference.sink_tag > topic_tag:
        notes.append("its tag is newer than the topic's, so nothing from there can replace it: rebuild the sink")
    return replace(difference, topic_tag=topic_tag, note="; ".join(notes))


def topic_tags(
    client: Mapping[str, str | int], topic: str, keys: Collection[Key], *, waiting: Waiting
) -> dict[Key, str] | None:
    """The tag of the newest event of each of these keys. A key without events is absent.

    None if there are more than ``KEYS_MAX`` keys, or if reading takes longer than ``TOPIC_READ_S``. Raises
    Unavailable if Kafka doesn't answer, LockstepError if a stop is asked for.
    """
    partitions = len(partitions_of([topic], TopicAdmin(client).partition_counts([topic])))
    if len(keys) > KEYS_MAX:
        return None
    wanted = set(keys)
    # Our keys are canonical already. Another text of the same key would be another key.
    read = {partition_of(key, partitions) for key in keys}
    start = {partition: 0 if partition in read else AFTER_EVERY_END for partition in range(partitions)}
    deadline = waiting.now_s() + TOPIC_READ_S
    tags: dict[Key, str] = {}

    def check_time() -> None:
        waiting.check()
        if waiting.now_s() > deadline:
            raise _OutOfTime

    try:
        for record in TopicReader(client, while_waiting=check_time).records(topic, start):
            # A tombstone's tag is that of the delete event before it.
            if record.value is not None and record.key in wanted:
                tags[record.key] = tag_of(record.value).decode()
    except _OutOfTime:
        return None
    return tags


def rejection_reasons(
    config: Config, *, sink: str, generation: int, tables: Collection[Table]
) -> tuple[dict[tuple[TableName, Key], str], int]:
    """The reasons of this generation's open rejections, by table and key. Raises Unavailable. Also returns how many
    unreadable dead letters may be the sink's."""
    shapes = {table.name: table for table in tables}
    reasons: dict[tuple[TableName, Key], str] = {}
    open_records = OpenRecords(config)
    dead_letters, unreadable = open_records.read(sink)
    for dead_letter in dead_letters:
        name = open_records.tables.get(dead_letter.position.topic)
        table = None if name is None else shapes.get(name)
        key = orjson.loads(dead_letter.key)
        if table is not None and dead_letter.generation == generation and key.keys() == set(table.key):
            reasons[table.name, key_of(table, key)] = dead_letter.reason
    return reasons, len(unreadable)
