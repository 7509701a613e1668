"""Tables' shapes from the catalogue: columns as published, key, replica identity, and each type's built-in type."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg

from cdc.model.table import Column, ReplicaIdentity, Table, TableName
from cdc.postgres.versions import GENERATED_COLUMNS, PUBLICATION_LISTS
from cdc.protocol.added_column import Holder

_TYPE_SUFFIX = re.compile(r"[(\[].*$")
"""A type's modifier, and the brackets of an array."""

FIRST_USER_OID = 16384
"""Types with lower oids are built in and the same in every server."""


@dataclass(frozen=True, slots=True)
class PgType:
    """A row of ``pg_type``; ``kind`` is its ``typtype``, ``delimiter`` separates its values in arrays."""

    oid: int
    name: str
    kind: str
    base_oid: int
    element_oid: int
    array_oid: int
    delimiter: str


def load_types(connection: psycopg.Connection[Any]) -> dict[int, PgType]:
    """All types by oid: a few hundred rows."""
    rows = connection.execute(
        "select oid::bigint, typname, typtype::text, typbasetype::bigint, typelem::bigint, typarray::bigint,"
        " typdelim::text from pg_type"
    ).fetchall()
    return {row[0]: PgType(*row) for row in rows}


def declared_type(types: Mapping[int, PgType], text: str) -> str:
    """The name of a declared type. ``text`` is ``format_type``'s output in our sessions, which includes schemas. Types
    in ``public`` lose their schema, unless a built-in type has the name. Schema ids depend on this."""
    name = text.removeprefix("public.")
    if name == text:
        return text
    plain = _TYPE_SUFFIX.sub("", name).strip('"')
    is_built_in = any(pg_type.name == plain for pg_type in types.values() if pg_type.oid < FIRST_USER_OID)
    return text if is_built_in else name


def value_type(types: Mapping[int, PgType], oid: int) -> tuple[str, bool]:
    """What a type's values are: the name of a built-in type, and whether they are arrays of it. Domains resolve to
    their base, also inside arrays. Enums, composites, ranges and extensions' types are ``text``."""
    pg_type = types.get(oid)
    while pg_type is not None and pg_type.kind == "d":
        pg_type = types.get(pg_type.base_oid)
    if pg_type is None:
        return "text", False
    element = types.get(pg_type.element_oid)
    if element is not None and element.array_oid == pg_type.oid:
        name, nested = value_type(types, element.oid)
        # A domain over an array inside an array has no form of its own. An extension's type may have another separator
        # (PostGIS has colons). For both, the text is exact.
        return ("text", False) if nested or (element.delimiter != "," and name != "box") else (name, True)
    if pg_type.kind == "b" and pg_type.oid < FIRST_USER_OID:
        return pg_type.name, False
    return "text", False


class KnownTypes:
    """A cache of the types, which are at least two per table. What is read here of a type never changes."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._types: Mapping[int, PgType] = {}

    def with_all(self, oids: Iterable[int]) -> Mapping[int, PgType]:
        """All types, read again if one of these is missing."""
        if any(oid not in self._types for oid in oids):
            self._types = load_types(self._connection)
        return self._types


_SHAPE: Final = """
select n.nspname, c.relname, c.oid::bigint, c.relreplident::text,
    array(select a.attname from pg_index i
        cross join lateral unnest(i.indkey::int2[]) with ordinality as k(attnum, place)
        join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
        where i.indrelid = c.oid and i.indisprimary and k.place <= i.indnkeyatts order by k.place)::text[],
    l.numbers, l.names, l.types, l.modifiers, l.declared, l.generated
from pg_class c join pg_namespace n on n.oid = c.relnamespace
cross join lateral (
    select array_agg(a.attnum::int), array_agg(a.attname::text), array_agg(a.atttypid::bigint),
        array_agg(a.atttypmod), array_agg(format_type(a.atttypid, a.atttypmod)), array_agg(a.attgenerated <> '')
    from (select * from pg_attribute where attrelid = c.oid and attnum > 0 and not attisdropped order by attnum) a
) l(numbers, names, types, modifiers, declared, generated)
"""


def table_of_oid(connection: psycopg.Connection[Any], oid: int, types: KnownTypes) -> Table | None:
    """The relation's present shape with all of its columns; None if it is gone."""
    row = connection.execute(f"{_SHAPE} where c.oid = %s and c.relkind in ('r', 'p')", (oid,)).fetchone()
    return None if row is None else _table(row, types, None, ())


def load_tables(
    connection: psycopg.Connection[Any],
    names: Sequence[TableName],
    publication: str | None,
    keys: Mapping[TableName, Sequence[str]] | None = None,
) -> dict[TableName, Table]:
    """The shapes of the existing tables, with the columns that the publication sends (None: all). ``keys`` are
    configured ones; otherwise a table's key is its primary key. A table with neither has an empty ``key``."""
    types = KnownTypes(connection)
    # PostgreSQL 15 lists stored generated columns as published, but sends none of them.
    sends_generated = connection.info.server_version >= GENERATED_COLUMNS
    published = _published_columns(connection, publication) if publication else {}
    rows = connection.execute(
        f"{_SHAPE} join unnest(%s::text[], %s::text[]) as t(schema, name)"
        " on t.schema = n.nspname and t.name = c.relname where c.relkind in ('r', 'p')",
        ([name.schema for name in names], [name.name for name in names]),
    ).fetchall()
    found = {TableName(row[0], row[1]): row for row in rows}
    tables = {}
    for name in names:
        if name in found:
            table = _table(found[name], types, published.get(name), published.get(name, ()) if sends_generated else ())
            tables[name] = replace(table, key=tuple((keys or {}).get(name) or table.key))
    return tables


def _table(
    row: tuple[Any, ...], types: KnownTypes, published: Collection[str] | None, generated: Collection[str]
) -> Table:
    """A row of ``_SHAPE`` as a table, with only the ``published`` columns (None: all) and the ``generated`` ones
    listed."""
    schema, name, oid, identity, key, *by_column = row
    of_columns = list(zip(*(values or () for values in by_column), strict=True))
    known = types.with_all(column[2] for column in of_columns)
    columns = []
    for number, column, type_oid, modifier, type_name, is_generated in of_columns:
        if (is_generated and column not in generated) or (published is not None and column not in published):
            continue
        base, is_array = value_type(known, type_oid)
        columns.append(Column(column, declared_type(known, type_name), base, is_array, type_oid, modifier, number))
    return Table(TableName(schema, name), tuple(columns), tuple(key), ReplicaIdentity(identity), oid)


def keys_can_swap(connection: psycopg.Connection[Any], table: Table) -> bool:
    """Whether the key is checked late, so that two rows may share one for a moment. Only an immediate unique index on
    columns of the key alone rules that out. Other constraints don't matter."""
    numbers = [column.number for column in table.key_columns if column.number]
    names = [column.name for column in table.key_columns if not column.number]
    row = connection.execute(
        "with key as (select array_agg(attnum) as columns from pg_attribute"
        "   where attrelid = %s and (attnum = any(%s::int2[]) or attname = any(%s)))"
        " select not exists (select from pg_index i where i.indrelid = c.oid"
        "   and i.indisunique and i.indimmediate and i.indisvalid and i.indpred is null and i.indexprs is null"
        "   and (i.indkey::int2[])[0:i.indnkeyatts - 1] <@ key.columns)"
        " from pg_class c, key where c.oid = %s",
        (table.oid, numbers, names, table.oid),
    ).fetchone()
    return bool(table.key and row and row[0])


FAMILY: Final = """
with recursive family as (
    select %(table)s::oid as oid
    union all
    select i.inhrelid from family f join pg_inherits i on i.inhparent = f.oid
    join pg_class c on c.oid = f.oid and c.relkind = 'p'
)
"""
"""A table and its partitions, at any depth."""

_HOLDERS: Final = f"""
{FAMILY}
select c.oid::bigint, c.relfilenode::text, coalesce(a.attnum, 0)::int, coalesce(a.atthasmissing, false),
    array_to_string(a.attmissingval, ''),
    (select min(k.attnum)::int from pg_attribute k where k.attrelid = c.oid and k.atthasmissing)
from family f join pg_class c on c.oid = f.oid and c.relkind <> 'p'
left join pg_attribute a on a.attrelid = c.oid and a.attname = %(column)s and not a.attisdropped
"""


def column_holders(connection: psycopg.Connection[Any], oid: int, column: str) -> list[Holder]:
    """What each relation with a table's rows stores of a column for rows older than the column."""
    # attmissingval is an array of one element, whatever the column's type. Its text has the separator of that type.
    rows = connection.execute(_HOLDERS, {"table": oid, "column": column}).fetchall()
    return [Holder(*row) for row in rows]


def name_of_oid(connection: psycopg.Connection[Any], oid: int) -> TableName | None:
    """A relation's present name; None if it is gone."""
    row = connection.execute(
        "select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = %s",
        (oid,),
    ).fetchone()
    return TableName(row[0], row[1]) if row else None


def unpublished_kinds(connection: psycopg.Connection[Any], publication: str) -> list[str]:
    """The kinds of changes that an existing publication leaves out."""
    row = connection.execute(
        "select pubinsert, pubupdate, pubdelete, pubtruncate from pg_publication where pubname = %s", (publication,)
    ).fetchone()
    kinds = ("insert", "update", "delete", "truncate")
    return [] if row is None else [kind for kind, sent in zip(kinds, row, strict=True) if not sent]


def row_filters(connection: psycopg.Connection[Any], publication: str) -> dict[TableName, str]:
    """Table -> the SQL condition of the rows that the publication sends, if it has one."""
    if connection.info.server_version < PUBLICATION_LISTS:
        return {}
    rows = connection.execute(
        "select schemaname, tablename, rowfilter from pg_publication_tables"
        " where pubname = %s and rowfilter is not null",
        (publication,),
    ).fetchall()
    return {TableName(row[0], row[1]): row[2] for row in rows}


def _published_columns(connection: psycopg.Connection[Any], publication: str) -> dict[TableName, frozenset[str]]:
    """Table -> published columns, if the server shows them (15 and later: column lists, generated columns)."""
    if connection.info.server_version < PUBLICATION_LISTS:
        return {}
    rows = connection.execute(
        "select schemaname, tablename, attnames::text[] from pg_publication_tables where pubname = %s", (publication,)
    ).fetchall()
    return {TableName(row[0], row[1]): frozenset(row[2]) for row in rows if row[2] is not None}
