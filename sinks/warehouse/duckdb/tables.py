"""Tables of a generation in a DuckDB file: their DDL, and the statements that write to them (pure).

They have no primary key: its index would be written with every batch and kept in memory. A transaction has the file to
itself, so a join finds existing keys, and no other writer can interfere.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from cdc.model.table import Column, quote_identifier
from sinks.columns.arrow_columns import DELETED_COLUMN, EXACT_COLUMN, TAG_COLUMN
from sinks.columns.shape import Shape, unfit_column
from sinks.warehouse.duckdb.values import stored_as
from sinks.warehouse.history import COMMITTED, EPOCH, FROM, OPERATION, TO, check_history_columns
from sinks.warehouse.names import SYNCED_COLUMN, listed
from sinks.warehouse.reader_views import live_condition
from sinks.warehouse.stored_table import StoredTable

GIVEN: Final = "lockstep_given"
"""The name of rows in memory that a statement writes or looks for."""

INDEX: Final = "_lockstep_index"
"""The column with the numbers of given rows, for queries that return them."""

_ROW: Final = "rowid"
"""DuckDB's name for a row's place in its table. A column of that name hides it."""

_OURS: Final = (EXACT_COLUMN, TAG_COLUMN, DELETED_COLUMN)
_OURS_IN_HISTORY: Final = (EXACT_COLUMN, TAG_COLUMN, COMMITTED, OPERATION, FROM, TO)


def check_columns(held: StoredTable) -> None:
    """Raise LockstepError for columns that a DuckDB table can't have. DuckDB takes ``a`` and ``A`` for one name."""
    shape = held.shape
    taken = dict.fromkeys(_OURS, "the warehouse sink needs") | {_ROW: "DuckDB needs"}
    if held.has_synced_at:
        taken[SYNCED_COLUMN] = "the warehouse sink needs"
    if held.has_history:
        taken |= dict.fromkeys(_OURS_IN_HISTORY, "the warehouse's history of the table needs")
        check_history_columns(shape)
    for column in shape.columns:
        if (who := taken.get(column.name.lower())) is not None:
            raise unfit_column(shape.table.name, column.name, f"a name that {who} for itself")
    names: dict[str, str] = {}
    for column in shape.columns:
        other = names.setdefault(column.name.lower(), column.name)
        if other != column.name:
            raise unfit_column(shape.table.name, column.name, f"which is the same for DuckDB as {other!r}")


def column_type(column: Column, shape: Shape) -> str:
    return stored_as(column, is_key=column.name in shape.table.key).sql


def create_table_sql(target: str, held: StoredTable) -> str:
    synced = [f"{quote_identifier(SYNCED_COLUMN)} TIMESTAMPTZ not null"] if held.has_synced_at else []
    return _create_sql(target, held.shape, [f"{quote_identifier(DELETED_COLUMN)} BOOLEAN not null", *synced])


def create_history_sql(target: str, shape: Shape) -> str:
    ours = [f"{quote_identifier(COMMITTED)} TIMESTAMPTZ not null", f"{quote_identifier(OPERATION)} VARCHAR not null"]
    return _create_sql(target, shape, ours)


def _create_sql(target: str, shape: Shape, ours: Sequence[str]) -> str:
    lines = [f"{quote_identifier(column.name)} {column_type(column, shape)}" for column in shape.columns]
    lines += [f"{quote_identifier(EXACT_COLUMN)} VARCHAR", f"{quote_identifier(TAG_COLUMN)} VARCHAR not null", *ours]
    return f"create table if not exists {target} (\n  " + ",\n  ".join(lines) + "\n)"


class Finding:
    """Queries for texts that aren't JSON: how many there are, and, in the order of the rows, whether each is fit."""

    def __init__(self, name: str) -> None:
        self.counted = f"select count(*) from {GIVEN} where not json_valid({name})"
        self.listed = f"select coalesce(json_valid({name}), true) from {GIVEN}"


def find_bad(shape: Shape) -> dict[str, Finding]:
    """By column, how to find values that Arrow accepts and DuckDB refuses."""
    return {
        column.name: Finding(quote_identifier(column.name))
        for column in shape.columns
        if column_type(column, shape) == "JSON"
    }


class Statements:
    def __init__(self, target: str, held: StoredTable) -> None:
        shape, key = held.shape, held.shape.table.key
        tag, deleted = quote_identifier(TAG_COLUMN), quote_identifier(DELETED_COLUMN)
        self._target = target
        self._key = _Key(shape)
        ours = [EXACT_COLUMN, TAG_COLUMN, DELETED_COLUMN]
        stored = listed([*(column.name for column in shape.columns), *ours])
        given = f"(select {_typed(shape.columns, shape)}, {listed(ours)} from {GIVEN}) as given"
        same_row = _equal(key)
        replace = f"delete from {target} as known using {given} where {same_row} and given.{tag}"
        self.replace = f"{replace} > known.{tag}"
        self.replace_again = f"{replace} >= known.{tag}"
        # The transaction's time: a writer has the file to itself from its begin to its end.
        synced, now = (f", {quote_identifier(SYNCED_COLUMN)}", ", now()") if held.has_synced_at else ("", "")
        self._is_there = f"exists (select 1 from {target} as known where {same_row})"
        self.append = f"insert into {target} ({stored}{synced}) select {stored}{now} from {given}"
        self.insert = f"{self.append} where not {self._is_there}"
        # Of keys with several rows, keep the newest, and of equally new ones the last.
        doubles = f"select {listed(key)} from {target} group by {listed(key)} having count(*) > 1"
        self.tidy = (
            f"delete from {target} where {_ROW} in (select row from (select {_ROW} as row, row_number() over "
            f"(partition by {listed(key)} order by {tag} desc, {_ROW} desc) as rank "
            f"from {target} where ({listed(key)}) in ({doubles})) where rank > 1)"
        )
        self.deleted_of_key = f"select bool_and(known.{deleted}) from {target} as known, {self._key.given}"

    def repeated_after(self, purged: str) -> str:
        """Queries the numbers of given rows with tags up to ``purged`` whose key has no row."""
        return f"{self._key.numbers_up_to(purged)} and not {self._is_there}"

    def purge(self, older_than_s: float | None, below: str, rows_max: int) -> str:
        """Deletes some rows that have been marked as deleted for this age (None: for any), and returns their tags."""
        deleted, tag, synced = map(quote_identifier, (DELETED_COLUMN, TAG_COLUMN, SYNCED_COLUMN))
        is_old = "" if older_than_s is None else f" and {synced} < now() - to_microseconds({older_than_s * 1e6:.0f})"
        order = "" if older_than_s is None else f" order by {synced}"
        old = f"select {_ROW} from {self._target} where {deleted}{is_old} and {tag} < '{below}'{order} limit {rows_max}"
        return f"delete from {self._target} where {_ROW} in ({old}) returning {tag}"

    def erase(self, below: str) -> str:
        """Deletes the given key's row if it is marked as deleted, and returns its tag."""
        return self._key.erase(self._target, below, f" and known.{quote_identifier(DELETED_COLUMN)}")


class HistoryStatements:
    def __init__(self, target: str, shape: Shape) -> None:
        key = shape.table.key
        tag, committed = quote_identifier(TAG_COLUMN), quote_identifier(COMMITTED)
        self._target = target
        self._shape = shape
        self._key = _Key(shape)
        ours = [EXACT_COLUMN, TAG_COLUMN, COMMITTED, OPERATION]
        stored = listed([*(column.name for column in shape.columns), *ours])
        given = f"(select {_typed(shape.columns, shape)}, {listed(ours)} from {GIVEN}) as given"
        # Versions arrive in tag order, so most of a history's blocks can't hold one of these.
        same_version = (
            f"{_equal([*key, TAG_COLUMN])} and known.{tag} between "
            f"(select min({tag}) from {GIVEN}) and (select max({tag}) from {GIVEN})"
        )
        self.make_earlier = (
            f"update {target} as known set {committed} = given.{committed} from {given} "
            f"where {same_version} and given.{committed} < known.{committed}"
        )
        # Columns that the source has dropped stay unchanged: a version that comes again lacks them.
        others = [column.name for column in shape.table.columns if column.name not in key]
        assignments = ", ".join(
            f"{quote_identifier(name)} = given.{quote_identifier(name)}" for name in [*others, EXACT_COLUMN, OPERATION]
        )
        self.make_again = (
            f"update {target} as known set {assignments}, {committed} = least(known.{committed}, given.{committed}) "
            f"from {given} where {same_version}"
        )
        self.keep = (
            f"insert into {target} ({stored}) select {stored} from {given} "
            f"where not exists (select 1 from {target} as known where {same_version})"
        )
        self.versions_of_key = f"select count(*) from {target} as known, {self._key.given}"

    def repeated(self, purged: str) -> str:
        """Queries the numbers of given versions with tags up to this one."""
        return self._key.numbers_up_to(purged)

    def trim(self, complete_from_ms: int, below: str, *, portion: int, portions: int) -> str:
        """Deletes, for some of the keys, versions that no reader at that time or later finds. Returns their tags.

        These are versions that were replaced by that time, and deletions from before it that no version precedes.
        """
        tag, committed, operation = map(quote_identifier, (TAG_COLUMN, COMMITTED, OPERATION))
        until = f"TIMESTAMPTZ '{(EPOCH + timedelta(milliseconds=complete_from_ms)).isoformat()}'"
        key = listed(self._shape.table.key)
        versions = f"partition by {key} order by {tag}"
        # A version begins no earlier than the one before it, whatever the clock said.
        own = (
            f"select {_ROW} as _lockstep_row, {key}, {tag}, {committed}, {operation}, "
            f"max({committed}) over ({versions}) as _lockstep_begins from {self._target} "
            f"where hash({key}) % {portions} = {portion}"
        )
        placed = (
            f"select _lockstep_row, {tag}, {committed}, {operation}, "
            f"lead(_lockstep_begins) over ({versions}) as _lockstep_ends, "
            f"row_number() over ({versions}) as _lockstep_number from ({own})"
        )
        gone = (
            f"select _lockstep_row from ({placed}) where {tag} < '{below}' and "
            f"(_lockstep_ends <= {until} or ({operation} = 'd' and {committed} <= {until} and _lockstep_number = 1))"
        )
        return f"delete from {self._target} where {_ROW} in ({gone}) returning {tag}"

    def erase(self, below: str) -> str:
        """Deletes the given key's versions, and returns their tags."""
        return self._key.erase(self._target, below, "")


class _Key:
    def __init__(self, shape: Shape) -> None:
        self._typed = _typed(shape.table.key_columns, shape)
        self.given = f"(select {self._typed} from {GIVEN}) as given where {_equal(shape.table.key)}"

    def numbers_up_to(self, purged: str) -> str:
        tag, index = quote_identifier(TAG_COLUMN), quote_identifier(INDEX)
        numbered = f"(select {self._typed}, {tag}, {index} from {GIVEN}) as given"
        return f"select given.{index} from {numbered} where given.{tag} <= '{purged}'"

    def erase(self, target: str, below: str, condition: str) -> str:
        tag = f"known.{quote_identifier(TAG_COLUMN)}"
        return f"delete from {target} as known using {self.given}{condition} and {tag} < '{below}' returning {tag}"


def rows_by_key_sql(target: str, shape: Shape, columns: Sequence[str]) -> str:
    key = _typed(shape.table.key_columns, shape)
    selection = ", ".join(f"known.{quote_identifier(name)}" for name in columns)
    return (
        f"select {selection} from {target} as known join (select distinct {key} from {GIVEN}) as given "
        f"on {_equal(shape.table.key)} where {live_condition(target, shape.table, of='known.')}"
    )


def _equal(names: Sequence[str]) -> str:
    return " and ".join(f"known.{quote_identifier(name)} = given.{quote_identifier(name)}" for name in names)


def _typed(columns: Sequence[Column], shape: Shape) -> str:
    """The given columns, cast to their types."""
    return ", ".join(
        f"cast({quote_identifier(column.name)} as {column_type(column, shape)}) as {quote_identifier(column.name)}"
        for column in columns
    )
