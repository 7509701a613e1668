"""Random histories of two tables: the log that capture makes of them, and what a sink of that log holds (pure)."""

import random
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import orjson

from cdc.model.event import Events, JsonValue, Position, RowEvent
from cdc.model.table import Table, TableName
from cdc.model.tag import VERSION_SEQ_MAX, Tag, transaction_prefix
from cdc.protocol.control_records import ProgressRecord
from sinks.contract import Batch, Progress, TableVersions, TopicPartition
from tests.contract.destinations import ITEMS, KEYED

TABLES = (ITEMS, KEYED)
PARTITIONS = 2

Key = tuple[JsonValue, ...]
Row = Mapping[str, JsonValue]
RowName = tuple[TableName, Key]
"""A table and the values of a key, in key order."""

Offsets = Mapping[TopicPartition, int]

_KEYS: Mapping[TableName, Sequence[Key]] = {
    ITEMS.name: [(number,) for number in (1, 2, 3, 40, -5)],
    # Texts that a careless joining of a key's values makes equal.
    KEYED.name: [("x", "y"), ("x:y", "z"), ("x", "y:z"), ("é %", "-"), ("a-", "b"), ("a", "-b")],
}
_SHORTEST_COMMIT = 40  # bytes of its record, the least distance of two transactions' LSNs
_LETTERS = {True: "c", False: "u"}


def partitions_of(table: TableName) -> list[TopicPartition]:
    return [(f"shop.{table.schema}.{table.name}", number) for number in range(PARTITIONS)]


ALL_PARTITIONS = [at for table in TABLES for at in partitions_of(table.name)]


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a topic. ``operation`` is the envelope's letter; a tombstone has none, and its own, later time."""

    event: RowEvent
    operation: str
    time_ms: int

    @property
    def at(self) -> TopicPartition:
        return self.event.position.topic, self.event.position.partition

    @property
    def offset(self) -> int:
        return self.event.position.offset

    @property
    def row_name(self) -> RowName:
        return name_of(self.event)


def name_of(event: RowEvent) -> RowName:
    return event.table, tuple(event.key.values())


class Log:
    """The topics of both tables, and the records by which offsets become LSNs again."""

    def __init__(self) -> None:
        self.records: dict[TopicPartition, list[Record]] = {at: [] for at in ALL_PARTITIONS}
        self.ends: dict[TopicPartition, int] = dict.fromkeys(ALL_PARTITIONS, 0)
        self.progress: list[ProgressRecord] = []

    def add(self, table: Table, key: Key, row: Row | None, tag: Tag, operation: str, time_ms: int) -> None:
        """Append an event, and to a deletion its tombstone."""
        named_key = dict(zip(table.key, key, strict=True))
        number = zlib.crc32(orjson.dumps(named_key)) % PARTITIONS
        at = partitions_of(table.name)[number]
        letters = [operation] if row is not None else ["d", ""]
        for letter in letters:
            position = Position(*at, self.ends[at])
            event = RowEvent(table.name, named_key, str(tag), row, position)
            self.records[at].append(Record(event, letter, time_ms + (0 if letter else 5_000)))
            self.ends[at] += 1

    def cover(self, tag: Tag, time_ms: int) -> None:
        """Publish that everything up to this tag's transaction is below the present ends."""
        self.progress.append(ProgressRecord(tag.commit_lsn, time_ms, self.bounds(), tag.epoch))

    def bounds(self) -> dict[str, tuple[int, ...]]:
        return {topic: tuple(self.ends[topic, number] for number in range(PARTITIONS)) for topic, _ in self.ends}

    def between(self, starts: Offsets, ends: Offsets) -> list[Record]:
        """The records of a batch, each partition's in order."""
        return [
            record
            for at in ALL_PARTITIONS
            for record in self.records[at]
            if starts.get(at, 0) <= record.offset < ends[at]
        ]

    def compact(self, ends: Offsets) -> None:
        """Below these offsets, keep only the last record of each key."""
        for at, records in self.records.items():
            last = {record.row_name: record.offset for record in records if record.offset < ends[at]}
            self.records[at] = [
                record for record in records if record.offset >= ends[at] or last[record.row_name] == record.offset
            ]

    def __iter__(self) -> Iterator[Record]:
        return (record for at in ALL_PARTITIONS for record in self.records[at])


class Source:
    """A database of two tables that changes at random, and capture, which writes the changes to a log."""

    def __init__(self, picks: random.Random) -> None:
        self.log = Log()
        self.rows: dict[RowName, Row] = {}
        self._picks = picks
        self._epoch = 1
        self._lsn = 0x1000000
        self._time_ms = 1_767_225_600_000
        self._notes = 0
        self._snapshot()
        self.log.cover(self._tag(0), self._time_ms)

    def go_on(self) -> None:
        """A few transactions, and capture's records of them."""
        kinds = [self._transaction, self._truncate, self._copy, self._recover]
        for _ in range(self._picks.randrange(1, 5)):
            self._picks.choices(kinds, (20, 1, 2, 1))[0]()
        self.log.cover(self._tag(0), self._time_ms)

    def change_often(self, changes: int) -> None:
        """One transaction with this many changes of the few rows."""
        self._tick()
        seq = 0
        for _ in range(changes):
            seq = self._change(seq + 1)
        self.log.cover(self._tag(0), self._time_ms)

    def _tag(self, seq: int) -> Tag:
        return Tag(self._epoch, self._lsn, seq)

    def _tick(self) -> None:
        """Commit the next transaction. Sometimes the clock is set back."""
        self._lsn += 8 * self._picks.choice((_SHORTEST_COMMIT // 8, self._picks.randrange(5, 400)))
        self._time_ms += self._picks.choice((0, 1, 60_000, 60_000, -90_000))

    def _table(self) -> Table:
        return self._picks.choice(TABLES)

    def _live(self, table: Table) -> list[Key]:
        return [key for key in _KEYS[table.name] if (table.name, key) in self.rows]

    def _row(self, table: Table, key: Key) -> Row:
        """New content, which no other version of any row has."""
        self._notes += 1
        row: dict[str, JsonValue] = {**dict(zip(table.key, key, strict=True)), "note": f"note {self._notes} é\n"}
        if table is ITEMS:
            row["number"] = self._picks.choice((1, 2, None))
        return {column.name: row[column.name] for column in table.columns}

    def _snapshot(self) -> None:
        """Copy the earlier rows. An interrupted copy is resumed later, before the stream is read."""
        for table in TABLES:
            for key in _KEYS[table.name]:
                if self._picks.random() < 0.5:
                    self.rows[table.name, key] = self._row(table, key)
        log, self.log = self.log, Log()
        first = {table.name for table in TABLES if self._picks.random() < 0.5}
        handoff, rows = self._tag(0), dict(self.rows)
        for _ in range(self._picks.randrange(5)):
            self._transaction()
        self._lsn += 8 * _SHORTEST_COMMIT
        stream, self.log = self.log, log
        self._publish(rows, handoff, first)
        # Rows whose changes the stream will bring are here in their later state.
        self._publish(self.rows, self._tag(0), {table.name for table in TABLES} - first)
        for record in sorted(stream, key=lambda record: record.event.tag):
            if record.operation:
                event = record.event
                (table,) = [table for table in TABLES if table.name == event.table]
                self.log.add(
                    table, name_of(event)[1], event.row, Tag.parse(event.tag), record.operation, record.time_ms
                )

    def _publish(self, rows: Mapping[RowName, Row], tag: Tag, names: Iterable[TableName]) -> None:
        for table in TABLES:
            if table.name in names:
                for key in _KEYS[table.name]:
                    if (table.name, key) in rows:
                        self.log.add(table, key, rows[table.name, key], tag, "r", self._time_ms)

    def _transaction(self) -> None:
        """Changes of a few rows, among changes of other tables that aren't seen here."""
        self._tick()
        # In a large transaction, OpenSearch's versions are too short for its order.
        seq = self._picks.choices((0, 4090, 70_000), (6, 1, 1))[0]
        for _ in range(self._picks.choice((8, 12) if seq else (1, 1, 2, 3, 8))):
            seq = self._change(seq + self._picks.choice((1, 1, 1, 3)))

    def _change(self, seq: int) -> int:
        """One statement. Returns the seq of its last event."""
        table = self._table()
        key = self._picks.choice(_KEYS[table.name])
        name, tag = (table.name, key), self._tag(seq)
        if name not in self.rows or self._picks.random() < 0.5:
            operation = _LETTERS[name not in self.rows]
            self.rows[name] = self._row(table, key)
            self.log.add(table, key, self.rows[name], tag, operation, self._time_ms)
            return seq
        row = self.rows.pop(name)
        self.log.add(table, key, None, tag, "d", self._time_ms)
        free = [other for other in _KEYS[table.name] if (table.name, other) not in self.rows and other != key]
        if free and self._picks.random() < 0.4:  # the row's key has changed
            moved = self._picks.choice(free)
            self.rows[table.name, moved] = {**row, **dict(zip(table.key, moved, strict=True))}
            seq += 1
            self.log.add(table, moved, self.rows[table.name, moved], self._tag(seq), "c", self._time_ms)
        return seq

    def _truncate(self) -> None:
        """All deletions have one tag. The same transaction may fill the table again."""
        self._tick()
        table, seq = self._table(), self._picks.choice((1, 2, 5000))
        for key in self._live(table):
            del self.rows[table.name, key]
            self.log.add(table, key, None, self._tag(seq), "d", self._time_ms)
        for _ in range(self._picks.choice((0, 3))):
            seq = self._change(seq + 1)

    def _copy(self) -> None:
        """Some rows are published again as they are, in the middle of the stream."""
        self._tick()
        table = self._table()
        for key in self._live(table):
            if self._picks.random() < 0.7:
                self.log.add(table, key, self.rows[table.name, key], self._tag(0), "r", self._time_ms)

    def _recover(self) -> None:
        """The source lost some transactions and its LSNs begin again lower: ``lockstep recover`` copies all tables."""
        if self._epoch == 15:
            return
        before = set(self.rows)
        for table in TABLES:
            for key in _KEYS[table.name]:
                match self._picks.randrange(4):
                    case 0:
                        self.rows[table.name, key] = self._row(table, key)
                    case 1:
                        self.rows.pop((table.name, key), None)
        self._epoch += 1
        self._lsn = 8 * self._picks.randrange(1, self._lsn // 8)
        for table in TABLES:
            for key in _KEYS[table.name]:
                if (table.name, key) in self.rows:
                    self.log.add(table, key, self.rows[table.name, key], self._tag(0), "r", self._time_ms)
                elif (table.name, key) in before:
                    self.log.add(table, key, None, self._tag(0), "d", self._time_ms)


# What a job makes of records


def batch_of(records: Sequence[Record], next_offsets: Offsets, *, fence: int, overwrite_equal_tags: bool) -> Batch:
    """The newest event of each key, and all events as versions."""
    newest: dict[RowName, RowEvent] = {}
    for record in records:
        known = newest.get(record.row_name)
        if known is None or record.event.tag >= known.tag:
            newest[record.row_name] = record.event
    return Batch(
        list(newest.values()),
        next_offsets=dict(next_offsets),
        fence=fence,
        overwrite_equal_tags=overwrite_equal_tags,
        versions=list(_versions(records)),
    )


def _versions(records: Sequence[Record]) -> Iterator[TableVersions]:
    for table in TABLES:
        of_table = [record for record in records if record.event.table == table.name]
        deleted = {(record.row_name, record.event.tag) for record in of_table if record.operation == "d"}
        kept = [record for record in of_table if record.operation or (record.row_name, record.event.tag) not in deleted]
        for events in Events.of([record.event for record in kept]).tables:
            yield TableVersions(
                events, [record.operation or "d" for record in kept], [record.time_ms for record in kept]
            )


# What a sink holds


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a row in a history, as readers see it. Times are milliseconds since 1970."""

    tag: str
    operation: str
    row: str | None
    valid_from: int
    valid_to: int | None


@dataclass
class Held:
    """What a sink holds of what it was given: the newest event of each key by its tag, and each version once."""

    newest: dict[RowName, RowEvent] = field(default_factory=dict)
    versions: dict[tuple[RowName, str], tuple[str, RowEvent, int]] = field(default_factory=dict)
    progress: Progress | None = None
    fence: int = 0
    forgotten: set[RowName] = field(default_factory=set)
    """Keys whose deletion the destination has forgotten, as it says itself."""
    doubtful: set[RowName] = field(default_factory=set)
    """Keys that were forgotten once: if the log is read again, such a row exists until its deletion comes."""

    def copy(self) -> "Held":
        return replace(
            self,
            newest=dict(self.newest),
            versions=dict(self.versions),
            forgotten=set(self.forgotten),
            doubtful=set(self.doubtful),
        )

    def forget_deletions(self) -> None:
        """Forget rows that were deleted. Those of large transactions have left markers, which stay."""
        self.forgotten |= {
            name
            for name, event in self.newest.items()
            if event.row is None and Tag.parse(event.tag).seq < VERSION_SEQ_MAX
        }
        self.doubtful |= self.forgotten

    def apply(self, batch: Batch) -> int:
        """Take a batch. Returns how many of its events were newer."""
        applied = 0
        for event in batch.events:
            name = name_of(event)
            known = None if name in self.forgotten else self.newest.get(name)
            if known is None or event.tag > known.tag or (batch.overwrite_equal_tags and event.tag == known.tag):
                self.newest[name] = event
                self.forgotten.discard(name)
                applied += 1
        for versions in batch.versions:
            for event, operation, time_ms in zip(
                versions.events, versions.operations, versions.commit_times_ms, strict=True
            ):
                identity = (name_of(event), event.tag)
                known_operation, known_event, known_ms = self.versions.get(identity, (operation, event, time_ms))
                self.versions[identity] = (known_operation, known_event, min(known_ms, time_ms))
        return applied

    def rows(self, table: Table) -> dict[Key, tuple[Row, str]]:
        """Live rows with their tags."""
        return {
            key: (event.row, event.tag)
            for (name, key), event in self.newest.items()
            if name == table.name and event.row is not None
        }

    def stories(self, table: Table) -> dict[Key, list[Version]]:
        """The versions of each key, in the order of their tags."""
        ordered = sorted(
            (key, tag, operation, event, time_ms)
            for ((name, key), tag), (operation, event, time_ms) in self.versions.items()
            if name == table.name
        )
        stories: dict[Key, list[Version]] = {}
        for key, versions in groupby(ordered, key=lambda version: version[0]):
            told = list(versions)
            latest_ms = 0
            stories[key] = []
            for (_, tag, operation, event, time_ms), following in zip(told, [*told[1:], None], strict=True):
                latest_ms = max(latest_ms, time_ms)
                until_ms = None if following is None else max(latest_ms, following[4])
                if operation == "d":
                    until_ms = latest_ms
                note = None if event.row is None else str(event.row["note"])
                stories[key].append(Version(tag, operation, note, latest_ms, until_ms))
        return stories

    def lacks(self, log: Log) -> list[Record]:
        """Records that are missing although the stored progress covers them, by offset or by LSN. A missing row is as
        good as its deletion."""
        if self.progress is None:
            return []
        offsets = self.progress.next_offsets
        complete = transaction_prefix(self.progress.epoch, self.progress.watermark_lsn)
        return [
            record
            for record in log
            if (record.offset < offsets.get(record.at, 0) or record.event.tag[: len(complete)] <= complete)
            and not self._has(record.event)
        ]

    def _has(self, event: RowEvent) -> bool:
        known = self.newest.get(name_of(event))
        return known is not None and known.tag >= event.tag
