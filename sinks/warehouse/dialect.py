"""What a database does in a way of its own: the seam between the sink and ``postgres`` or ``duckdb``."""

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
"""Takes a version that a history can't hold, alone, and the reason."""


class UnknownColumn(Exception):
    """An event has a column that its table didn't have when it was looked at."""

    def __init__(self, table: TableName, column: str) -> None:
        super().__init__(table, column)
        self.table = table
        self.column = column


class Kept(NamedTuple):
    """What a table and its history have of a key: whether a row is there, whether it is deleted, how many versions."""

    is_there: bool
    is_deleted: bool
    versions: int


class Storage(NamedTuple):
    """What a relation is stored in, by numbers of the database's own; 0 where it has none that last.

    ``relation`` is another one once it was dropped, ``file`` once it was emptied or written anew as a whole.
    """

    relation: int = 0
    file: int = 0


class Connection(Protocol):
    """Transactions and statements. Errors leave a transaction as ours."""

    def transaction(self) -> AbstractContextManager[object]: ...

    def looking(self) -> AbstractContextManager[object]:
        """For statements that only read, and need not see the same moment."""
        ...

    @property
    def connected(self) -> "SqlConnection":
        """The transaction's connection."""
        ...

    def execute(self, query: str, **values: object) -> "CursorResult[Any]":
        """A statement on the bookkeeping, with ``:view_schema`` and ``:generation`` bound."""
        ...

    def execute_each(self, query: str, rows: Sequence[Mapping[str, object]]) -> None:
        """The same statement for each of these values, without an answer to wait for after each."""
        ...

    def run(self, statement: str) -> "CursorResult[Any]":
        """A statement with identifiers of the source in it, in which no character is a placeholder."""
        ...

    def run_all(self, statements: Sequence[str]) -> None:
        """The same of many statements, without an answer to wait for after each."""
        ...

    def locking(self, words: str) -> str:
        """``for update`` and the like, where a transaction has to lock rows."""
        ...

    def timeline(self) -> str:
        """Of the server: another one after a failover, and after a restore to an earlier moment."""
        ...

    def blocked_by(self) -> str | None:
        """The session that blocks a writer of ours: its name and how to end it. None if there is none."""
        ...

    def has_relation(self, schema: str, relation: str) -> bool: ...

    def has_schema(self, schema: str) -> bool: ...

    def disconnect(self) -> None: ...

    def close(self) -> None: ...


class View(Protocol):
    """A view as the database has it. ``name`` is quoted; ``generations`` are those whose tables it reads."""

    @property
    def name(self) -> str: ...

    @property
    def generations(self) -> frozenset[int]: ...


class Views(Protocol):
    """The views of one sink.

    Every method is called inside a transaction, with names of relations and what has them.
    """

    def marks(self) -> str | None:
        """Others after a change of the views, of what has their names, or of the tables that the sink knows.

        None: they are to be looked at each time.
        """
        ...

    def held(self, relations: Mapping[str, str]) -> Sequence[View]:
        """These views, as far as they are there. Raises LockstepError where something else has a view's name."""
        ...

    def hold(self, relations: Mapping[str, str]) -> None:
        """Lock these views against readers until the transaction ends.

        Raise Unavailable when they are read for too long.
        """
        ...

    def expose(self, wanted: "Mapping[str, ViewDefinition]", known: Mapping[str, str]) -> None:
        """Point the views at this generation; known ones that it doesn't have are dropped."""
        ...

    def rename_columns(self, relations: Mapping[str, str], renamed: Mapping[str, str]) -> None:
        """So that the views, with their grants and what others built on them, stay the same ones."""
        ...


class Definitions(Protocol):
    """Tables, made and altered. All methods are called inside a transaction."""

    def create(self, tables: "Collection[StoredTable]") -> None:
        """Make these tables. Does nothing for one that is there."""
        ...

    def create_history(self, held: "StoredTable") -> None:
        """Make the table of its history, likewise."""
        ...

    def alter(self, relation: str, before: "StoredTable", held: "StoredTable", added: Mapping[str, JsonValue]) -> None:
        """Rename columns of one of a table's relations and add those that it lacks, with these values in the rows that
        are there."""
        ...

    def drop_columns(self, held: "StoredTable", names: Sequence[str], *, has_history: bool) -> None:
        """Drop columns; a history keeps them under other names."""
        ...

    def drop_key(self, held: "StoredTable") -> None:
        """From now on several rows may have one key."""
        ...

    def add_keys(self, tables: "Collection[StoredTable]") -> None:
        """Leave each row's newest version only, and see to it that this stays so."""
        ...

    def free_columns(self, tables: "Collection[StoredTable]") -> bool:
        """Drop indexes of ours that are in the way of a change of columns. ``keep_indexes`` makes them again.

        Returns whether there was any: columns can be changed by another transaction then.
        """
        ...

    def keep_indexes(self, wanted: "Mapping[StoredTable, Sequence[OwnIndex]]") -> None:
        """Leave these tables with these indexes of ours and with no others.

        One of a column that its table lacks isn't made. Raises LockstepError for one that the database doesn't take.
        """
        ...


class Storages(Protocol):
    """By what relations are told from others of their names. All methods are called inside a transaction."""

    def of(self, relations: Collection[str]) -> Mapping[str, Storage]:
        """What these relations of the generation's schema are stored in, those that are there."""
        ...

    def keeps_rows(self, relation: str) -> bool:
        """Whether a relation of the generation's schema has a row that was there before its file was.

        For one that has got another file, and to which nobody but a merge has written since.
        """
        ...

    def of_bookkeeping(self) -> Storage: ...


class Writer(Protocol):
    """Writes batches. All methods but ``make_ready`` and ``forget`` are called inside a transaction."""

    def look_at(self, tables: "Sequence[StoredTable]") -> None:
        """Be ready to write to these tables as they are now."""
        ...

    def forget(self) -> None:
        """Be ready for no table."""
        ...

    def is_ready_for(self, name: TableName) -> bool: ...

    def keeps(self, name: TableName) -> bool:
        """Whether a table that it is ready for has a history."""
        ...

    def make_ready(self, tables: Sequence[TableEvents], versions: Sequence[TableVersions]) -> None:
        """What can be done with a batch before its transaction. Raises UnknownColumn."""
        ...

    def merge(
        self, events: TableEvents, rejections: list[Rejection], *, overwrite_equal_tags: bool, purged: str = ""
    ) -> int:
        """How many of the events won over what is there. Raises UnknownColumn.

        Those up to the tag ``purged`` of rows that aren't there are repetitions, and win over nothing.
        """
        ...

    def append(self, events: TableEvents, rejections: list[Rejection]) -> int:
        """How many of the events are in the table now, which has no key. Raises UnknownColumn."""
        ...

    def keep(self, versions: TableVersions, refuse: Refuse, *, overwrite_equal_tags: bool, purged: str = "") -> None:
        """Add versions to a table's history; with ``overwrite_equal_tags`` those that are there are replaced.

        Those up to the tag ``purged`` are repetitions. Raises UnknownColumn.
        """
        ...


class Upkeep(Protocol):
    """Takes away what nobody needs any more. All methods are called inside a transaction."""

    def purge(self, held: "StoredTable", *, older_than_s: float | None, below: str, rows_max: int) -> tuple[int, str]:
        """Delete some of the rows that were deleted so long ago, None: whenever, of tags below this one.

        An age needs a table with the time of its rows. Returns how many, and their greatest tag, "" for none.
        """
        ...

    def trim_history(
        self, held: "StoredTable", *, complete_from_ms: int, below: str, first_block: int, blocks: int
    ) -> tuple[bool, str]:
        """Delete what no reader of a time from ``complete_from_ms`` on needs, of tags below this one, in some blocks.

        Returns whether there are more blocks, and the greatest tag that was deleted, "" for none.
        """
        ...

    def kept(self, held: "StoredTable", key: Mapping[str, JsonValue]) -> Kept: ...

    def erase(self, held: "StoredTable", key: Mapping[str, JsonValue], *, below: str) -> tuple[str, str]:
        """Delete the row of this key if it is deleted, and its versions, of tags below this one.

        Returns the greatest deleted tag of the table, and that of its history, "" for none.
        """
        ...


class Reader(Protocol):
    """Reads tables, in transactions of its own."""

    def scan(self, relation: str, table: Table) -> Iterator[StoredRow]: ...

    def rows(self, relation: str, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]: ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """One generation's tables in one database."""

    connection: Connection
    views: Views
    definitions: Definitions
    storages: Storages
    writer: Writer
    upkeep: Upkeep
    reader: Reader
