"""The catalogue's facts about the captured tables and their partitions, read at once so that judging them is pure."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from cdc.model.finding import as_owner
from cdc.model.table import ReplicaIdentity, TableName
from cdc.postgres.catalogue import PgType, declared_type, load_types, value_type

PARTITIONED = "p"
ORDINARY = "r"

_STRINGS = frozenset({"text", "varchar", "bpchar", "name", "char"})
_SHORT_ENOUGH = 512
"""A declared length up to which a column doesn't count as large."""

_FAMILY: Final = """
with recursive captured as (
    select c.oid
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    join unnest(%s::text[], %s::text[]) as t(schema, name) on n.nspname = t.schema and c.relname = t.name
), tree(root, oid) as (
    select oid, oid from captured
    union all
    select t.root, i.inhrelid from tree t join pg_inherits i on i.inhparent = t.oid
    join pg_class c on c.oid = i.inhrelid where c.relispartition
)
"""

_TREE = f"""
{_FAMILY}
select t.root::bigint, c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relpersistence::text,
    c.relreplident::text, c.reltoastrelid <> 0, pg_get_userbyid(c.relowner), pg_has_role(c.relowner, 'usage'),
    has_schema_privilege(n.oid, 'usage'), has_table_privilege(c.oid, 'select'),
    c.relkind in ('r', 'p') and row_security_active(c.oid),
    exists (select from pg_inherits i join pg_class k on k.oid = i.inhrelid
            where i.inhparent = c.oid and not k.relispartition),
    array(select array[pn.nspname::text, pc.relname::text] from pg_partition_ancestors(c.oid) as a(oid)
          join pg_class pc on pc.oid = a.oid join pg_namespace pn on pn.oid = pc.relnamespace where pc.oid <> c.oid)
from tree t join pg_class c on c.oid = t.oid join pg_namespace n on n.oid = c.relnamespace
order by n.nspname, c.relname
"""

# Maintenance rewrites none of these rows: its statistics are changed in place.
_DIGEST: Final = f"""
{_FAMILY}
select md5(concat_ws('; ',
    (select string_agg(concat_ws(' ', t.root, c.oid, c.xmin), ', ' order by t.root, c.oid)
     from tree t join pg_class c on c.oid = t.oid),
    (select string_agg(concat_ws(' ', i.indexrelid, i.xmin), ', ' order by i.indexrelid)
     from (select distinct oid from tree) t join pg_index i on i.indrelid = t.oid),
    (select string_agg(concat_ws(' ', a.attrelid, a.attnum, a.xmin), ', ' order by a.attrelid, a.attnum)
     from captured t join pg_attribute a on a.attrelid = t.oid where a.attnum > 0)))
"""

# For a domain, length and type are those of its base. A NOT NULL that was never validated (18) allows null in old rows.
_ATTRIBUTES = """
select a.attrelid::bigint, a.attname, format_type(a.atttypid, a.atttypmod), a.atttypid::bigint,
    a.attnotnull and not exists (select from pg_constraint k where k.conrelid = a.attrelid and k.contype = 'n'
        and k.conkey = array[a.attnum] and not k.convalidated),
    a.attgenerated::text, a.attlen = -1 and a.attstorage <> 'p',
    format_type(coalesce(nullif(t.typbasetype, 0), t.oid), null) in ('numeric', 'inet', 'cidr'),
    case when format_type(coalesce(nullif(t.typbasetype, 0), t.oid), null)
            in ('character varying', 'character', 'bit varying', 'bit')
        then greatest(a.atttypmod, t.typtypmod) else -1 end,
    has_column_privilege(a.attrelid, a.attnum, 'select')
from pg_attribute a join pg_type t on t.oid = a.atttypid
where a.attrelid = any(%s::oid[]) and a.attnum > 0 and not a.attisdropped
order by a.attrelid, a.attnum
"""

_INDEXES = """
select i.indrelid::bigint, c.relname, i.indisunique, i.indisprimary, i.indisvalid and i.indisready and i.indislive,
    i.indpred is null and i.indexprs is null, i.indimmediate, i.indisreplident,
    array(select coalesce(a.attname::text, '') from unnest(i.indkey::int2[]) with ordinality as k(attnum, place)
          left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
          where k.place <= i.indnkeyatts order by k.place)
from pg_index i join pg_class c on c.oid = i.indexrelid
where i.indrelid = any(%s::oid[]) order by c.relname
"""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column of the table, published or not. ``generated`` is ``s`` (stored), ``v`` (virtual) or empty.
    ``can_be_large``: its values can be stored out of line in practice, unlike numbers. ``is_long``: its type allows
    values of any length, or of hundreds of characters. ``is_opaque``: only PostgreSQL can parse its text."""

    name: str
    type_name: str
    is_not_null: bool
    generated: str
    can_be_large: bool
    is_long: bool
    is_opaque: bool
    is_readable: bool


@dataclass(frozen=True, slots=True)
class Index:
    """``columns`` are those that make it unique; ``is_plain``: neither partial nor over expressions."""

    name: str
    is_unique: bool
    is_primary: bool
    is_valid: bool
    is_plain: bool
    is_immediate: bool
    is_identity: bool
    columns: tuple[str, ...]

    @property
    def is_distinct(self) -> bool:
        """Whether the index itself allows it to be a key; its columns must also be NOT NULL."""
        return self.is_unique and self.is_valid and self.is_plain


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, or anything else of the name. ``leaves`` are the partitions that hold rows, at any depth."""

    oid: int
    name: TableName
    kind: str
    persistence: str
    identity: ReplicaIdentity
    has_toast: bool
    owner: str
    is_ours: bool
    may_use_schema: bool
    may_select: bool
    hides_rows: bool
    has_heirs: bool
    ancestors: tuple[TableName, ...]
    attributes: tuple[Attribute, ...]
    indexes: tuple[Index, ...]
    leaves: tuple["Relation", ...] = field(default=())

    @property
    def subject(self) -> str:
        return f"table {self.name}"

    @property
    def is_table(self) -> bool:
        """Whether its rows can be in the WAL."""
        return self.kind in (ORDINARY, PARTITIONED) and self.persistence == "p"

    @property
    def primary(self) -> Index | None:
        return next((index for index in self.indexes if index.is_primary and index.is_valid), None)

    @property
    def column_names(self) -> frozenset[str]:
        return frozenset(attribute.name for attribute in self.attributes)

    @property
    def generated(self) -> tuple[Attribute, ...]:
        return tuple(attribute for attribute in self.attributes if attribute.generated)

    def as_owner(self, *statements: str) -> str:
        """``as_owner`` with the relation's owner."""
        return as_owner(statements, owner=self.owner, is_ours=self.is_ours)

    def identity_columns(self) -> frozenset[str]:
        """The columns of the old row that PostgreSQL sends. Empty: it refuses UPDATE and DELETE once published."""
        if self.identity is ReplicaIdentity.FULL:
            return self.column_names
        if self.identity is ReplicaIdentity.DEFAULT:
            primary = self.primary
            return frozenset(primary.columns) if primary is not None and primary.is_immediate else frozenset()
        if self.identity is ReplicaIdentity.INDEX:
            return frozenset(column for index in self.indexes if index.is_identity for column in index.columns)
        return frozenset()

    def not_null(self, columns: Sequence[str]) -> bool:
        strict = {attribute.name for attribute in self.attributes if attribute.is_not_null}
        return strict.issuperset(columns)

    def large_columns(self) -> list[str]:
        """Columns whose values PostgreSQL can store out of line, and then doesn't resend when they didn't change. The
        server decides whether rows can get that long: only then does the table have a TOAST table."""
        stored = self.leaves or (self,)
        if not any(relation.has_toast for relation in stored) and (self.kind != PARTITIONED or self.leaves):
            return []
        candidates = [a for a in self.attributes if not a.generated]
        suspects = [a for a in candidates if a.is_long] or candidates
        return [a.name for a in suspects if a.can_be_large]


def family_digest(connection: psycopg.Connection[Any], names: Sequence[TableName]) -> str:
    """A digest that changes if anything that ``load_relations`` reads may have changed, as far as tables can be
    altered."""
    row = connection.execute(_DIGEST, ([name.schema for name in names], [name.name for name in names])).fetchone()
    return str(row[0]) if row else ""


def load_relations(connection: psycopg.Connection[Any], names: Sequence[TableName]) -> dict[TableName, Relation]:
    """Everything that has one of these names, with its partitions. Takes no lock and needs no privilege."""
    rows = connection.execute(_TREE, ([name.schema for name in names], [name.name for name in names])).fetchall()
    oids = sorted({row[1] for row in rows})
    types = load_types(connection)
    attributes: dict[int, list[Attribute]] = defaultdict(list)
    for row in connection.execute(_ATTRIBUTES, (oids,)).fetchall():
        owner_oid, name, type_name, type_oid, is_not_null, generated, varies, is_short, length, is_readable = row
        attributes[owner_oid].append(
            Attribute(
                name,
                declared_type(types, type_name),
                is_not_null,
                generated,
                varies and not is_short,
                varies and (length == -1 or length > _SHORT_ENOUGH),
                _is_opaque(types, type_oid),
                is_readable,
            )
        )
    indexes: dict[int, list[Index]] = defaultdict(list)
    for row in connection.execute(_INDEXES, (oids,)).fetchall():
        owner_oid, name, is_unique, is_primary, is_valid, is_plain, is_immediate, is_identity, columns = row
        indexes[owner_oid].append(
            Index(name, is_unique, is_primary, is_valid, is_plain, is_immediate, is_identity, tuple(columns))
        )
    leaves: dict[int, list[Relation]] = defaultdict(list)
    roots: list[tuple[int, tuple[Any, ...]]] = []
    for row in rows:
        if row[0] == row[1]:
            roots.append((row[1], row))
        elif row[4] != PARTITIONED:
            leaves[row[0]].append(_relation(row, attributes, indexes, ()))
    relations = [_relation(row, attributes, indexes, tuple(leaves[oid])) for oid, row in roots]
    return {relation.name: relation for relation in relations}


def _relation(
    row: tuple[Any, ...],
    attributes: dict[int, list[Attribute]],
    indexes: dict[int, list[Index]],
    leaves: tuple[Relation, ...],
) -> Relation:
    oid, schema, name, kind, persistence, identity, has_toast, owner, is_ours, *rights, ancestors = row[1:]
    may_use_schema, may_select, hides_rows, has_heirs = rights
    return Relation(
        oid=oid,
        name=TableName(schema, name),
        kind=kind,
        persistence=persistence,
        identity=ReplicaIdentity(identity),
        has_toast=has_toast,
        owner=owner,
        is_ours=is_ours,
        may_use_schema=may_use_schema,
        may_select=may_select,
        hides_rows=hides_rows,
        has_heirs=has_heirs,
        ancestors=tuple(TableName(*ancestor) for ancestor in ancestors),
        attributes=tuple(attributes[oid]),
        indexes=tuple(indexes[oid]),
        leaves=leaves,
    )


def _is_opaque(types: dict[int, PgType], oid: int) -> bool:
    """Whether only PostgreSQL can parse the text of the values: they are neither strings nor enums."""
    if value_type(types, oid)[0] != "text":
        return False
    pg_type = types.get(oid)
    while pg_type is not None:
        if pg_type.kind == "d":
            pg_type = types.get(pg_type.base_oid)
            continue
        element = types.get(pg_type.element_oid)
        if element is None or element.array_oid != pg_type.oid:
            break
        pg_type = element
    return pg_type is None or not (pg_type.kind == "e" or pg_type.name in _STRINGS)
