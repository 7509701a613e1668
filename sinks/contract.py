"""The contract between the log and a destination: rows (``Sink``), builds of them (``Generations``), and the records by
which jobs and commands agree (``CoordinationRecords``).
"""

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
"""Table -> added column -> the value that the source shows in older rows, never null."""

NOTHING_ADDED: Final[AddedValues] = MappingProxyType({})
NOTHING_WRITTEN: Final[Mapping[TopicPartition, int]] = MappingProxyType({})


class TablesRefused(LockstepError):
    """A destination refuses these tables, each with its error. It may take other tables.

    The message joins all messages; the hint is the first one's.
    """

    def __init__(self, errors: Mapping[TableName, LockstepError]) -> None:
        messages = dict.fromkeys(error.message for error in errors.values())
        super().__init__("; ".join(messages), hint=next(iter(errors.values())).hint)
        self.errors = dict(errors)


@dataclass(frozen=True, slots=True)
class Rejection:
    """An event refused for good: retrying it can't help. ``reason`` is the destination's, without the row's values."""

    event: RowEvent
    reason: str


@dataclass(frozen=True, slots=True)
class TableVersions:
    """All events of one table in a batch, also replaced ones. A deletion and its tombstone are one version."""

    events: TableEvents
    operations: Sequence[str]
    """The envelope's letter of each event: ``r``, ``c``, ``u`` or ``d``."""
    commit_times_ms: Sequence[int]
    """The commit time of each event, in milliseconds since 1970."""
    complete_from_ms: int | None = None
    """Compaction has removed nothing that was committed since this time. None: nothing new is known."""
    missing_until_ms: int | None = None
    """Changes committed before this time may be missing: capture copied the table then, or a version was rejected."""

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
        return replace(
            self,
            events=self.events.select(indexes),
            operations=[self.operations[index] for index in indexes],
            commit_times_ms=[self.commit_times_ms[index] for index in indexes],
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Events to apply, at most one per key (the newest), in no particular order."""

    events: Sequence[RowEvent]
    next_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The end of the batch in each partition, exclusive. Transactional destinations store them with the rows."""
    fence: int = 0
    """What ``Sink.claim`` returned to the job that owns this batch."""
    overwrite_equal_tags: bool = False
    """An event also replaces a row of the same tag: other code or settings made it from the same change."""
    never_applied: bool = False
    """All events up to a tag may have been applied, except these, as after a rejection. If the row of such an event is
    missing, the event is no repetition, however old it is.
    """
    erased: Mapping[TableName, str] | None = None
    """What ``Erasing.erased`` returned before the events were chosen. If more was erased since, none is applied."""
    as_stored: bool = False
    """The rows come from this destination, so their values are already hidden."""
    versions: Sequence[TableVersions] = ()
    """Each table once, for destinations that keep a history; else empty. A version may come again, and late."""
    identities: Mapping[TableName, str] = field(default_factory=dict)
    """Identities of tables, as ``TableIdentities`` returned them. A destination that can detect that it would write
    into another table raises ``DataLost`` and writes nothing.
    """


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a batch: ``applied + stale + len(rejections) == len(batch.events)``.

    ``stale`` counts events that the destination already had, in this version or a newer one. These are successes.
    """

    applied: int
    stale: int
    rejections: Sequence[Rejection] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a generation is: what to read next, and the watermark. Times are in milliseconds since 1970."""

    next_offsets: Mapping[TopicPartition, int]
    watermark_lsn: int
    """Everything up to here has been applied. 0: unknown. LSNs of different ``epoch``s can't be compared."""
    commit_time_ms: int
    """The commit time of the watermark."""
    updated_at_ms: int
    """The whole log as of this time had been applied. So it doesn't move while a sink works off a backlog."""
    topic_ids: Mapping[str, str]
    """Kafka's ids of the topics read, also of those no longer read. They show that a topic was recreated."""
    rejected: int = 0
    skipped: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Partitions of which a part was left out on purpose: the part begins at their next offset and ends before this
    one. Everything else below this offset has been applied.
    """
    left_at_ms: Mapping[str, int] = field(default_factory=dict)
    """Topics that are no longer read, each with the time as of which the log had been applied when it left. A topic
    stays listed until it has caught up, whether it returned or is new. A new one has the time at which reading began:
    its rows may be stored before any of it counts as applied.
    """
    epoch: int = 0
    read_at_ms: int = 0
    """The log as of this time had been applied, except the part left out. 0: nothing was left out."""
    joining: tuple[str, ...] = ()
    """Topics of new or returned tables: the watermark stays where it was for the others until it is true for all."""
    selection: str = ""
    """The tables that were captured, as in ``ProgressRecord``: the watermark is about those only. Empty: unknown."""
    shards: tuple[Mapping[TopicPartition, int], ...] = ()
    """Of a view that several tasks maintain: the next offsets of each, none behind ``next_offsets``. Else empty."""
    log_epoch: int = 0
    """The newest epoch of the log that the job had heard of, applied or not."""
    reads_again: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Partitions of which a part is read again, as somebody ordered, each with the position of that reading."""

    @property
    def reached(self) -> dict[TopicPartition, int]:
        """The end of what is applied of each partition, also beyond a part that was left out."""
        return {**self.next_offsets, **self.skipped}

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """Where reading continues in each partition."""
        return {**self.reached, **self.reads_again}


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A live row in the destination, with values in the event's form so that they can be compared.

    ``lacks`` names the columns that it was stored without. They are null in ``row``, but no event said so. It is empty
    if all rows of the destination have all columns.
    """

    key: Mapping[str, JsonValue]
    row: Mapping[str, JsonValue]
    tag: str
    lacks: Collection[str] = ()


class Sink(Protocol):
    """Reads and writes the rows of one generation. Writing the same batch twice does no harm.

    The tag stored beside each row decides: only a greater tag wins. So an older batch may come after a newer one, and
    two jobs may write at once. Each event ends as applied (or already applied), or as a rejection that the caller
    stores. Anything else is an exception, and the whole batch may be applied again.

    Every method raises ``Unavailable`` when the same call may succeed later. It raises ``LockstepError`` when the
    operator has to act (a full disk, a missing index, a lost permission), never for a bad row.
    """

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        """Create what this generation needs for these tables. Idempotent.

        Makes this generation live when no generation is, unless ``go_live`` is false. Mapping and DDL come from the
        tables' shapes, never from data. Raises LockstepError when what exists has another shape: that needs a new
        generation.

        Raises TablesRefused for tables that the destination can't hold whatever their rows are: their names, or the
        names or the number of their columns, don't fit. All other tables are then prepared, if there are any.

        If a column of ``added`` has to be created, existing rows get its value in the same step. Returns the columns
        for which the destination can't do that. The caller then fills the rows that lack the column
        (``StoredRow.lacks``), which ``scan`` and ``rows`` also show during a bulk load.
        """
        ...

    def claim(self) -> int:
        """Become the writer of this generation. Returns the fence for ``Batch``.

        If the destination can do it, batches with an older fence raise ``Fenced`` from now on, even those already on
        their way. Every destination can do it for the rows of a view, since a job that takes over deletes the rows that
        its result doesn't have, and never sees rows that arrive later. For other rows some destinations return 0 and
        rely on the tags alone.
        """
        ...

    def fence(self) -> int:
        """The fence of this generation's writer, for a caller that writes a few rows beside the writer.

        0 if ``claim`` returns 0. A batch with it raises ``Fenced`` once another job has claimed the generation.
        """
        ...

    def apply(self, batch: Batch) -> Outcome:
        """Make the batch durable, then return. One bad event never prevents others from being applied.

        Raises ``Fenced`` when another job has claimed the generation.
        """
        ...

    def plan_scans(self, tables: Sequence[Table]) -> None:
        """These tables are scanned next, maybe several times. A destination that stores them together looks once.

        Until ``close``, ``scan`` may leave out rows of theirs that were first stored after this call. The rows that it
        yields are still seen as of now. Has no effect in destinations that store each table separately.
        """
        return

    def scan(self, table: Table) -> Iterator[StoredRow]:
        """All live rows of a table in this generation, in no particular order, seen as of now."""
        ...

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        """The live rows of these keys, in no particular order, seen as of now. ``keys`` are at most a thousand.

        Raises NeedsRebuild for a table that this generation doesn't have, even if ``keys`` is empty.
        """
        ...

    def close(self) -> None:
        """Release connections, also those of the generations and coordination records opened with this sink."""
        ...


class Generations(Protocol):
    """The generations of a sink. Each is one physical build of its data; readers see the live one.

    The object is bound to its sink's generation: every method but ``live`` and ``numbers`` is about that one. Raises
    ``Unavailable`` and ``LockstepError`` as ``Sink`` does.
    """

    def live(self) -> int | None:
        """The number of the generation that readers see, or None.

        Raises LockstepError when somebody pointed a name that readers use to something else.
        """
        ...

    def numbers(self) -> list[int]:
        """The generations that were prepared and not dropped, ascending."""
        ...

    def switch(self) -> None:
        """Make this generation the live one, for every reader at once.

        Raises LockstepError when it doesn't exist, when its bulk load hasn't ended, and when somebody pointed a name
        that readers use to something else.
        """
        ...

    def drop(self) -> None:
        """Remove this generation's data, progress and records ``g<n>.*``. Raises LockstepError when it is live."""
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
        which everything below the watermark has been applied. None: all tables, unless the progress says that something
        was left out. For other tables, the marks that reject older events must stay.

        Call it after ``Sink.apply`` returned for everything that the progress covers. If it raises, nothing is stored:
        * ``Fenced`` when another job has claimed the generation since this one's sink did.
        * ``Overtaken`` when another job has stored more.
        * ``DataLost`` when the destination lacks what this object saved or loaded last: then rows may be missing too.
          Also when a destination that stores next offsets with the rows lacks those ``written``.
        """
        ...


class CoordinationRecords(Protocol):
    """Named texts by which jobs and commands agree, stored in the destination so that there is one truth.

    A record is the same for all generations and processes: every call sees what was stored before it, wherever. Raises
    ``Unavailable`` and ``LockstepError`` as ``Sink`` does.
    """

    def load(self, name: str) -> str | None:
        """A record, or None if there is none of that name."""
        ...

    def load_all(self, names: Collection[str]) -> dict[str, str]:
        """Those of these records that exist, with one request if possible. Each is read at a moment of its own."""
        return {name: text for name in names if (text := self.load(name)) is not None}

    def save(self, name: str, text: str | None, *, fence: int = 0) -> None:
        """Store a record, or remove it with None.

        ``name`` is made of lower-case letters, digits, ``.``, ``_`` and ``-``.

        A ``fence``, which ``Sink.claim`` returned, makes the record the writer's own. Once a newer writer has stored
        it, an older one can't replace it: this raises ``Fenced``. Most destinations raise it as soon as another job has
        claimed the generation. A record that is stored with a fence is never stored without.
        """
        ...

    def create(self, name: str, text: str) -> bool:
        """Store a record unless one of that name exists. Returns whether it was stored.

        Of several callers at once, one gets True. After ``Unavailable`` the record may exist nevertheless: a repeated
        call then returns False.
        """
        ...


@dataclass(frozen=True, slots=True)
class OpenedSink:
    """A destination opened for one generation: the required parts, then its capabilities, each None if it lacks it."""

    sink: Sink
    generations: Generations
    records: CoordinationRecords

    bulk: BulkLoad | None = None
    erasing: Erasing | None = None
    identities: TableIdentities | None = None
    refreshing: Refreshing | None = None
    whole: WholeSteps | None = None

    blocked_by: Callable[[], str | None] = lambda: None
    """The holder of a lock that one of our writers waits for; None if there is none. Raises Unavailable."""

    server: Callable[[], str | None] = lambda: None
    """Which of several interchangeable servers has the progress. None: there is only one, or it doesn't say."""

    require_server: Callable[[str], None] = lambda _: None
    """Called if a writer's progress is stored elsewhere: calls that reach another server now raise ``DataLost``."""
