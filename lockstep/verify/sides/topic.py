"""The rows that a table's topic leaves: the newest event of every key. For when the source can't or must not be read.

The topic may hold many events per key, and only its end shows which one is the newest. A partition with too many rows
for memory is read several times, each time for a slice of its keys.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final
from zlib import crc32

import orjson

from cdc.event_format.decode import DELETED, EMPTIED, LEFT_OUT, op_of, row_event, schema_id_of, tag_of
from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.kafka.topic_reader import Record, TopicReader
from cdc.model.append_only import is_append_only
from cdc.model.errors import LockstepError
from cdc.model.event import Position, parse_key, parse_object
from cdc.model.table import Table, TableName
from jobs.executor.append_only import LOG_KEY, event_key, row_before, stored_row
from jobs.executor.shape_history import TableHistory
from lockstep.verify.canonical import Fingerprint, Key, Row, fingerprint, key_of
from lockstep.verify.sides.expected import Expected, Version
from lockstep.verify.sides.sink_view import SinkView
from lockstep.verify.waiting import SyncPoint, Waiting

AFTER_EVERY_END: Final = 1 << 62
"""An offset after every end: a partition that starts there isn't read."""


class TopicSide(Expected):
    """The topics of the captured tables. ``histories`` bring events of earlier shapes into the newest one. Every method
    raises Unavailable if Kafka doesn't answer, and LockstepError if a stop is asked for."""

    name = "topic"
    can_be_asked_often = False

    def __init__(
        self,
        client: Mapping[str, str | int],
        topics: Mapping[TableName, str],
        histories: Mapping[TableName, TableHistory],
        *,
        keys_max: int,
        waiting: Waiting,
        view: SinkView,
    ) -> None:
        self._topics = topics
        self._histories = histories
        self._keys_max = keys_max
        self._view = view
        self._cluster = TopicAdmin(client)
        self._reader = TopicReader(client, while_waiting=waiting.check)
        self._ends: dict[tuple[str, int], int] = {}
        # For the keys asked for last: what is known, and the offsets from which on it isn't.
        self._known: dict[Key, Version | None] = {}
        self._known_table: TableName | None = None
        self._known_ends: dict[int, int] = {}
        self._between: dict[Key, set[Fingerprint | None]] = {}

    def sync_point(self) -> SyncPoint:
        return SyncPoint(offsets=dict(self._ends))

    def scan(self, table: Table) -> Iterator[tuple[Key, Fingerprint]]:
        for partition in self._fix_ends(table):
            slices = [(1, 0)]
            while slices:
                count, number = slices.pop()
                newest = self._slice(table, partition, count, number)
                if newest is None:
                    slices += [(2 * count, number), (2 * count, number + count)]
                else:
                    yield from newest.items()

    def versions(self, table: Table, keys: Collection[Key]) -> dict[Key, Version]:
        ends = self._fix_ends(table)
        self._between = {}
        is_continued = self._known_table == table.name and all(key in self._known for key in keys)
        if not is_continued:
            self._known_table, self._known, self._known_ends = table.name, dict.fromkeys(keys), {}
        start = self._known_ends
        versions: list[tuple[Key, Row | None, str]] = []
        newest: dict[Key, tuple[Key, Row | None, str]] = {}
        for record in self._reader.records(self._topics[table.name], start):
            if record.offset >= ends.get(record.partition, AFTER_EVERY_END):
                continue  # after the sync point: a sink that is just there has the version before this one
            if _empties(table, record):
                assert record.value is not None
                gone = {key: (key, None, _tag(record.value)) for key in self._known}
                versions += gone.values()
                newest = {key: event for key, event in gone.items() if key in newest}
                continue
            key = _canonical(table, record)
            if key in self._known and record.value is not None:  # a delete event came before its tombstone
                _, row = self._row(table, record)
                event = (key, row, _tag(record.value))
                if is_continued:
                    versions.append(event)
                else:
                    newest[key] = event
        for key, version in self._versions(table, versions if is_continued else list(newest.values())):
            self._known[key] = version
            if is_continued:
                self._between.setdefault(key, set()).add(None if version is None else version.fingerprint)
        self._known_ends = ends
        return {key: version for key in keys if (version := self._known[key]) is not None}

    def _versions(
        self, table: Table, rows: Sequence[tuple[Key, Row | None, str]]
    ) -> Iterator[tuple[Key, Version | None]]:
        """Keys, rows and tags -> what the sink should have of them, in the same order."""
        for key, row, tag in rows:
            seen = None if row is None else self._view.seen(table.name, row)
            yield key, None if seen is None else Version(fingerprint(table, key, seen), tag)

    def versions_between(self) -> Mapping[Key, Collection[Fingerprint | None]]:
        return self._between

    def rows(self, table: Table, keys: Collection[Key]) -> dict[Key, tuple[Version, Row]]:
        self._fix_ends(table)
        wanted_keys = set(keys)
        newest: dict[Key, tuple[Row, str]] = {}
        for record in self._reader.records(self._topics[table.name]):
            if _empties(table, record):
                newest.clear()
                continue
            key = _canonical(table, record)
            if key in wanted_keys and record.value is not None:
                _, row = self._row(table, record)
                if row is None:
                    newest.pop(key, None)
                else:
                    newest[key] = row, _tag(record.value)
        seen_by_sink = self._view.rows(table.name, ((key, row) for key, (row, _) in newest.items()))
        return {key: (Version(fingerprint(table, key, row), newest[key][1]), row) for key, row in seen_by_sink}

    def _slice(self, table: Table, partition: int, count: int, number: int) -> dict[Key, Fingerprint] | None:
        """The live rows of one of ``count`` slices of a partition's keys; None if they are too many for memory."""
        newest: dict[Key, Fingerprint] = {}
        start = {other: AFTER_EVERY_END for other in self._partitions(table) if other != partition}
        for record in self._reader.records(self._topics[table.name], start):
            if _empties(table, record):  # it comes after everything that it removes
                newest.clear()
                continue
            if crc32(_own_key(table, record)) % count != number:
                continue
            key, row = self._row(table, record)
            seen = None if row is None else self._view.seen(table.name, row)
            if seen is None:
                newest.pop(key, None)
                continue
            newest[key] = fingerprint(table, key, seen)
            if len(newest) > self._keys_max:
                return None
        return newest

    def _fix_ends(self, table: Table) -> dict[int, int]:
        """Where the partitions end now. Later reads reach at least as far."""
        topic = self._topics[table.name]
        self._ends = self._cluster.end_offsets([(topic, partition) for partition in self._partitions(table)])
        return {partition: end for (_, partition), end in self._ends.items()}

    def _partitions(self, table: Table) -> list[int]:
        topics = [self._topics[table.name]]
        listed = partitions_of(topics, self._cluster.partition_counts(topics))
        return [partition for _, partition in listed]

    def what_is_lost(self, table: Table) -> str:
        """Why the rest of a topic doesn't say which rows exist; empty if it does. Compaction leaves the newest event of
        each key. Without keys, a row that was deleted from the log is gone."""
        if not is_append_only(table):
            return ""
        topic = self._topics[table.name]
        begins = self._cluster.begin_offsets([(topic, partition) for partition in self._partitions(table)])
        if not any(begins.values()) or any(_empties(table, record) for record in self._reader.records(topic)):
            return ""
        return (
            f"the beginning of topic {topic} was deleted, so it doesn't say which rows there are; after"
            f" `lockstep snapshot table {table.name}` it does"
        )

    def _appended(self, table: Table, record: Record, position: Position) -> tuple[Key, Row | None]:
        """The row of an event of an append-only table, with its key."""
        value = record.value
        if value is None:
            return record.key, None
        event = row_event(table.name, LOG_KEY, value, None, position)
        before = row_before(value)
        if before is not None:
            event = replace(event, row=parse_object(before))
        history = self._histories.get(table.name)
        if history is not None:
            translated = history.translate(event, schema_id_of(value))
            if translated is None:
                return record.key, None
            event = translated
        key = _own_key(table, record)
        row = stored_row(key, value, None if event.row is None else orjson.dumps(event.row))
        if row is None:
            return record.key, None
        columns = dict.fromkeys((column.name for column in table.columns), None)
        return key_of(table, parse_key(key)), {**columns, **parse_object(row)}

    def _row(self, table: Table, record: Record) -> tuple[Key, Row | None]:
        """The row in the newest shape. None: it is deleted, or a later copy of the table replaces the event."""
        position = Position(self._topics[table.name], record.partition, record.offset)
        if record.value is not None and op_of(record.value) == LEFT_OUT:
            return _canonical(table, record), None
        if is_append_only(table):
            return self._appended(table, record, position)
        try:
            key = _canonical(table, record)
        except LockstepError as error:
            raise position.located(error) from None
        if record.value is None or op_of(record.value) == DELETED:
            return key, None
        event = row_event(table.name, record.key, record.value, None, position)
        history = self._histories.get(table.name)
        if history is not None:
            translated = history.translate(event, schema_id_of(record.value))
            return key, None if translated is None else translated.row
        return key, event.row


def _empties(table: Table, record: Record) -> bool:
    """Whether the record says that nothing is left of an append-only table."""
    return is_append_only(table) and record.value is not None and op_of(record.value) == EMPTIED


def _own_key(table: Table, record: Record) -> bytes:
    """The key in JSON. In an append-only table each event has its own, except events from before it was one."""
    if not is_append_only(table) or record.value is None:
        return record.key
    return event_key(_tag(record.value), record.offset)


def _canonical(table: Table, record: Record) -> Key:
    values = parse_key(_own_key(table, record))
    # A key of an earlier shape may have other columns: it names no row of today's.
    return key_of(table, values) if values.keys() == set(table.key) else record.key


def _tag(value: bytes) -> str:
    return tag_of(value).decode()
