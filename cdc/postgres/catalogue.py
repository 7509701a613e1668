"""Tables' shapes from the catalogue: columns as published, key, replica identity, and what each type comes down to."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from cdc.model.table import Column, ReplicaIdentity, Table, TableName
from cdc.postgres.versions import GENERATED_COLUMNS, PUBLICATION_LISTS

_TYPE_SUFFIX = re.compile(r"[(\[].*$")
"""A type's modifier, and the brackets of an array."""

FIRST_USER_OID = 16384
"""Types below are built in and the same in every server."""


@dataclass(frozen=True, slots=True)
class PgType:
    """A row of ``pg_type``; ``kind`` is its ``typtype``, ``delimiter`` what separates it in arrays."""

    oid: int
    name: str
    kind: str
    base_oid: int
    element_oid: int
    array_oid: int
    delimiter: str


def load_types(connection: psycopg.Connection[Any]) -> dict[int, PgType]:
    """All types by oid. A few hundred rows, read once."""
    rows = connection.execute(
        "select oid::bigint, typname, typtype::text, typbasetype::bigint, typelem::bigint, typarray::bigint,"
        " typdelim::text from pg_type"
    ).fetchall()
    return {row[0]: PgType(*row) for row in rows}


def declared_type(types: Mapping[int, PgType], text: str) -> str:
    """The name of a declared type. ``text`` is ``format_type``'s in our sessions, where names have their schemas.

    Types in ``public`` go by their names alone, as they do for people, unless a built-in one has it. Schema ids depend
    on it.
    """
    name = text.removeprefix("public.")
    plain = _TYPE_SUFFIX.sub("", name).strip('"')
    is_built_in = any(pg_type.name == plain for pg_type in types.values() if pg_type.oid < FIRST_USER_OID)
    return text if is_built_in else name


def value_type(types: Mapping[int, PgType], oid: int) -> tuple[str, bool]:
    """What values of a type are: a built-in type's name, and whether they are arrays of it.

    Domains come down to their base, also inside arrays. Enums, composites, ranges and extensions' types are ``text``.
    """
    pg_type = types.get(oid)
    while pg_type is not None and pg_type.kind == "d":
        pg_type = types.get(pg_type.base_oid)
    if pg_type is None:
        return "text", False
    element = types.get(pg_type.element_oid)
    if element is not None and element.array_oid == pg_type.oid:
        name, nested = value_type(types, element.oid)
        # A domain over an array inside an array has no form of its own. An extension's type may have another separator
        # (PostGIS has colons). The text of both is exact.
        return ("text", False) if nested or (element.delimiter != "," and name != "box") else (name, True)
    if pg_type.kind == "b" and pg_type.oid < FIRST_USER_OID:
        return pg_type.name, False
    return "text", False


def table_of_oid(connection: psycopg.Connection[Any], oid: int) -> Table | None:
    """The shape that a relation has by now, whatever of it is published; None when it is gone."""
    row = connection.execute(
        "select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = %s",
        (oid,),
    ).fetchone()
    if row is None:
        return None
    name = TableName(row[0], row[1])
    return load_tables(connection, [name], None).get(name)


def load_tables(
    connection: psycopg.Connection[Any],
    names: Sequence[TableName],
    publication: str | None,
    keys: Mapping[TableName, Sequence[str]] | None = None,
) -> dict[TableName, Table]:
    """The shapes of the tables that exist, with the columns that the publication sends (all, where it is None).

    ``keys`` are configured ones; else a table's key is its primary key. A table with neither has an empty ``key``.
    """
    types = load_types(connection)
    # 15 names stored generated columns among those that it publishes, and sends none of them.
    sends_generated = connection.info.server_version >= GENERATED_COLUMNS
    published = _published_columns(connection, publication) if publication else {}
    tables = {}
    for name in names:
        row = connection.execute(
            "select c.oid::bigint, c.relreplident::text from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            " where n.nspname = %s and c.relname = %s and c.relkind in ('r', 'p')",
            (name.schema, name.name),
        ).fetchone()
        if row is None:
            continue
        oid, identity = row
        columns = []
        for number, column, type_oid, modifier, type_name in connection.execute(
            "select attnum, attname, atttypid::bigint, atttypmod, format_type(atttypid, atttypmod) from pg_attribute"
            " where attrelid = %s and attnum > 0 and not attisdropped and (attgenerated = '' or attname = any(%s))"
            " order by attnum",
            (oid, list(published.get(name, ())) if sends_generated else []),
        ).fetchall():
            if published.get(name) is not None and column not in published[name]:
                continue
            base, is_array = value_type(types, type_oid)
            declared = declared_type(types, type_name)
            columns.append(Column(column, declared, base, is_array, type_oid, modifier, number))
        key = tuple((keys or {}).get(name) or primary_key(connection, oid))
        tables[name] = Table(name, tuple(columns), key, ReplicaIdentity(identity), oid)
    return tables


def primary_key(connection: psycopg.Connection[Any], oid: int) -> tuple[str, ...]:
    """The columns of a relation's primary key, in its order; empty when it has none."""
    rows = connection.execute(
        "select a.attname from pg_index i"
        " cross join lateral unnest(i.indkey::int2[]) with ordinality as k(attnum, place)"
        " join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum"
        " where i.indrelid = %s and i.indisprimary and k.place <= i.indnkeyatts order by k.place",
        (oid,),
    ).fetchall()
    return tuple(row[0] for row in rows)


def keys_can_swap(connection: psycopg.Connection[Any], table: Table) -> bool:
    """Whether the key of a table's events is checked only later, so that for a moment two rows may have one.

    Only an index that is checked at once, on columns of the key alone, rules that out. Other constraints don't matter.
    """
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


@dataclass(frozen=True, slots=True)
class Default:
    """What rows from before a column was added have in it: ``text`` in PostgreSQL's own form.

    ``is_known`` is False when every row got a value of its own (a volatile default, an identity, a generated column).
    The table was rewritten then, and the stream shows nothing of it.
    """

    text: str | None
    is_known: bool


def added_column_default(connection: psycopg.Connection[Any], oid: int, column: str) -> Default:
    """The default that a column was added with, as far as the catalogue still knows it."""
    row = connection.execute(
        # attmissingval is an array of one element, whatever the column's type.
        "select atthasmissing, (attmissingval::text::text[])[1], atthasdef or attidentity <> ''"
        " from pg_attribute where attrelid = %s and attname = %s and not attisdropped",
        (oid, column),
    ).fetchone()
    if row is None:  # gone again by now
        return Default(None, is_known=False)
    has_missing, text, has_default = row
    if has_missing:
        return Default(text, is_known=True)
    return Default(None, is_known=not has_default)


def name_of_oid(connection: psycopg.Connection[Any], oid: int) -> TableName | None:
    """A relation's name as of now; None when it is gone."""
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
    """Table -> the SQL condition of the rows that the publication sends, where it has one."""
    if connection.info.server_version < PUBLICATION_LISTS:
        return {}
    rows = connection.execute(
        "select schemaname, tablename, rowfilter from pg_publication_tables"
        " where pubname = %s and rowfilter is not null",
        (publication,),
    ).fetchall()
    return {TableName(row[0], row[1]): row[2] for row in rows}


def _published_columns(connection: psycopg.Connection[Any], publication: str) -> dict[TableName, frozenset[str]]:
    """Table -> published columns, where the server can tell (15 and later: column lists, generated columns)."""
    if connection.info.server_version < PUBLICATION_LISTS:
        return {}
    rows = connection.execute(
        "select schemaname, tablename, attnames::text[] from pg_publication_tables where pubname = %s", (publication,)
    ).fetchall()
    return {TableName(row[0], row[1]): frozenset(row[2]) for row in rows if row[2] is not None}
