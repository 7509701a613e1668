"""One generation's tables in a DuckDB file: written from Arrow and read into it.

**One process at a time.** DuckDB locks its file for as long as it is open, so it is open only while a transaction
lasts: jobs' workers, commands and readers take turns, and wait for each other up to ``lock_timeout_s``. Rows are made
ready before the file is opened. All of them have to be on one machine, with a file system that knows locks.

**A batch** is one transaction, as everywhere: rows whose key is there with an older tag are deleted, then those are
inserted whose key isn't there. What can't be a row of the table is known before, so no statement fails for the sake of
a row.

A value that its column can't hold goes into ``_exact``, beside it (``values``). So renaming a column renames it in
there as well.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from tempfile import TemporaryFile
from typing import Any, Final

import orjson
import pyarrow as pa

from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.event import JsonValue, TableEvents
from cdc.model.table import Column, Table, TableName, quote_identifier
from sinks.columns.exact_columns import DELETED_COLUMN, EXACT_COLUMN, Rows
from sinks.columns.shape import Shape, unprepared
from sinks.contract import Rejection, StoredRow, TableVersions
from sinks.warehouse.bookkeeping import WarehouseBookkeeping
from sinks.warehouse.dialect import Kept, Refuse, Storage, UnknownColumn
from sinks.warehouse.duckdb.connection import DuckDbConnection
from sinks.warehouse.duckdb.errors import translated
from sinks.warehouse.duckdb.tables import (
    GIVEN,
    INDEX,
    Statements,
    column_type,
    create_history_sql,
    create_table_sql,
    rows_by_key_sql,
)
from sinks.warehouse.duckdb.values import rows_of
from sinks.warehouse.duckdb.views import DuckDbViews
from sinks.warehouse.held_table import HeldTable
from sinks.warehouse.history import COMMITTED, OPERATION, aside_name
from sinks.warehouse.names import HISTORY_SUFFIX, qualified
from sinks.warehouse.own_indexes import NAME_PREFIX, OwnIndex
from sinks.warehouse.reader_views import live_condition
from sinks.warehouse.settings import WarehouseSettings

_SCAN_ROWS: Final = 8192

_TRIMMED_AT_ONCE: Final = 500_000
"""A history of so many versions is looked through as a whole."""

_TRIM_PORTIONS: Final = 64
"""In so many portions a longer one is. A portion reads the keys of all, and no more of the others."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A table that is written to."""

    rows: Rows
    statements: Statements
    has_history: bool


@dataclass(frozen=True, slots=True)
class _Given:
    """Events as rows, with the place of each row's event, and by their places why others have no row."""

    data: pa.Table
    indexes: Sequence[int]
    refused: Mapping[int, str]

    def without(self, unfit: Mapping[int, str]) -> "_Given":
        """Without these rows too."""
        if not unfit:
            return self
        fit = [number for number in range(self.data.num_rows) if number not in unfit]
        return replace(
            self._only(fit), refused={**self.refused, **{self.indexes[number]: why for number, why in unfit.items()}}
        )

    def rejections(self, events: TableEvents) -> list[Rejection]:
        return [Rejection(events[index], reason) for index, reason in sorted(self.refused.items())]

    def of_history(self, versions: TableVersions) -> "_Given":
        """With what a history says of each version, each version once.

        One may be there twice, and of a tombstone whose event is gone only the record's time is known, which is later.
        (DuckDB's own ``distinct on`` makes 0.0 of -0.0 in columns that it has nothing to do with.)
        """
        keys, tags, times_ms = versions.events.keys, versions.events.tags, versions.commit_times_ms
        earliest: dict[tuple[bytes, str], int] = {}
        for number, index in enumerate(self.indexes):
            known = earliest.setdefault((keys[index], tags[index]), number)
            if times_ms[index] < times_ms[self.indexes[known]]:
                earliest[keys[index], tags[index]] = number
        once = self if len(earliest) == len(self.indexes) else self._only(sorted(earliest.values()))
        times_us = pa.array([times_ms[index] * 1000 for index in once.indexes], pa.int64())
        operations = pa.array([versions.operations[index] for index in once.indexes], pa.string())
        data = once.data.drop_columns([DELETED_COLUMN])
        data = data.append_column(COMMITTED, times_us.cast(pa.timestamp("us", "UTC")))
        return replace(once, data=data.append_column(OPERATION, operations))

    def _only(self, numbers: Sequence[int]) -> "_Given":
        data = self.data.take(pa.array(numbers, pa.int64()))
        return replace(self, data=data, indexes=[self.indexes[number] for number in numbers])


class DuckDb:
    """Attaches the file for each transaction."""

    def __init__(self, name: str, settings: WarehouseSettings, *, views: str, schema: str, generation: int) -> None:
        _check_schemas(settings, views)
        self.connection = DuckDbConnection(settings, views=views, generation=generation)
        self.views = DuckDbViews(self.connection, views)
        self._schema = schema
        self._bookkeeping = WarehouseBookkeeping(self.connection, name, generation)
        self._written: dict[TableName, _Written] = {}
        self._given: dict[TableName, _Given] = {}
        self._given_versions: dict[TableName, _Given] = {}

    def create(self, tables: Collection[HeldTable]) -> None:
        self.connection.run_all([create_table_sql(self._qualified(held.name), held) for held in tables])

    def create_history(self, held: HeldTable) -> None:
        self.connection.run(create_history_sql(self._history(held), held.shape))

    def alter(self, relation: str, before: HeldTable, held: HeldTable, added: Mapping[str, JsonValue]) -> None:
        target = self._qualified(relation)
        steps = before.shape.steps_to(held.shape)
        # By way of names that nothing else has: columns may swap theirs.
        names = {column.name.lower() for column in (*before.shape.columns, *held.shape.columns)}
        spare = (name for name in (f"_lockstep_{number}" for number in count()) if name not in names)
        passing = dict(zip(steps.renamed, spare, strict=False))
        for old, name in passing.items():
            self._rename(target, old, name)
        for old, new in steps.renamed.items():
            self._rename(target, passing[old], new)
        if steps.renamed:
            self._rename_exact(target, steps.renamed)
        values = {column.name: added[column.name] for column in steps.added if added.get(column.name) is not None}
        for column in steps.added:
            name = quote_identifier(column.name)
            add = f"alter table {target} add column {name} {column_type(column, held.shape)}"
            default = self._default(column, held.shape, values[column.name]) if column.name in values else None
            if default is None:
                self.connection.run(add)
                continue
            # DuckDB writes no row for it. No later row may get it.
            self.connection.run(f"{add} default {default}")
            self.connection.run(f"alter table {target} alter column {name} drop default")
            del values[column.name]
        if values:
            self._fill(target, held.shape, values)

    def drop_columns(self, held: HeldTable, names: Sequence[str], *, has_history: bool) -> None:
        if not names:
            return
        for name in names:
            self.connection.run(f"alter table {self._qualified(held.name)} drop column {quote_identifier(name)}")
        self._rename_exact(self._qualified(held.name), dict.fromkeys(names))
        if has_history:
            begin = 1 + self._set_aside(held)
            asides = {name: aside_name(name, number) for number, name in enumerate(names, begin)}
            for name, aside in asides.items():
                self._rename(self._history(held), name, aside)
            self._rename_exact(self._history(held), asides)

    def has_rows(self, held: HeldTable) -> bool:
        return bool(self.connection.run(f"select exists (select 1 from {self._qualified(held.name)})").scalar())

    def storages(self, relations: Collection[str]) -> dict[str, Storage]:
        """A file has no numbers that last, and nobody else writes to it: what is said is that they are there."""
        return {relation: Storage() for relation in relations if self.connection.has_relation(self._schema, relation)}

    def keeps_rows(self, relation: str) -> bool:
        return True  # what isn't known to have another file has kept its own

    def bookkeeping_storage(self) -> Storage:
        return Storage()

    def drop_key(self, held: HeldTable) -> None:
        """No table has one."""

    def add_keys(self, tables: Collection[HeldTable]) -> None:
        for held in sorted(tables, key=lambda held: held.name):
            self.connection.run(self._statements(held).tidy)

    def free_columns(self, tables: Collection[HeldTable]) -> bool:
        """DuckDB alters no column of a table that has an index, or had one when the transaction began."""
        names = [name for held in tables for name in self._indexes(held.name)]
        for name in names:
            self.connection.run(f"drop index {self._qualified(name)}")
        return bool(names)

    def keep_indexes(self, wanted: Mapping[HeldTable, Sequence[OwnIndex]]) -> None:
        for held, indexes in wanted.items():
            columns = [column.name for column in held.shape.columns]
            declared = {index.name(held.name): index for index in indexes}
            there = self._indexes(held.name)
            for name in there - declared.keys():
                self.connection.run(f"drop index {self._qualified(name)}")
            for name in sorted(declared.keys() - there):
                if not declared[name].unknown_columns(columns):
                    self._make_index(held, declared[name])

    def look_at(self, tables: Sequence[HeldTable]) -> None:
        for held in tables:
            written = _Written(rows_of(held.shape), self._statements(held), held.has_history)
            self._written[held.shape.table.name] = written

    def forget(self) -> None:
        self._written.clear()

    def is_ready_for(self, name: TableName) -> bool:
        return name in self._written

    def keeps(self, name: TableName) -> bool:
        return name in self._written and self._written[name].has_history

    def make_ready(self, tables: Sequence[TableEvents], versions: Sequence[TableVersions]) -> None:
        """Rows become columns before the file is opened: that takes longer than writing them."""
        self._given = {events.table: self._encoded(events) for events in tables}
        self._given_versions = {history.events.table: self._encoded(history.events) for history in versions}

    def merge(
        self, events: TableEvents, rejections: list[Rejection], *, overwrite_equal_tags: bool, purged: str = ""
    ) -> int:
        statements = self._written[events.table].statements
        repeated = statements.repeated_after(purged) if purged else ""
        with self._checked(self._given[events.table], statements, repeated=repeated) as given:
            rejections += given.rejections(events)
            self.connection.run(statements.replace_again if overwrite_equal_tags else statements.replace)
            return int(self.connection.run(statements.insert).rowcount)

    def purge(self, held: HeldTable, *, older_than_s: float | None, below: str, rows_max: int) -> tuple[int, str]:
        if older_than_s is not None and not held.has_synced_at:
            return 0, ""
        gone = list(self.connection.run(self._statements(held).purge(older_than_s, below, rows_max)))
        return len(gone), max((str(row[0]) for row in gone), default="")

    def trim_history(
        self, held: HeldTable, *, complete_from_ms: int, below: str, first_block: int, blocks: int
    ) -> tuple[bool, str]:
        """In as many portions as there are blocks of so many: a portion has all versions of the keys that it has."""
        rows = int(self.connection.run(f"select count(*) from {self._history(held)}").scalar_one())
        portions = 1 if rows <= _TRIMMED_AT_ONCE else _TRIM_PORTIONS
        portion = first_block // blocks
        trim = self._statements(held).trim(complete_from_ms, below, portion=portion, portions=portions)
        return portion + 1 < portions, self._greatest(trim)

    def kept(self, held: HeldTable, key: Mapping[str, JsonValue]) -> Kept:
        with self._registered(pa.table(rows_of(held.shape).key_arrays([key]))):
            found: Any = self.connection.run(self._statements(held).deleted_of_key).scalar()
            versions: Any = 0
            if held.has_history:
                versions = self.connection.run(self._statements(held).versions_of_key).scalar()
        return Kept(found is not None, bool(found), int(versions))

    def erase(self, held: HeldTable, key: Mapping[str, JsonValue], *, below: str) -> tuple[str, str]:
        statements = self._statements(held)
        with self._registered(pa.table(rows_of(held.shape).key_arrays([key]))):
            erased = self._greatest(statements.erase_row(below))
            return erased, self._greatest(statements.erase_versions(below)) if held.has_history else ""

    def _greatest(self, deletion: str) -> str:
        """The greatest tag that a deletion has returned."""
        return max((str(row[0]) for row in self.connection.run(deletion)), default="")

    def append(self, events: TableEvents, rejections: list[Rejection]) -> int:
        statements = self._written[events.table].statements
        with self._checked(self._given[events.table], statements) as given:
            rejections += given.rejections(events)
            return int(self.connection.run(statements.append).rowcount)

    def keep(self, versions: TableVersions, refuse: Refuse, *, overwrite_equal_tags: bool, purged: str = "") -> None:
        statements = self._written[versions.events.table].statements
        given = self._given_versions[versions.events.table].of_history(versions)
        repeated = statements.repeated_version(purged) if purged else ""
        with self._checked(given, statements, repeated=repeated) as given:
            for index, reason in given.refused.items():
                refuse(versions.events.select([index]), reason)
            self.connection.run(statements.make_again if overwrite_equal_tags else statements.make_earlier)
            self.connection.run(statements.keep)

    def scan(self, relation: str, table: Table) -> Iterator[StoredRow]:
        """Copies the rows into a temporary file first.

        The caller may apply a batch between two rows, and may take its time.
        """
        with TemporaryFile() as copied:
            with self.connection.transaction():
                rows = self._rows(table)
                columns = ", ".join(map(quote_identifier, rows.columns_for(table)))
                target = self._qualified(relation)
                live = f"select {columns} from {target} where {live_condition(target, table)}"
                reader = self.connection.driver.sql(live).to_arrow_reader(_SCAN_ROWS)
                with pa.ipc.new_stream(copied, reader.schema) as writer:
                    for batch in reader:
                        writer.write_batch(batch)
            copied.seek(0)
            with pa.ipc.open_stream(copied) as stream:
                for batch in stream:
                    yield from rows.decode(batch, table)

    def rows(self, relation: str, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        if not keys:
            return
        with self.connection.transaction():
            rows = self._rows(table)
            query = rows_by_key_sql(self._qualified(relation), rows.shape, rows.columns_for(table))
            with self._registered(pa.table(rows.key_arrays(keys))):
                stored = self.connection.driver.sql(query).to_arrow_table()
        for batch in stored.to_batches():
            yield from rows.decode(batch, table)

    def _make_index(self, held: HeldTable, index: OwnIndex) -> None:
        from sqlalchemy.exc import DBAPIError

        try:
            self.connection.run(index.file_sql(held.name, self._qualified(held.name)))
        except DBAPIError as error:
            raise LockstepError(
                f"the index on {index.on!r} that indexes declares for {held.shape.table.name} can't be made: "
                f"{translated(error, self.connection.path).message}",
                hint="mend it in indexes of this sink, or leave it out, then start again",
            ) from error

    def _indexes(self, relation: str) -> set[str]:
        """The names of those that were made here."""
        rows: Any = self.connection.execute(
            "select index_name from duckdb_indexes() where database_name = current_database() "
            "and schema_name = :schema and table_name = :relation and starts_with(index_name, :prefix)",
            schema=self._schema,
            relation=relation,
            prefix=NAME_PREFIX,
        )
        return {str(row[0]) for row in rows}

    def _encoded(self, events: TableEvents) -> _Given:
        rows = self._written[events.table].rows
        parsed = list(events)
        if (name := rows.unknown(parsed)) is not None:
            raise UnknownColumn(events.table, name)
        data, refused = rows.encode_those_that_fit(parsed)
        return _Given(data, [index for index in range(len(parsed)) if index not in refused], refused)

    @contextmanager
    def _checked(self, given: _Given, statements: Statements, *, repeated: str = "") -> Iterator[_Given]:
        """Rows for statements to find, without those that DuckDB would refuse.

        ``repeated`` is the query for the numbers of rows that are repetitions: these are left out too.
        """
        unfit: dict[int, str] = {}
        with self._registered(given.data):
            for name, query in statements.find_bad.items():
                if self.connection.run(query.counted).scalar():
                    valid = [bool(row[0]) for row in self.connection.run(query.listed)]
                    unfit |= {
                        index: f"column {name!r}: no JSON" for index, is_valid in enumerate(valid) if not is_valid
                    }
        fit = given.without(unfit)
        with self._registered(fit.data if not repeated else self._without_repeated(fit.data, repeated)):
            yield fit

    def _without_repeated(self, data: pa.Table, repeated: str) -> pa.Table:
        numbered = data.append_column(INDEX, pa.array(range(data.num_rows), pa.int64()))
        with self._registered(numbered):
            again = {int(row[0]) for row in self.connection.run(repeated)}
        return data.take(pa.array([number for number in range(data.num_rows) if number not in again], pa.int64()))

    @contextmanager
    def _registered(self, data: pa.Table) -> Iterator[None]:
        self.connection.driver.register(GIVEN, data)
        yield
        self.connection.driver.unregister(GIVEN)  # with the connection, where something went wrong

    def _rows(self, table: Table) -> Rows:
        held = self._bookkeeping.tables().get(table.name) if self._bookkeeping.exist() else None
        if held is None:
            raise unprepared(table.name)
        return rows_of(held.shape)

    def _default(self, column: Column, shape: Shape, value: JsonValue) -> str | None:
        """The value as a constant of SQL; None where the column can't hold it, or its text would be another value.

        It has to be a constant: what a killed process hasn't checkpointed is read again from its text.
        """
        given = rows_of(shape).filling({column.name: value})
        if given.column(EXACT_COLUMN)[0].is_valid:
            return None
        name, kind = quote_identifier(column.name), column_type(column, shape)
        with self._registered(given):
            typed = f"select cast(given.{name} as {kind}) as value from {GIVEN} as given"
            query = f"select text, cast(text as {kind}) = value from (select value, cast(value as varchar) as text "
            found: Any = self.connection.run(f"{query}from ({typed}))").one()
        if not found[1]:
            return None
        quoted = str(found[0]).replace("'", "''")
        return f"cast('{quoted}' as {kind})"

    def _fill(self, target: str, shape: Shape, values: Mapping[str, JsonValue]) -> None:
        """Give these values to all rows that are there."""
        exact = quote_identifier(EXACT_COLUMN)
        columns = {column.name: column_type(column, shape) for column in shape.columns}
        assignments = [
            f"{quote_identifier(name)} = cast(given.{quote_identifier(name)} as {columns[name]})" for name in values
        ]
        beside = (
            f"{exact} = case when given.{exact} is null then known.{exact} when known.{exact} is null then "
            f"given.{exact} "
            f"else left(known.{exact}, -1) || ',' || substr(given.{exact}, 2) end"
        )
        with self._registered(rows_of(shape).filling(values)):
            self.connection.run(
                f"update {target} as known set {', '.join([*assignments, beside])} from {GIVEN} as given"
            )

    def _rename(self, target: str, old: str, new: str) -> None:
        self.connection.run(f"alter table {target} rename column {quote_identifier(old)} to {quote_identifier(new)}")

    def _rename_exact(self, target: str, names: Mapping[str, str | None]) -> None:
        """What ``_exact`` holds for columns that have other names now, or are gone."""
        exact = quote_identifier(EXACT_COLUMN)
        texts = [
            str(row[0])
            for row in self.connection.run(f"select distinct {exact} from {target} where {exact} is not null")
        ]
        held = [orjson.loads(text) for text in texts]
        kept = [{names.get(name, name): value for name, value in of.items()} for of in held]
        for of in kept:
            of.pop(None, None)
        after = [orjson.dumps(of).decode() if of else None for of in kept]
        with self._registered(
            pa.table({"before": pa.array(texts, pa.string()), "after": pa.array(after, pa.string())})
        ):
            self.connection.run(
                f"update {target} as known set {exact} = given.after from {GIVEN} as given where known.{exact} = "
                "given.before"
            )

    def _set_aside(self, held: HeldTable) -> int:
        """How many columns of its history the source has dropped."""
        return int(
            self.connection.execute(
                "select count(*) from duckdb_columns() where database_name = current_database() and schema_name = "
                ":schema "
                "and table_name = :relation and starts_with(column_name, '_dropped_')",
                schema=self._schema,
                relation=held.name + HISTORY_SUFFIX,
            ).scalar_one()
        )

    def _statements(self, held: HeldTable) -> Statements:
        return Statements(self._qualified(held.name), self._history(held), held)

    def _history(self, held: HeldTable) -> str:
        return self._qualified(held.name + HISTORY_SUFFIX)

    def _qualified(self, relation: str) -> str:
        return qualified(self._schema, relation)


def _check_schemas(settings: WarehouseSettings, views: str) -> None:
    """Raise ConfigurationError where one of our schemas would have the name by which DuckDB knows the file."""
    stem = settings.file.stem.lower()
    if stem in (views, "lockstep") or re.fullmatch(rf"{re.escape(views)}_g\d+", stem):
        raise ConfigurationError(
            f"the warehouse's file has the name {stem!r}, as one of the schemas in it has: DuckDB couldn't tell "
            "them apart in a query",
            hint="give the file another name, or set schema of this sink",
        )
