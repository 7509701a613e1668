"""A generation's tables in a DuckDB file: created and altered.

A value that its column can't hold goes beside it into ``_exact`` (``values``), so a renamed column is renamed there
too.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Any

import orjson
import pyarrow as pa

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue
from cdc.model.table import Column, quote_identifier
from sinks.columns.arrow_columns import EXACT_COLUMN
from sinks.columns.shape import Shape
from sinks.warehouse.duckdb.connection import DuckDbConnection, registered
from sinks.warehouse.duckdb.errors import translated
from sinks.warehouse.duckdb.tables import GIVEN, Statements, column_type, create_history_sql, create_table_sql
from sinks.warehouse.duckdb.values import rows_of
from sinks.warehouse.history import aside_name
from sinks.warehouse.names import HISTORY_SUFFIX
from sinks.warehouse.own_indexes import NAME_PREFIX, OwnIndex
from sinks.warehouse.stored_table import GenerationSchema, StoredTable


class DuckDbDefinitions:
    def __init__(self, connection: DuckDbConnection, schema: GenerationSchema) -> None:
        self._connection = connection
        self._schema = schema

    def create(self, tables: Collection[StoredTable]) -> None:
        self._connection.run_all([create_table_sql(self._schema.table(held), held) for held in tables])

    def create_history(self, held: StoredTable) -> None:
        self._connection.run(create_history_sql(self._schema.history(held), held.shape))

    def alter(self, relation: str, before: StoredTable, held: StoredTable, added: Mapping[str, JsonValue]) -> None:
        target = self._schema.qualified(relation)
        steps = before.shape.steps_to(held.shape)
        # Through temporary names that nothing else has: columns may swap theirs.
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
                self._connection.run(add)
                continue
            # DuckDB rewrites no row for a default. Later rows must not get it.
            self._connection.run(f"{add} default {default}")
            self._connection.run(f"alter table {target} alter column {name} drop default")
            del values[column.name]
        if values:
            self._fill(target, held.shape, values)

    def drop_columns(self, held: StoredTable, names: Sequence[str], *, has_history: bool) -> None:
        if not names:
            return
        for name in names:
            self._connection.run(f"alter table {self._schema.table(held)} drop column {quote_identifier(name)}")
        self._rename_exact(self._schema.table(held), dict.fromkeys(names))
        if has_history:
            begin = 1 + self._set_aside(held)
            asides = {name: aside_name(name, number) for number, name in enumerate(names, begin)}
            for name, aside in asides.items():
                self._rename(self._schema.history(held), name, aside)
            self._rename_exact(self._schema.history(held), asides)

    def drop_key(self, held: StoredTable) -> None:
        """No table has one."""

    def add_keys(self, tables: Collection[StoredTable]) -> None:
        for held in sorted(tables, key=lambda held: held.name):
            self._connection.run(Statements(self._schema.table(held), held).tidy)

    def free_columns(self, tables: Collection[StoredTable]) -> bool:
        """DuckDB can't alter columns of a table that has an index, or had one when the transaction began."""
        names = [name for held in tables for name in self._indexes(held.name)]
        for name in names:
            self._connection.run(f"drop index {self._schema.qualified(name)}")
        return bool(names)

    def keep_indexes(self, wanted: Mapping[StoredTable, Sequence[OwnIndex]]) -> None:
        for held, indexes in wanted.items():
            columns = [column.name for column in held.shape.columns]
            declared = {index.name(held.name): index for index in indexes}
            there = self._indexes(held.name)
            for name in there - declared.keys():
                self._connection.run(f"drop index {self._schema.qualified(name)}")
            for name in sorted(declared.keys() - there):
                if not declared[name].unknown_columns(columns):
                    self._make_index(held, declared[name])

    def _make_index(self, held: StoredTable, index: OwnIndex) -> None:
        from sqlalchemy.exc import DBAPIError

        try:
            self._connection.run(index.file_sql(held.name, self._schema.table(held)))
        except DBAPIError as error:
            raise LockstepError(
                f"the index on {index.on!r} that indexes declares for {held.shape.table.name} can't be made: "
                f"{translated(error, self._connection.path).message}",
                hint="mend it in indexes of this sink, or leave it out, then start again",
            ) from error

    def _indexes(self, relation: str) -> set[str]:
        rows: Any = self._connection.execute(
            "select index_name from duckdb_indexes() where database_name = current_database() "
            "and schema_name = :schema and table_name = :relation and starts_with(index_name, :prefix)",
            schema=self._schema.name,
            relation=relation,
            prefix=NAME_PREFIX,
        )
        return {str(row[0]) for row in rows}

    def _default(self, column: Column, shape: Shape, value: JsonValue) -> str | None:
        """The value as an SQL constant; None if the column can't hold it, or if its text would be another value.

        It has to be a constant: after a process was killed, DuckDB reads what wasn't checkpointed again from the text.
        """
        given = rows_of(shape).filling({column.name: value})
        if given.column(EXACT_COLUMN)[0].is_valid:
            return None
        name, kind = quote_identifier(column.name), column_type(column, shape)
        with registered(self._connection, given):
            typed = f"select cast(given.{name} as {kind}) as value from {GIVEN} as given"
            query = f"select text, cast(text as {kind}) = value from (select value, cast(value as varchar) as text "
            found: Any = self._connection.run(f"{query}from ({typed}))").one()
        if not found[1]:
            return None
        quoted = str(found[0]).replace("'", "''")
        return f"cast('{quoted}' as {kind})"

    def _fill(self, target: str, shape: Shape, values: Mapping[str, JsonValue]) -> None:
        """Give these values to all existing rows."""
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
        with registered(self._connection, rows_of(shape).filling(values)):
            self._connection.run(
                f"update {target} as known set {', '.join([*assignments, beside])} from {GIVEN} as given"
            )

    def _rename(self, target: str, old: str, new: str) -> None:
        self._connection.run(f"alter table {target} rename column {quote_identifier(old)} to {quote_identifier(new)}")

    def _rename_exact(self, target: str, names: Mapping[str, str | None]) -> None:
        """Rename values in ``_exact`` whose columns were renamed, and remove those whose columns are gone."""
        exact = quote_identifier(EXACT_COLUMN)
        texts = [
            str(row[0])
            for row in self._connection.run(f"select distinct {exact} from {target} where {exact} is not null")
        ]
        held = [orjson.loads(text) for text in texts]
        kept = [{names.get(name, name): value for name, value in of.items()} for of in held]
        for of in kept:
            of.pop(None, None)
        after = [orjson.dumps(of).decode() if of else None for of in kept]
        with registered(
            self._connection, pa.table({"before": pa.array(texts, pa.string()), "after": pa.array(after, pa.string())})
        ):
            self._connection.run(
                f"update {target} as known set {exact} = given.after from {GIVEN} as given where known.{exact} = "
                "given.before"
            )

    def _set_aside(self, held: StoredTable) -> int:
        """How many columns of its history the source has dropped."""
        return int(
            self._connection.execute(
                "select count(*) from duckdb_columns() where database_name = current_database() and schema_name = "
                ":schema "
                "and table_name = :relation and starts_with(column_name, '_dropped_')",
                schema=self._schema.name,
                relation=held.name + HISTORY_SUFFIX,
            ).scalar_one()
        )
