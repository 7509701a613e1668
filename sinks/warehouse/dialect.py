"""What each database does in its own way: the seam between the sink and ``postgres`` or ``duckdb``."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cdc.model.event import JsonValue, TableEvents
from cdc.model.table import Table, TableName
from sinks.contract import Rejection, StoredRow, TableVersions

if TYPE_CHECKING:
    from sqlalchemy import Connection as SqlConnection
    from sqlalchemy import CursorResult

    from sinks.warehouse.own_indexes import OwnIndex
    from sinks.warehouse.reader_views import ViewDefinition
    from sinks.warehouse.stored_table import StoredTable

Refuse = Callable[[TableEvents, str], object]
"""Takes a single version that a history can't hold, and the reason."""


class UnknownColumn(Exception):
    """An event has a column that its table didn't have when the writer looked at it."""

    def __init__(self, table: TableName, column: str) -> None:
        super().__init__(table, column)
        self.table = table
        self.column = column


class Kept(NamedTuple):
    """What a table and its history hold of a key: whether a row is there, whether it is deleted, how many versions."""

    is_there: bool
    is_deleted: bool
    versions: int


class Storage(NamedTuple):
    """Where a relation is stored, as numbers of the database's own; 0 if it has no lasting numbers.

    ``relation`` changes when the relation is dropped and created again, ``file`` also when it is emptied or fully
    rewritten.
    """

    relation: int = 0
    file: int = 0


class Connection(Protocol):
    """Transactions and statements. Errors leave a transaction as Lockstep's own."""

    def transaction(self) -> AbstractContextManager[object]: ...

    def looking(self) -> AbstractContextManager[object]:
        """For statements that only read and need not see the same moment."""
        ...

    @property
    def connected(self) -> "SqlConnection": ...

    def execute(self, query: str, **values: object) -> "CursorResult[Any]":
        """Run a statement on the bookkeeping, with ``:view_schema`` and ``:generation`` bound."""
        ...

    def execute_each(self, query: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Run the statement once for each of these values, without waiting for each answer."""
        ...

    def run(self, statement: str) -> "CursorResult[Any]":
        """Run a statement that contains identifiers of the source: no character in it is a placeholder."""
        ...

    def run_all(self, statements: Sequence[str]) -> None:
        """Like ``run`` for many statements, without waiting for each answer."""
        ...

    def locking(self, words: str) -> str:
        """The clause, such as ``for update``, if transactions of this database have to lock rows; else ""."""
        ...

    def timeline(self) -> str:
        """Identifies the server's history: it changes with a failover, and with a restore to an earlier moment."""
        ...

    def blocked_by(self) -> str | None:
        """The session that blocks one of our writers: its name and how to end it. None if there is none."""
        ...

    def has_relation(self, schema: str, relation: str) -> bool: ...

    def has_schema(self, schema: str) -> bool: ...

    def disconnect(self) -> None: ...

    def close(self) -> None: ...


class View(Protocol):
    """A view in the database. ``name`` is quoted; ``generations`` are those whose tables it reads."""

    @property
    def name(self) -> str: ...

    @property
    def generations(self) -> frozenset[int]: ...


class Views(Protocol):
    """The views of one sink. Every method is called inside a transaction, with names of relations and what each is."""

    def marks(self) -> str | None:
        """Changes whenever the views, their names or the known tables do. None: check the views each time."""
        ...

    def held(self, relations: Mapping[str, str]) -> Sequence[View]:
        """Those of these views that exist. Raises LockstepError if something else has a view's name."""
        ...

    def hold(self, relations: Mapping[str, str]) -> None:
        """Lock these views against readers until the transaction ends. Raises Unavailable if reads take too long."""
        ...

    def expose(self, wanted: "Mapping[str, ViewDefinition]", known: Mapping[str, str]) -> None:
        """Point the views at this generation. Known views that it doesn't have are dropped."""
        ...

    def rename_columns(self, relations: Mapping[str, str], renamed: Mapping[str, str]) -> None:
        """Rename the views' columns in place, so that grants and dependent views stay."""
        ...


class Definitions(Protocol):
    """Creates and alters tables. All methods are called inside a transaction."""

    def create(self, tables: "Collection[StoredTable]") -> None:
        """Create these tables. Skips those that exist."""
        ...

    def create_history(self, held: "StoredTable") -> None:
        """Create the table of its history, unless it exists."""
        ...

    def alter(self, relation: str, before: "StoredTable", held: "StoredTable", added: Mapping[str, JsonValue]) -> None:
        """Rename columns of one of a table's relations and add those that it lacks. Existing rows get these values."""
        ...

    def drop_columns(self, held: "StoredTable", names: Sequence[str], *, has_history: bool) -> None:
        """Drop columns. A history keeps them under other names."""
        ...

    def drop_key(self, held: "StoredTable") -> None:
        """Allow several rows with the same key from now on."""
        ...

    def add_keys(self, tables: "Collection[StoredTable]") -> None:
        """Keep only the newest version of each row, and enforce that from now on."""
        ...

    def free_columns(self, tables: "Collection[StoredTable]") -> bool:
        """Drop our indexes that prevent a change of columns. ``keep_indexes`` creates them again.

        Returns whether there were any: then another transaction can change the columns.
        """
        ...

    def keep_indexes(self, wanted: "Mapping[StoredTable, Sequence[OwnIndex]]") -> None:
        """Make these our only indexes on these tables.

        Skips an index on a column that its table lacks. Raises LockstepError for one that the database refuses.
        """
        ...


class Storages(Protocol):
    """Identifies relations, to recognise others with the same names. All methods are called inside a transaction."""

    def of(self, relations: Collection[str]) -> Mapping[str, Storage]:
        """Where those of these relations that exist in the generation's schema are stored."""
        ...

    def keeps_rows(self, relation: str) -> bool:
        """Whether a relation of the generation's schema has a row that is older than its file.

        Valid for a relation that has got another file, and to which only a merge has written since.
        """
        ...

    def of_bookkeeping(self) -> Storage: ...


class Writer(Protocol):
    """Writes batches. All methods but ``make_ready`` and ``forget`` are called inside a transaction."""

    def look_at(self, tables: "Sequence[StoredTable]") -> None:
        """Prepare for writing to these tables as they are now."""
        ...

    def forget(self) -> None:
        """Forget all tables that ``look_at`` prepared."""
        ...

    def is_ready_for(self, name: TableName) -> bool: ...

    def keeps(self, name: TableName) -> bool:
        """Whether a table that it is ready for has a history."""
        ...

    def make_ready(self, tables: Sequence[TableEvents], versions: Sequence[TableVersions]) -> None:
        """Do what can be done with a batch before its transaction. Raises UnknownColumn."""
        ...

    def merge(
        self, events: TableEvents, rejections: list[Rejection], *, overwrite_equal_tags: bool, purged: str = ""
    ) -> int:
        """Write events that are newer than the stored rows; return how many. Raises UnknownColumn.

        An event up to the tag ``purged`` without a stored row is a repetition, and isn't written.
        """
        ...

    def append(self, events: TableEvents, rejections: list[Rejection]) -> int:
        """Add events to a table without a key; return how many of them are in it now. Raises UnknownColumn."""
        ...

    def keep(self, versions: TableVersions, refuse: Refuse, *, overwrite_equal_tags: bool, purged: str = "") -> None:
        """Add versions after the tag ``purged``, or replace them (``overwrite_equal_tags``). Raises UnknownColumn."""
        ...


class Upkeep(Protocol):
    """Removes what nobody needs any more. All methods are called inside a transaction."""

    def purge(self, held: "StoredTable", *, older_than_s: float | None, below: str, rows_max: int) -> tuple[int, str]:
        """Delete some rows with tags less than ``below`` that have been marked as deleted for this age; None: for any.

        An age needs a table with the time of its rows. Returns how many, and their greatest tag, "" for none.
        """
        ...

    def trim_history(
        self, held: "StoredTable", *, complete_from_ms: int, below: str, first_block: int, blocks: int
    ) -> tuple[bool, str]:
        """In some blocks, delete versions with tags less than ``below`` that no reader of a later time needs.

        ``complete_from_ms`` is the first later time. Returns whether there are more blocks, and the greatest deleted
        tag, "" for none.
        """
        ...

    def kept(self, held: "StoredTable", key: Mapping[str, JsonValue]) -> Kept: ...

    def erase(self, held: "StoredTable", key: Mapping[str, JsonValue], *, below: str) -> tuple[str, str]:
        """Delete the row of this key if it is marked as deleted, and its versions, with tags less than ``below``.

        Returns the greatest deleted tag of the table, and that of its history, "" for none.
        """
        ...


class Reader(Protocol):
    """Reads tables, in transactions of its own."""

    def scan(self, relation: str, table: Table) -> Iterator[StoredRow]: ...

    def rows(self, relation: str, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]: ...


@dataclass(frozen=True, slots=True)
class Dialect:
    connection: Connection
    views: Views
    definitions: Definitions
    storages: Storages
    writer: Writer
    upkeep: Upkeep
    reader: Reader
