"""The contract between the log and a destination.

A sink stays right when the same batch is applied twice, when an older batch comes after a newer one, and when two jobs
write at once: the tag stored beside each row decides, and only a greater tag wins. Each event ends as applied (or already
applied), or as a rejection that the caller keeps; anything else is an exception and the whole batch may be applied again.

A Sink object is bound to one *generation*, one physical build of the data. Readers see the live generation. Which one that is,
how far each of them is, and the *notes* by which jobs and commands agree are stored in the destination: there is one truth.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Protocol

from cdc.model.event import JsonValue, RowEvent, TableEvents
from cdc.model.table import Table, TableName

TopicPartition = tuple[str, int]
"""A topic's name and a partition number."""

AddedValues = Mapping[TableName, Mapping[str, JsonValue]]
"""Columns that tables have got, by name, each with what the source shows in it in rows from before: never null."""

NOTHING_ADDED: Final[AddedValues] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Rejection:
    """An event that the destination refuses for good, with its words. Retrying the same event can't help.

    ``reason`` must not hold the row's values.
    """

    event: RowEvent
    reason: str


@dataclass(frozen=True, slots=True)
class TableVersions:
    """All events of one table that a batch is made of, those that a newer one of their key makes void included.

    ``operations`` are the envelope's letters, ``r``, ``c``, ``u`` or ``d``, and ``commit_times_ms`` milliseconds since 1970; both
    say it event by event. A deletion and its tombstone are one version. ``complete_from_ms``: of what was committed since then, the log
    had lost nothing before this was read; None says nothing that wasn't said before.
    """

    events: TableEvents
    operations: Sequence[str]
    commit_times_ms: Sequence[int]
    complete_from_ms: int | None = None

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, places: slice) -> "TableVersions":
        return replace(
            self,
            events=self.events[places],
            operations=self.operations[places],
            commit_times_ms=self.commit_times_ms[places],
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Events to apply, at most one per key (the newest), in no particular order.

    ``next_offsets`` says what the batch covers: up to, not including, these offsets. A transactional destination stores
    them in the same transaction as the rows. ``fence`` is what ``claim`` returned to the job that owns this batch. With
    ``overwrite_equal_tags``, an event replaces a row of the same tag too: it is made anew from the same change by other code or settings.
    ``as_stored``: the rows are from this destination itself, so what hides values has been done to them already.
    ``versions`` has each table once, for destinations that keep a history, and is empty for others. A version may come again, and late.
    """

    events: Sequence[RowEvent]
    next_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    fence: int = 0
    overwrite_equal_tags: bool = False
    as_stored: bool = False
    versions: Sequence[TableVersions] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch: ``applied + stale + len(rejections) == len(batch.events)``.

    ``stale`` counts events that the destination already had, in this version or a newer one: a success too.
    """

    applied: int
    stale: int
    rejections: Sequence[Rejection] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a generation is: what to read next, and the watermark.

    ``watermark_lsn``: everything committed up to it has been applied; 0 when nothing is known yet. ``commit_time_ms`` is
    the commit time of that position and ``updated_at_ms`` the time as of which the whole log had been applied, both in
    milliseconds since 1970. A sink in a backlog hasn't, so it can't pass for present while deletes are forgotten.
    ``topic_ids`` are Kafka's ids of the topics read, to notice that one was made anew. ``skipped`` names partitions of which a part
    was left out on purpose, from their next offset on; everything else below the offset given there has been applied.
    """

    next_offsets: Mapping[TopicPartition, int]
    watermark_lsn: int
    commit_time_ms: int
    updated_at_ms: int
    topic_ids: Mapping[str, str]
    rejected: int = 0
    skipped: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A live row as the destination holds it, its values in the event's form so that they can be compared.

    ``lacks`` names the columns that it was stored without: they are null in ``row``, and nobody has ever said so. A destination
    whose rows have all columns leaves it empty.
    """

    key: Mapping[str, JsonValue]
    row: Mapping[str, JsonValue]
    tag: str
    lacks: Collection[str] = ()


class Sink(Protocol):
    """A destination that stays correct when the same batch is written twice.

    Every method may raise ``Unavailable`` (try the same call again) or ``LockstepError`` (the operator's turn: a full
    disk, a missing index, a lost permission; nobody's bad row).
    """

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        """Create what this generation needs for these tables. Idempotent. Makes it live when no generation is, if it may.

        Mapping and DDL come from the tables' shapes, never from data. Raises LockstepError when what is there has
        another shape: that needs a new generation.

        Where a column of ``added`` has to be made, the rows that are there get its value in the same step. What a destination can't
        do that way it returns: then the caller carries over the rows that lack the column (``StoredRow.lacks``), which ``scan`` and
        ``rows`` show in bulk as well.
        """
        ...

    def begin_bulk(self) -> None:
        """From now on until ``end_bulk`` nobody reads this generation: apply with what the destination does fastest.

        Call it after ``prepare``, before the first event. Idempotent; it lasts beyond this object and this process. Applying
        stays safe to repeat; ``scan`` and ``rows`` tell the truth only after ``end_bulk``.
        """
        ...

    def end_bulk(self) -> None:
        """Make the generation fit to be read. Idempotent, harmless where bulk wasn't begun; what it interrupts can be repeated."""
        ...

    def claim(self) -> int:
        """Become the writer of this generation; returns the fence for ``Batch``.

        Where the destination can do it, batches with an older fence raise ``Fenced`` from now on. Others return 0 and
        rely on the tags alone.
        """
        ...

    def fence(self) -> int:
        """The fence of whoever is this generation's writer now: for one that writes a few rows beside it, without taking its place.

        0 where ``claim`` returns 0. A batch with it raises ``Fenced`` once somebody else has claimed the generation.
        """
        ...

    def apply(self, batch: Batch) -> Outcome:
        """Make the batch durable, then return. One poison event never keeps its neighbours from being applied."""
        ...

    def load_progress(self) -> Progress | None:
        """What ``save_progress`` stored last for this generation, or None."""
        ...

    def save_progress(self, progress: Progress) -> None:
        """Store progress in the destination itself, so that it can't drift from the data.

        Call it after ``apply`` returned for everything that the progress covers.
        """
        ...

    def live_generation(self) -> int | None:
        """The generation that readers see, or None when there is none."""
        ...

    def generations(self) -> list[int]:
        """The generations that were prepared and not dropped, ascending, whichever this object is bound to."""
        ...

    def switch(self) -> None:
        """Make this generation the live one, at once for every reader. Raises LockstepError when the name that readers use
        was pointed to something else by somebody else."""
        ...

    def keep_only(self, tables: Collection[TableName]) -> list[TableName]:
        """Remove all other tables of this generation, their rows and the names that readers know them by. Returns those.

        No job may apply to it meanwhile. Idempotent: what it interrupts is done by the next call, which returns it again.
        """
        ...

    def drop(self) -> None:
        """Remove this generation's data, its progress and its notes (those called ``g<n>.*``). Raises LockstepError when it
        is the live one."""
        ...

    def load_coordination(self, name: str) -> str | None:
        """A note of this sink, the same for all generations and processes; None when there is none.

        What ``save_coordination`` stored before, wherever, is seen by every later call.
        """
        ...

    def save_coordination(self, name: str, text: str | None) -> None:
        """Store a note, or remove it with None. ``name`` is made of lower-case letters, digits, ``.``, ``_`` and ``-``."""
        ...

    def create_coordination(self, name: str, text: str) -> bool:
        """Store a note unless there is one of that name; whether it was stored. Of several callers at once, one gets True.

        After ``Unavailable`` it may be there all the same: a repeated call returns False then.
        """
        ...

    def scan(self, table: Table) -> Iterator[StoredRow]:
        """All live rows of a table in this generation, in no particular order, seen as of now (refreshed first)."""
        ...

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        """The live ones among the rows of these keys, in no particular order, seen as of now. ``keys`` are at most a thousand."""
        ...

    def close(self) -> None:
        """Release connections. The object is of no use afterwards."""
        ...
