"""The contract between the log and a destination: rows (``Sink``), builds of them (``Generations``), and agreements."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Protocol

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue, RowEvent, TableEvents
from cdc.model.table import Table, TableName
from sinks.capabilities.bulk_load import BulkLoad
from sinks.capabilities.erasing import Erasing
from sinks.capabilities.identities import TableIdentities
from sinks.capabilities.refreshing import Refreshing
from sinks.capabilities.whole_steps import WholeSteps

TopicPartition = tuple[str, int]
"""A topic's name and a partition number."""

AddedValues = Mapping[TableName, Mapping[str, JsonValue]]
"""Table -> added column -> the value that the source shows in rows from before it was added: never null."""

NOTHING_ADDED: Final[AddedValues] = MappingProxyType({})
NOTHING_WRITTEN: Final[Mapping[TopicPartition, int]] = MappingProxyType({})


class TablesRefused(LockstepError):
    """A destination refuses these tables, or all that came of them, each with its error. It may take others.

    As an error it has the words of all, and what the first one says can be done.
    """

    def __init__(self, errors: Mapping[TableName, LockstepError]) -> None:
        messages = dict.fromkeys(error.message for error in errors.values())
        super().__init__("; ".join(messages), hint=next(iter(errors.values())).hint)
        self.errors = dict(errors)


@dataclass(frozen=True, slots=True)
class Rejection:
    """An event that the destination refuses for good, with its words. Retrying the same event can't help.

    ``reason`` must not hold the row's values.
    """

    event: RowEvent
    reason: str


@dataclass(frozen=True, slots=True)
class TableVersions:
    """All events of one table that a batch is made of. Those that a newer event of their key replaces are included.

    ``operations`` are the envelope's letters, ``r``, ``c``, ``u`` or ``d``, one per event. ``commit_times_ms`` are
    milliseconds since 1970, one per event. A deletion and its tombstone are one version. Compaction has taken nothing
    away that was committed since ``complete_from_ms``; None adds nothing to what is known. Changes that were committed
    before ``missing_until_ms`` may be missing all the same: capture has copied the table then, or a version was
    rejected.
    """

    events: TableEvents
    operations: Sequence[str]
    commit_times_ms: Sequence[int]
    complete_from_ms: int | None = None
    missing_until_ms: int | None = None

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, indexes: slice) -> "TableVersions":
        return replace(
            self,
            events=self.events[indexes],
            operations=self.operations[indexes],
            commit_times_ms=self.commit_times_ms[indexes],
        )

    def select(self, indexes: Sequence[int]) -> "TableVersions":
        """The versions at these indexes, in this order."""
        return replace(
            self,
            events=self.events.select(indexes),
            operations=[self.operations[index] for index in indexes],
            commit_times_ms=[self.commit_times_ms[index] for index in indexes],
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Events to apply, at most one per key (the newest), in no particular order.

    ``next_offsets`` says what the batch covers: up to, not including, these offsets. A transactional destination stores
    them in the same transaction as the rows. ``fence`` is what ``Sink.claim`` returned to the job that owns this batch.
    With ``overwrite_equal_tags`` an event also replaces a row of the same tag: other code or settings made it from the
    same change. ``never_applied`` says that all up to a tag may have been applied but these events, as those that were
    rejected: one whose row isn't there is no repetition then, however old it is. ``erased`` is what ``Erasing.erased``
    has said before it was looked which events are still to be applied: where more was erased since, nothing is.
    ``as_stored`` says that the rows come from this destination: their values are hidden already. ``versions`` has each
    table once, for destinations that keep a history. It is empty for others. A version may come again, and late.
    ``identities`` are those of tables as ``TableIdentities`` has told them: a destination that can see that it
    would write into another table than that one raises ``DataLost`` and writes nothing.
    """

    events: Sequence[RowEvent]
    next_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    fence: int = 0
    overwrite_equal_tags: bool = False
    never_applied: bool = False
    erased: Mapping[TableName, str] | None = None
    as_stored: bool = False
    versions: Sequence[TableVersions] = ()
    identities: Mapping[TableName, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch: ``applied + stale + len(rejections) == len(batch.events)``.

    ``stale`` counts events that the destination already had, in this version or a newer one. These are successes.
    """

    applied: int
    stale: int
    rejections: Sequence[Rejection] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a generation is: what to read next, and the watermark.

    Everything committed up to ``watermark_lsn`` of this ``epoch`` has been applied; 0 says that nothing is known
    yet. LSNs of different epochs can't be compared. ``commit_time_ms`` is the commit time of that position.
    ``updated_at_ms`` is the time as of which the whole log had been applied, so it doesn't move while a sink works
    off a backlog. Both are milliseconds since 1970. ``topic_ids`` are Kafka's ids of the topics read, also of those
    that are read no longer; they show that a topic was recreated. ``skipped`` names partitions of which a part was left
    out on purpose, from their next offset on. Everything else below the offset given there has been applied.
    ``reads_again`` names partitions of which something is read again, as somebody has ordered, and where reading is.
    ``read_at_ms`` is the time as of which all of the log but that part had been, 0 where nothing was left out.
    ``left_at_ms`` has the topics that are read no longer, each with the time as of which the log had been applied when
    it left. One that is read again stays there until all is applied. So does one that is read for the first time, with
    the time at which that began: rows of it may be there before anything of it counts as applied.
    ``joining`` are topics of tables that have joined, or have come back, and of which the watermark isn't true yet: it
    stays where it was for the others until it is true of all.
    ``selection`` tells which tables were captured, as ``ProgressRecord`` has it: where others are by now, the watermark
    says nothing of them. Empty where nobody knows.
    ``shards`` are the next offsets of each task of a view that several of them keep, none of which is behind
    ``next_offsets``. Empty for all else.
    ``log_epoch`` is the newest epoch of the log that the job had heard of, applied or not.
    """

    next_offsets: Mapping[TopicPartition, int]
    watermark_lsn: int
    commit_time_ms: int
    updated_at_ms: int
    topic_ids: Mapping[str, str]
    rejected: int = 0
    skipped: Mapping[TopicPartition, int] = field(default_factory=dict)
    left_at_ms: Mapping[str, int] = field(default_factory=dict)
    epoch: int = 0
    read_at_ms: int = 0
    joining: tuple[str, ...] = ()
    selection: str = ""
    shards: tuple[Mapping[TopicPartition, int], ...] = ()
    log_epoch: int = 0
    reads_again: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def reached(self) -> dict[TopicPartition, int]:
        """The end of what is applied of each partition, also behind a part that was left out."""
        return {**self.next_offsets, **self.skipped}

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """Where each partition is read on."""
        return {**self.reached, **self.reads_again}


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A live row as the destination holds it, its values in the event's form so that they can be compared.

    ``lacks`` names the columns that it was stored without. They are null in ``row``, but no event said so. A
    destination whose rows have all columns leaves it empty.
    """

    key: Mapping[str, JsonValue]
    row: Mapping[str, JsonValue]
    tag: str
    lacks: Collection[str] = ()


class Sink(Protocol):
    """Reads and writes the rows of one generation. It stays correct when the same batch is written twice.

    The tag stored beside each row decides: only a greater tag wins. So an older batch may come after a newer one, and
    two jobs may write at once. Each event ends as applied (or already applied), or as a rejection that the caller
    keeps. Anything else is an exception, and the whole batch may be applied again.

    Every method raises ``Unavailable`` when the same call may succeed later. Every method raises ``LockstepError`` when
    the operator has to act: a full disk, a missing index, a lost permission; nobody's bad row.
    """

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        """Create what this generation needs for these tables. Idempotent.

        Makes this generation live when no generation is, unless ``go_live`` is false. Mapping and DDL come from the
        tables' shapes, never from data. Raises LockstepError when what is there has another shape: that needs a new
        generation.

        Raises TablesRefused for tables that the destination can't hold, whatever it holds of them: their names, or the
        names or the number of their columns, don't fit. Then it is prepared for all others, unless there are none.

        Where a column of ``added`` has to be created, the rows that are there get its value in the same step. Returns
        those columns for which the destination can't do that. The caller then fills the rows that lack the column
        (``StoredRow.lacks``), which ``scan`` and ``rows`` show in bulk as well.
        """
        ...

    def claim(self) -> int:
        """Become the writer of this generation. Returns the fence for ``Batch``.

        Where the destination can do it, batches with an older fence raise ``Fenced`` from now on, whatever of them is
        on its way. Every destination can do it for the rows of a view: a job that takes over deletes what is there and
        the result doesn't have, and what comes in later it never sees. For other rows some return 0, and rely on the
        tags alone.
        """
        ...

    def fence(self) -> int:
        """The fence of this generation's writer. A caller that writes a few rows beside the writer uses it.

        0 where ``claim`` returns 0. A batch with it raises ``Fenced`` once another job has claimed the generation.
        """
        ...

    def apply(self, batch: Batch) -> Outcome:
        """Make the batch durable, then return. One poison event never keeps its neighbours from being applied.

        Raises ``Fenced`` when another job has claimed the generation.
        """
        ...

    def plan_scans(self, tables: Sequence[Table]) -> None:
        """These tables are scanned next, maybe several times: a destination that keeps them together looks once.

        Until ``close``, ``scan`` may leave out rows of theirs that were first stored after this call. The rows that it
        yields are seen as of now all the same. Has no effect where each table is by itself.
        """
        return

    def scan(self, table: Table) -> Iterator[StoredRow]:
        """All live rows of a table in this generation, in no particular order, seen as of now."""
        ...

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        """The live rows of these keys, in no particular order, seen as of now. ``keys`` are at most a thousand.

        Raises NeedsRebuild for a table that this generation doesn't have, also without any key.
        """
        ...

    def close(self) -> None:
        """Release connections, also those of the generations and coordination records opened with this sink."""
        ...


class Generations(Protocol):
    """The generations of a sink. Each is one physical build of its data, and readers see the live one.

    It is bound to the generation of its sink: every method but ``live`` and ``numbers`` is about that one. Raises
    ``Unavailable`` and ``LockstepError`` as ``Sink`` does.
    """

    def live(self) -> int | None:
        """The number of the generation that readers see, or None when there is none.

        Raises LockstepError when somebody pointed a name that readers use to something else.
        """
        ...

    def numbers(self) -> list[int]:
        """The generations that were prepared and not dropped, ascending."""
        ...

    def switch(self) -> None:
        """Make this generation the live one, at once for every reader.

        Raises LockstepError when it doesn't exist, when its bulk load hasn't ended, and when somebody pointed a name
        that readers use to something else.
        """
        ...

    def drop(self) -> None:
        """Remove this generation's data, its progress and its coordination records (those named ``g<n>.*``).

        Raises LockstepError when it is the live one.
        """
        ...

    def load_progress(self) -> Progress | None:
        """What ``save_progress`` stored last for this generation, or None."""
        ...

    def save_progress(
        self,
        progress: Progress,
        *,
        written: Mapping[TopicPartition, int] = NOTHING_WRITTEN,
        whole: Collection[TableName] | None = None,
    ) -> None:
        """Store progress in the destination itself, so that it can't drift from the data.

        ``written`` are the greatest next offsets of the batches that this job has applied. ``whole`` are the tables of
        which everything below the watermark has been applied; None: all, unless the progress says that something was
        left out. Of other tables what keeps older events away must stay.

        Call it after ``Sink.apply`` returned for everything that the progress covers. Raises ``Fenced`` when another
        job has claimed the generation since this one's sink did, and ``Overtaken`` when another one has stored more.
        Raises ``DataLost`` when the destination lacks what this object saved or loaded last: then rows may be missing
        too. So does one that keeps next offsets with the rows, where it lacks those ``written``. Nothing is stored
        then.
        """
        ...


class CoordinationRecords(Protocol):
    """Texts by name, by which jobs and commands agree. They are stored in the destination: there is one truth.

    A record is the same for all generations and processes. What was stored before, wherever, is seen by every later
    call. Raises ``Unavailable`` and ``LockstepError`` as ``Sink`` does.
    """

    def load(self, name: str) -> str | None:
        """A record, or None when there is none of that name."""
        ...

    def load_all(self, names: Collection[str]) -> dict[str, str]:
        """Those of these records that there are, asked for at once if it can be. Each is as of a moment of its own."""
        return {name: text for name in names if (text := self.load(name)) is not None}

    def save(self, name: str, text: str | None, *, fence: int = 0) -> None:
        """Store a record, or remove it with None.

        ``name`` is made of lower-case letters, digits, ``.``, ``_`` and ``-``.

        With a ``fence``, which ``Sink.claim`` has returned, it is of the generation's writer. Once a newer writer has
        stored it, that one's stays: this raises ``Fenced``. Most destinations do so as soon as another job has claimed
        the generation. A record that is stored like this is never stored without.
        """
        ...

    def create(self, name: str, text: str) -> bool:
        """Store a record unless there is one of that name. Returns whether it was stored.

        Of several callers at once, one gets True. After ``Unavailable`` the record may be there all the same: a
        repeated call then returns False.
        """
        ...


@dataclass(frozen=True, slots=True)
class OpenedSink:
    """A destination opened for one generation: what is required, then what it is able to do besides, else None."""

    sink: Sink
    generations: Generations
    records: CoordinationRecords

    bulk: BulkLoad | None = None
    erasing: Erasing | None = None
    identities: TableIdentities | None = None
    refreshing: Refreshing | None = None
    whole: WholeSteps | None = None

    blocked_by: Callable[[], str | None] = lambda: None
    """Who holds a lock that a writer of ours waits for, None where nobody does. Raises Unavailable."""

    server: Callable[[], str | None] = lambda: None
    """Which of several servers has the progress, as one takes over from another. None: one only, or it doesn't say."""

    require_server: Callable[[str], None] = lambda _: None
    """Called by whoever writes for a progress elsewhere: from now on a call that reaches another server than this one
    raises ``DataLost``."""
