"""The records of the three control topics, as JSON with the version of their format. ``__state`` (compacted, key: slot)
says where a restart resumes. ``__schema`` (compacted, key: table, schema id and position) holds the tables' shapes.
``__progress`` (kept for some days) maps Kafka offsets back to an LSN."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

import orjson

from cdc.model.event import JsonValue
from cdc.model.lsn import format_lsn
from cdc.model.table import Column, ReplicaIdentity, Table, TableName
from cdc.model.tag import EPOCH_MAX, SEQ_MAX
from cdc.model.times import time_text
from cdc.protocol.record_fields import FORMAT, RecordFields, parse_record

_KEY_TEXTS: Final = 3
"""The number of texts that a key of ``__schema`` begins with: schema, table, schema id."""

_TYPE_MODIFIER_MIN: Final = -(1 << 31)

_TIME_MAX_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the last time that can be formatted."""


class SnapshotPhase(StrEnum):
    """``CREATING``: the slot may exist, no row was published. ``COPYING``: rows are being published. ``DONE``:
    streaming. ``RECOVERING``: the slot is to be created again, after changes were lost to the one before."""

    CREATING = "creating"
    RECOVERING = "recovering"
    COPYING = "copying"
    DONE = "done"


class TopicIdentity(NamedTuple):
    """Kafka's id of a topic, which differs once the topic is created again, and its number of partitions."""

    topic_id: str
    partitions: int


class PublishedPart(NamedTuple):
    """How much of a transaction is published: its first ``messages`` messages, the last of which had this ``seq``.
    Messages that change rows, empty tables or were emitted count, whether captured or not. So their number depends on
    the WAL alone; sequence numbers also depend on the settings and the catalogue of that time."""

    messages: int
    seq: int


class StreamedTransaction(NamedTuple):
    """A transaction of the stream: its commit LSN, xid, and commit time in microseconds since 2000. ``only_local``: the
    stream left out what was replicated into the server. ``part`` is the published part of an incomplete transaction;
    None if an earlier version didn't record it."""

    commit_lsn: int
    xid: int
    commit_time_us: int
    only_local: bool
    part: PublishedPart | None = None


class Gap(NamedTuple):
    """Changes that were committed after ``from_lsn`` and before ``to_lsn`` and never came through the slot. ``to_lsn``
    is where the next slot begins, 0 while there is none. ``noticed_ms`` is in milliseconds since 1970. ``reason`` is
    for people."""

    from_lsn: int
    to_lsn: int
    noticed_ms: int
    reason: str

    @property
    def is_open(self) -> bool:
        """Whether capture hasn't resumed behind it yet."""
        return self.to_lsn == 0

    def __str__(self) -> str:
        noticed = time_text(self.noticed_ms)
        until = "" if self.is_open else f" and before {format_lsn(self.to_lsn)}"
        return (
            f"nothing that was committed after {format_lsn(self.from_lsn)}{until} was read: {self.reason} ({noticed})"
        )


UNREAD_MAX: Final = 1000
"""The most keys of one copy that are stored to be read again. Beyond that, all of its rows are read again."""


@dataclass(frozen=True, slots=True)
class TableCopy:
    """How far a table's copy beside the stream is, or that one was requested.

    ``since`` is the LSN at which it began and the table is followed from; 0 before it begins. ``membership`` is the
    table's membership there. All rows up to the key ``after``, given as texts of its columns, are on the topic; None:
    no row is. ``is_through``: every other row is too, and at most keys that the source no longer has are left. ``keys``
    are event keys whose rows must be read again, since an update of them couldn't be completed. ``is_incomplete``:
    there were too many of those, so all rows are read again; ``passes`` counts the passes over them. ``copied_before``
    is the ledger's number from before, if the table had its copy and another one was requested; else -1. ``paused``:
    the copy waits until it is resumed.
    """

    since: int = 0
    membership: str = ""
    after: tuple[str, ...] | None = None
    rows: int = 0
    is_through: bool = False
    keys: tuple[str, ...] = ()
    is_incomplete: bool = False
    passes: int = 1
    copied_before: int = -1
    paused: bool = False

    @property
    def has_begun(self) -> bool:
        return self.since > 0

    def with_unread(self, keys: Collection[bytes]) -> Self:
        """The copy with these keys added to those that must be read again."""
        unread = tuple(dict.fromkeys([*self.keys, *(key.decode() for key in keys)]))
        if len(unread) <= UNREAD_MAX:
            return replace(self, keys=unread)
        return replace(self, keys=unread[:UNREAD_MAX], is_incomplete=True)

    def to_json(self) -> dict[str, JsonValue]:
        return {
            "since": self.since,
            "membership": self.membership,
            "after": None if self.after is None else list(self.after),
            "rows": self.rows,
            "through": self.is_through,
            "keys": list(self.keys),
            "incomplete": self.is_incomplete,
            "passes": self.passes,
            "copied_before": None if self.copied_before < 0 else self.copied_before,
            "paused": self.paused,
        }

    @classmethod
    def from_fields(cls, fields: RecordFields) -> Self:
        """Raises ForeignRecord."""
        return cls(
            since=fields.number("since"),
            membership=fields.text("membership"),
            after=None if fields.is_null("after") else tuple(fields.items("after", str)),
            rows=fields.number("rows"),
            is_through=fields.flag("through"),
            keys=tuple(fields.items("keys", str)),
            is_incomplete=fields.flag("incomplete"),
            passes=fields.number("passes"),
            copied_before=-1 if fields.is_null("copied_before") else fields.number("copied_before"),
            paused=fields.flag("paused"),
        )


@dataclass(frozen=True, slots=True)
class CaptureState:
    """How far capture is, committed in the same Kafka transaction as the events it describes.

    ``commit_lsn`` and ``seq`` belong to the last published change. A restart skips complete transactions up to it, and
    the ``part`` of an incomplete one. ``end_lsn`` is the end of the last *complete* transaction, and
    ``last_transaction`` identifies it, None before the first. Capture confirms to PostgreSQL only what precedes it, so
    each start gets it again: a server that sends another one, or none, isn't the server that was published from.
    ``begun`` is the transaction after it if only some of its changes are published; it must come next.
    ``owner`` is the process that published last: one that lost its connections must not overwrite a newer one.
    ``copied`` holds the number of rows of each table whose copy is complete. Any other table must be copied, also in
    the middle of the stream. ``memberships`` says what each table was when it was copied, and how it was published; if
    that differs now, the stream may have left out changes. A table without a membership was never copied, as far as its
    topic shows, and isn't followed before its copy. ``topics`` are those that rows and shapes went to.
    ``gaps`` are all gaps ever, oldest first, one per recovery; only the last may be open.
    ``first_snapshot`` is, while COPYING, the snapshot at whose end the stream begins, as PostgreSQL's text.
    ``first_copy_paused``: while COPYING, somebody has paused the copy.
    ``copying`` holds the state of the copies beside the stream; none of their tables is in ``copied``.
    ``captured`` are the tables that the process captures, and ``append_only`` those of them without a key. Readers of
    Kafka use these, whatever their own configuration says. None: written by an earlier version, which didn't record
    them. Empty: the last table has left.
    """

    slot: str
    owner: str
    publication: str
    database: str
    system_id: str
    timeline: int
    epoch: int
    phase: SnapshotPhase
    handoff: int
    commit_lsn: int
    seq: int
    end_lsn: int
    commit_time_ms: int
    copied: Mapping[TableName, int]
    memberships: Mapping[TableName, str]
    topics: Mapping[str, TopicIdentity]
    last_transaction: StreamedTransaction | None = None
    begun: StreamedTransaction | None = None
    gaps: tuple[Gap, ...] = ()
    first_snapshot: str = ""
    copying: Mapping[TableName, TableCopy] = field(default_factory=dict)
    first_copy_paused: bool = False
    captured: tuple[TableName, ...] | None = None
    append_only: tuple[TableName, ...] = ()

    @property
    def is_first_copy(self) -> bool:
        """Whether the first copy is incomplete, so the stream hasn't begun."""
        return self.phase in (SnapshotPhase.CREATING, SnapshotPhase.COPYING)

    @property
    def published_lsn(self) -> int:
        """The greatest LSN of anything published in this epoch. That includes the beginning of an incomplete
        transaction, and rows of a copy that began again later than the stream."""
        begun_lsn = 0 if self.begun is None else self.begun.commit_lsn
        return max(self.end_lsn, self.commit_lsn, self.handoff, begun_lsn)

    @property
    def resume_lsn(self) -> int:
        """Where the stream must start, so that the last complete transaction comes again."""
        return self.end_lsn if self.last_transaction is None else self.last_transaction.commit_lsn

    def to_be_copied(self, names: Collection[TableName]) -> Self:
        """The state in which these tables must be copied again. Paused ones stay paused."""
        if not any(name in self.copied or name in self.copying for name in names):
            return self
        copying = {name: copy for name, copy in self.copying.items() if name not in names}
        copying |= {
            name: TableCopy(paused=True) for name, copy in self.copying.items() if name in names and copy.paused
        }
        copied = {name: rows for name, rows in self.copied.items() if name not in names}
        return replace(self, copied=copied, copying=copying)

    def has_copy(self, name: TableName) -> bool:
        """Whether a table's topic is complete, and ``memberships`` describes the table as far as known. It stays true
        while a further, requested copy hasn't begun, since that one may be cancelled."""
        asked = self.copying.get(name)
        return name in self.copied or (asked is not None and not asked.has_begun and asked.copied_before >= 0)

    def outdated(self, published: Collection[TableName]) -> set[TableName]:
        """Those of these tables whose topics can't supply values that an update leaves out, until their next copy."""
        begun = {name for name, copy in self.copying.items() if copy.has_begun}
        return {name for name in published if name not in begun and not self.has_copy(name)}

    def asked_to_copy(self, name: TableName) -> Self:
        """``to_be_copied`` for a copy that was requested. It can be cancelled until there is another reason for it."""
        before = self.copying.get(name, TableCopy())
        copied_before = self.copied.get(name, before.copied_before)
        state = self.to_be_copied([name])
        return state.with_copy(name, TableCopy(copied_before=copied_before, paused=before.paused))

    def with_copy(self, name: TableName, copy: TableCopy | None) -> Self:
        """The state with this copy of a table; None removes it."""
        copying = {other: its_copy for other, its_copy in self.copying.items() if other != name}
        return replace(self, copying=copying if copy is None else {**self.copying, name: copy})

    def with_partitions(self, name: TableName, add: Callable[[str], str]) -> Self:
        """The state after a topic got rows of partitions that came later. ``add`` adds them to what was recorded of
        the table, as ``streamed`` and ``read`` do."""
        state, copy = self, self.copying.get(name)
        recorded = self.memberships.get(name, "")
        if recorded != (now := add(recorded)):
            state = replace(self, memberships={**self.memberships, name: now})
        if copy is not None and copy.membership != (now := add(copy.membership)):
            state = state.with_copy(name, replace(copy, membership=now))
        return state

    def with_unread(self, unread: Mapping[TableName, Collection[bytes]]) -> Self:
        """The state in which the copies of these tables must read these keys again."""
        state = self
        for name, keys in unread.items():
            if name in state.copying:
                state = state.with_copy(name, state.copying[name].with_unread(keys))
        return state

    def with_whole(self, name: TableName) -> Self:
        """The state after a table's copy has ended."""
        copy = self.copying[name]
        return replace(
            self.with_copy(name, None),
            copied={**self.copied, name: copy.rows},
            memberships={**self.memberships, name: copy.membership},
        )

    def never_copied(self, names: Collection[TableName]) -> Self:
        """The state in which these tables must be copied, and nothing published of them counts."""
        state = self.to_be_copied(names)
        if not any(name in state.memberships for name in names):
            return state
        return replace(state, memberships={name: what for name, what in self.memberships.items() if name not in names})

    @property
    def open_gap(self) -> Gap | None:
        """The gap behind which capture hasn't resumed yet."""
        return self.gaps[-1] if self.gaps and self.gaps[-1].is_open else None

    def with_gap(self, reason: str, *, now_ms: int) -> Self:
        """The state with a gap after what was published. An open gap stays unchanged."""
        if self.open_gap is not None:
            return self
        return replace(self, gaps=(*self.gaps, Gap(self.published_lsn, 0, now_ms, reason)))

    def recovering(
        self,
        names: Collection[TableName],
        *,
        owner: str,
        publication: str,
        database: str,
        system_id: str,
        timeline: int,
        put_back: Collection[TableName] = (),
    ) -> Self:
        """The state in which the slot is to be created again on this server, and these tables copied.

        It begins a new epoch, so everything published from then on is newer than all before, whatever the LSNs. A
        second recovery that was ordered before the first began stays in its epoch. On another server, the records of
        tables that aren't copied again are void: these tables become ``unfamiliar``. The ``put_back`` ones, restored to
        an earlier moment, do too.
        """
        state = self.never_copied({*names, *(self.memberships.keys() - self.copied.keys())})
        if (system_id, database, publication) != (self.system_id, self.database, self.publication):
            put_back = state.memberships
        memberships = {name: "" if name in put_back else what for name, what in state.memberships.items()}
        return replace(
            state,
            owner=owner,
            publication=publication,
            database=database,
            system_id=system_id,
            timeline=timeline,
            epoch=self.epoch + (self.phase is not SnapshotPhase.RECOVERING),
            phase=SnapshotPhase.RECOVERING,
            handoff=0,
            commit_lsn=0,
            seq=0,
            end_lsn=0,
            last_transaction=None,
            begun=None,
            memberships=memberships,
            first_snapshot="",
            copying={},
            first_copy_paused=False,
        )

    @property
    def unfamiliar(self) -> Collection[TableName]:
        """Tables that aren't copied again, and whose membership on this server isn't known yet."""
        return [name for name, what in self.memberships.items() if not what]

    def handed_over(self, consistent_point: int, *, now_ms: int) -> Self:
        """The state after the slot was created again, with the stream beginning here."""
        return replace(
            self,
            phase=SnapshotPhase.DONE,
            handoff=consistent_point,
            commit_lsn=consistent_point,
            seq=0,
            end_lsn=consistent_point,
            commit_time_ms=now_ms,
            gaps=tuple(gap._replace(to_lsn=consistent_point) if gap.is_open else gap for gap in self.gaps),
        )

    def to_bytes(self, texts: "TableTexts | None" = None) -> bytes:
        """``texts``, those of earlier states, only make this faster."""
        copied, memberships, topics, captured, append_only = (texts or TableTexts()).of(self)
        return orjson.dumps(
            {
                "format": FORMAT,
                "slot": self.slot,
                "owner": self.owner,
                "publication": self.publication,
                "database": self.database,
                "system_id": self.system_id,
                "timeline": self.timeline,
                "epoch": self.epoch,
                "phase": self.phase.value,
                "handoff": self.handoff,
                "commit_lsn": self.commit_lsn,
                "seq": self.seq,
                "end_lsn": self.end_lsn,
                "commit_time_ms": self.commit_time_ms,
                "copied": copied,
                "memberships": memberships,
                "topics": topics,
                "last_transaction": None if self.last_transaction is None else list(self.last_transaction[:4]),
                "begun": None if self.begun is None else list(self.begun[:4]),
                **({} if self.begun is None or self.begun.part is None else {"begun_part": list(self.begun.part)}),
                "gaps": [list(gap) for gap in self.gaps],
                **({"first_snapshot": self.first_snapshot} if self.first_snapshot else {}),
                **({"first_copy_paused": True} if self.first_copy_paused else {}),
                "copying": [
                    {"schema": name.schema, "name": name.name, **copy.to_json()} for name, copy in self.copying.items()
                ],
                **({} if self.captured is None else {"captured": captured}),
                **({"append_only": append_only} if self.append_only else {}),
            }
        )

    @classmethod
    def from_bytes(cls, value: bytes | None, what: str) -> Self:
        """Raises as ``parse_record``, and ForeignRecord."""
        fields = parse_record(value, what)
        last, begun = (fields.row(name, int, int, int, bool) for name in ("last_transaction", "begun"))
        published = fields.row("begun_part", int, int)
        part = None if published is None else PublishedPart(*published)
        gaps = tuple(Gap(*row) for row in fields.rows("gaps", int, int, int, str, default=[]))
        if any(gap.noticed_ms > _TIME_MAX_MS for gap in gaps) or any(gap.is_open for gap in gaps[:-1]):
            raise fields.foreign("gaps")
        return cls(
            slot=fields.text("slot"),
            owner=fields.text("owner"),
            publication=fields.text("publication"),
            database=fields.text("database"),
            system_id=fields.text("system_id"),
            timeline=fields.number("timeline"),
            epoch=fields.number("epoch", most=EPOCH_MAX),
            phase=fields.one_of("phase", SnapshotPhase),
            handoff=fields.number("handoff"),
            commit_lsn=fields.number("commit_lsn"),
            seq=fields.number("seq", most=SEQ_MAX),
            end_lsn=fields.number("end_lsn"),
            commit_time_ms=fields.number("commit_time_ms"),
            copied={TableName(schema, table): rows for schema, table, rows in fields.rows("copied", str, str, int)},
            memberships={
                TableName(schema, table): names for schema, table, names in fields.rows("memberships", str, str, str)
            },
            topics={topic: TopicIdentity(*identity) for topic, *identity in fields.rows("topics", str, str, int)},
            last_transaction=None if last is None else StreamedTransaction(*last),
            begun=None if begun is None else StreamedTransaction(*begun)._replace(part=part),
            gaps=gaps,
            first_snapshot=fields.text("first_snapshot", ""),
            first_copy_paused=fields.flag("first_copy_paused", False),
            copying={
                TableName(copy.text("schema"), copy.text("name")): TableCopy.from_fields(copy)
                for copy in fields.objects("copying", [])
            },
            captured=_names(fields, "captured") if fields.has("captured") else None,
            append_only=_names(fields, "append_only"),
        )


def _names(fields: RecordFields, name: str) -> tuple[TableName, ...]:
    return tuple(TableName(schema, table) for schema, table in fields.rows(name, str, str, default=[]))


class TableTexts:
    """The JSON of a state's facts about each table: most of a state, and mostly unchanged from the state before. With
    2,000 tables, rewriting it takes longer than the rest of a commit."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Mapping[Any, Any] | tuple[Any, ...], orjson.Fragment]] = {}
        self._selection: tuple[tuple[TableName, ...] | None, str] = None, ""

    def selection(self, state: CaptureState) -> str:
        """``selection_of`` the state's captured tables."""
        if self._selection[0] is not state.captured:
            self._selection = state.captured, selection_of(state.captured)
        return self._selection[1]

    def of(self, state: CaptureState) -> tuple[orjson.Fragment, ...]:
        """The JSON of ``copied``, ``memberships``, ``topics``, ``captured`` and ``append_only``."""
        return (
            self._text("copied", state.copied, lambda name, rows: [name.schema, name.name, rows]),
            self._text("memberships", state.memberships, lambda name, what: [name.schema, name.name, what]),
            self._text("topics", state.topics, lambda topic, identity: [topic, *identity]),
            self._text("captured", state.captured or (), lambda name, _: [name.schema, name.name]),
            self._text("append_only", state.append_only, lambda name, _: [name.schema, name.name]),
        )

    def _text(
        self,
        name: str,
        facts: Mapping[Any, Any] | tuple[Any, ...],
        row: Callable[[Any, Any], Sequence[JsonValue]],
    ) -> orjson.Fragment:
        # They are never changed in place: a new state has new ones.
        known = self._known.get(name)
        if known is None or known[0] is not facts:
            items = facts.items() if isinstance(facts, Mapping) else ((fact, None) for fact in facts)
            known = facts, orjson.Fragment(orjson.dumps([row(key, value) for key, value in items]))
            self._known[name] = known
        return known[1]


@dataclass(frozen=True, slots=True)
class ProgressRecord:
    """Everything committed up to ``lsn`` lies below ``bounds``: topic -> one end offset per partition.

    Topics that the batch didn't touch are absent; their earlier bounds still hold. It isn't true of the topics
    ``uncopied``, whose tables wait for a copy. LSNs of different epochs can't be compared. ``selection`` is
    ``selection_of`` the captured tables in the same transaction's state: a reader with another selection reads other
    tables. ``commit_interval_ms`` is capture's time between two commits at low load; 0 if unknown.
    """

    lsn: int
    commit_time_ms: int
    bounds: Mapping[str, tuple[int, ...]]
    epoch: int = 0
    uncopied: tuple[str, ...] = ()
    selection: str = ""
    commit_interval_ms: int = 0

    def to_bytes(self) -> bytes:
        return orjson.dumps(
            {
                "format": FORMAT,
                "epoch": self.epoch,
                "lsn": self.lsn,
                "commit_time_ms": self.commit_time_ms,
                "bounds": self.bounds,
                "uncopied": self.uncopied,
                **({"selection": self.selection} if self.selection else {}),
                **({"commit_interval_ms": self.commit_interval_ms} if self.commit_interval_ms else {}),
            }
        )

    @classmethod
    def from_bytes(cls, value: bytes | None, what: str) -> Self:
        """Raises as ``parse_record``, and ForeignRecord."""
        fields = parse_record(value, what)
        bounds = fields.mapping("bounds")
        for ends in bounds.values():
            if not isinstance(ends, list) or not all(type(end) is int and end >= 0 for end in ends):
                raise fields.foreign("bounds")
        return cls(
            fields.number("lsn"),
            fields.number("commit_time_ms"),
            {topic: tuple(ends) for topic, ends in bounds.items()},
            fields.number("epoch", 0, most=EPOCH_MAX),
            tuple(fields.items("uncopied", str, [])),
            fields.text("selection", ""),
            fields.number("commit_interval_ms", 0),
        )


_SELECTION_CHARACTERS: Final = 16


def selection_of(captured: Iterable[TableName] | None) -> str:
    """A text that differs for different sets of tables, also for the empty set, in any order. Empty for None."""
    if captured is None:
        return ""
    names = sorted([name.schema, name.name] for name in captured)
    return hashlib.sha256(orjson.dumps(names)).hexdigest()[:_SELECTION_CHARACTERS]


@dataclass(frozen=True, slots=True)
class ShapeChange:
    """How a table's shape arose from the one before, for the rows that are already in the log.

    ``renamed``: new name of a column -> its old name. ``defaults``: added column -> its value in every older row, in an
    event's form. ``rewritten``: why the stream alone doesn't show the new content of older rows, in words. If it isn't
    empty, capture copies the table again, and the rows follow as ``r`` events.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, JsonValue] = field(default_factory=dict)
    rewritten: str = ""


@dataclass(frozen=True, slots=True)
class SchemaRecord:
    """A table's shape, valid for events from ``from_lsn`` on until the next record of the table. ``from_seq`` is that
    of the first event, 0 if the record came without one: one transaction can change a table several times. Several
    records may have one schema id, since a table can return to a shape."""

    table: Table
    from_lsn: int
    change: ShapeChange = ShapeChange()
    from_seq: int = 0
    from_epoch: int = 0

    def key(self) -> bytes:
        """Unique per position, so that no record replaces another: what that says of older rows would be lost. Keys
        that earlier versions wrote lack the position. Their records stay beside these."""
        name = self.table.name
        position = [self.from_lsn, self.from_seq, *([self.from_epoch] if self.from_epoch else [])]
        return orjson.dumps([name.schema, name.name, self.table.schema_id, *position])

    def to_bytes(self) -> bytes:
        return orjson.dumps(
            {
                "format": FORMAT,
                "schema_id": self.table.schema_id,
                "from_lsn": self.from_lsn,
                "from_seq": self.from_seq,
                "from_epoch": self.from_epoch,
                "renamed": dict(self.change.renamed),
                "defaults": dict(self.change.defaults),
                "rewritten": self.change.rewritten,
                **self.table.to_json(),
            }
        )

    @classmethod
    def from_bytes(cls, value: bytes | None, what: str) -> Self:
        """Raises as ``parse_record``, and ForeignRecord."""
        fields = parse_record(value, what)
        table = _table(fields)
        renamed, defaults = fields.mapping("renamed", {}), fields.mapping("defaults", {})
        if not all(isinstance(before, str) for before in renamed.values()):
            raise fields.foreign("renamed")
        if not defaults.keys() <= {column.name for column in table.columns}:
            raise fields.foreign("defaults")
        change = ShapeChange(renamed, defaults, fields.text("rewritten", ""))
        seq, epoch = fields.number("from_seq", 0, most=SEQ_MAX), fields.number("from_epoch", 0, most=EPOCH_MAX)
        return cls(table, fields.number("from_lsn"), change, seq, epoch)


def is_schema_key(key: bytes) -> bool:
    """Whether a record of ``__schema`` with this key may be one of ours, of any version of Lockstep."""
    try:
        parts = orjson.loads(key)
    except orjson.JSONDecodeError:
        return False
    return isinstance(parts, list) and [type(part) for part in parts[:_KEY_TEXTS]] == [str] * _KEY_TEXTS


def _table(fields: RecordFields) -> Table:
    """The fields that ``Table.to_json`` writes. Raises ForeignRecord."""
    columns = tuple(
        Column(
            column.text("name"),
            column.text("type"),
            column.text("value_type"),
            column.flag("array"),
            column.number("oid"),
            column.number("typmod", least=_TYPE_MODIFIER_MIN),
            column.number("number", 0),
        )
        for column in fields.objects("columns")
    )
    key = fields.items("key", str)
    names = {column.name for column in columns}
    if len(names) < len(columns):
        raise fields.foreign("columns")
    if not names >= set(key):
        raise fields.foreign("key")
    name = TableName(fields.text("schema"), fields.text("table"))
    identity = fields.one_of("replica_identity", ReplicaIdentity)
    oid, epoch = fields.number("relation_oid", 0), fields.number("relation_epoch", 0, most=EPOCH_MAX)
    return Table(name, columns, tuple(key), identity, oid, epoch)
