"""What the captured tables are and how they are published, read from the catalogue: see ``cdc.protocol.membership``."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg

from cdc.model.table import TableName
from cdc.postgres.catalogue import FIRST_USER_OID
from cdc.postgres.versions import PUBLICATION_LISTS
from cdc.protocol.membership import Fact, Membership, Storage

# True if some column is as it was created with its table: ATTACH and DETACH rewrite every column of the partition.
_BORN: Final = """exists (select from pg_type t join pg_attribute a on a.attrelid = t.typrelid and a.attnum > 0
    where t.typrelid = i.inhrelid and a.xmin = t.xmin and a.cmin = t.cmin)"""

# About the relation ``c``, without taking locks. A partition that is being detached concurrently no longer counts. One
# that was created as such has its oid as file number until it is emptied or rewritten.
_STORAGE = f"""
c.relfilenode::bigint,
c.reltoastrelid::bigint,
c.relnatts::int,
(select coalesce(md5(string_agg(concat_ws(' ', a.attnum, a.xmin), ', ' order by a.attnum)), '')
 from pg_attribute a where a.attrelid = c.oid and a.attnum > 0),
(with recursive tree(relid, since, is_born) as (
    select i.inhrelid, i.xmin, {_BORN} from pg_inherits i where i.inhparent = c.oid and not i.inhdetachpending
    union all
    select i.inhrelid, i.xmin, is_born and {_BORN}
    from tree join pg_inherits i on i.inhparent = tree.relid and not i.inhdetachpending
 )
 select coalesce(jsonb_object_agg(f.oid, jsonb_build_array(f.relfilenode::text, tree.since::text,
    is_born and f.relpersistence = 'p' and (f.relkind = 'p' or f.relkind = 'r' and f.relfilenode = f.oid))), '{{}}')
 from tree join pg_class f on f.oid = tree.relid where c.relkind = 'p'),
not exists (select from pg_publication_rel r where r.prrelid = c.oid)
"""

# An entry of a partitioned table publishes its partitions too, and so does the entry of its schema.
_SELF_AND_ANCESTORS = "(select c.oid union all select * from pg_partition_ancestors(c.oid))"

_ENTRY = f"""
(select string_agg(concat_ws(' ', r.oid, r.xmin), ', ' order by r.oid) from pg_publication_rel r
 where r.prpubid = p.oid and r.prrelid in {_SELF_AND_ANCESTORS})
"""

# For a table that is published with its schema. Its place in the schema is a row of pg_depend, which only a move to
# another schema rewrites.
_SCHEMA = f"""
case when not p.puballtables and {_ENTRY} is null then concat_ws('; ',
    (select string_agg(concat_ws(' ', s.oid, s.xmin), ', ' order by s.oid) from pg_publication_namespace s
     where s.pnpubid = p.oid
       and s.pnnspid in (select f.relnamespace from pg_class f where f.oid in {_SELF_AND_ANCESTORS})),
    (select string_agg(d.xmin::text, ' ' order by d.objid) from pg_depend d
     where d.classid = 'pg_class'::regclass and d.objsubid = 0 and d.refclassid = 'pg_namespace'::regclass
       and d.objid in {_SELF_AND_ANCESTORS}))
end
"""

# The columns' names are as in ``key_text``.
_UNIQUES = """
(select coalesce(jsonb_object_agg(u.columns, u.oids), '{}') from (
    select (select jsonb_agg(a.attname order by a.attname)::text
        from unnest(i.indkey::int2[]) with ordinality as part(attnum, place)
        join pg_attribute a on a.attrelid = c.oid and a.attnum = part.attnum
        where part.place <= i.indnkeyatts) as columns,
        jsonb_agg(coalesce(k.oid, i.indexrelid)::bigint) as oids
    from pg_index i left join pg_constraint k on k.conindid = i.indexrelid and k.contype in ('p', 'u')
    where i.indrelid = c.oid and i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null
    group by 1) u)
"""

_KEYS = """
(select string_agg(concat_ws(' ', k.oid, k.condeferrable), ', ' order by k.oid) from pg_constraint k
 where k.conrelid = c.oid and (k.contype = 'p' or k.contype = 'u' and k.condeferrable))
"""

# Types of columns that aren't built in, and the types inside of those. A label or attribute unchanged since its type
# was created was written by the same command.
_TYPES = """
with recursive used(relation, type, age) as (
    select a.attrelid, a.atttypid, age(a.xmin) from pg_attribute a
    where a.attrelid = any(%(relations)s::oid[]) and a.attnum > 0 and not a.attisdropped and a.atttypid >= %(first)s
    union
    select used.relation, part.type, used.age
    from used join pg_type t on t.oid = used.type
    cross join lateral (
        select t.typbasetype
        union all select t.typelem
        union all select r.rngsubtype from pg_range r where t.oid in (r.rngtypid, r.rngmultitypid)
        union all select a.atttypid from pg_attribute a
        where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
    ) as part(type)
    where part.type >= %(first)s
)
select used.relation::bigint, t.oid::text,
    (select md5(string_agg(concat_ws(' ', a.attnum, a.atttypid, a.atttypmod, a.attisdropped), ', ' order by a.attnum))
     from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0),
    (select array_agg(e.oid::bigint order by e.oid) from pg_enum e where e.enumtypid = t.oid),
    (select array_agg(e.xmin::text order by e.oid) from pg_enum e where e.enumtypid = t.oid),
    exists (select from pg_enum e
        where e.enumtypid = t.oid and age(e.xmin) <= used.age and not (e.xmin = t.xmin and e.cmin = t.cmin))
    or exists (select from pg_attribute a
        where a.attrelid = t.typrelid and a.attnum > 0 and age(a.xmin) <= used.age
        and not (a.xmin = t.xmin and a.cmin = t.cmin))
from (select relation, type, max(age) as age from used group by relation, type) used
join pg_type t on t.oid = used.type
where t.typtype in ('c', 'e')
"""


def memberships(
    connection: psycopg.Connection[Any], publication: str, names: Sequence[TableName]
) -> dict[TableName, Membership]:
    """What each table is and how the publication sends it; unpublished tables are absent."""
    schema = _SCHEMA if connection.info.server_version >= PUBLICATION_LISTS else "null"
    rows = connection.execute(
        f"select t.schema, t.name, c.oid::bigint, concat_ws(' ', p.oid, p.xmin), {_ENTRY}, {schema}, {_KEYS},"
        f" {_UNIQUES}, {_STORAGE}"
        " from unnest(%s::text[], %s::text[]) as t(schema, name)"
        " join pg_namespace n on n.nspname = t.schema join pg_class c on c.relnamespace = n.oid and c.relname = t.name"
        " join pg_publication p on p.pubname = %s"
        " join pg_publication_tables m on m.pubname = p.pubname and m.schemaname = t.schema and m.tablename = t.name",
        ([name.schema for name in names], [name.name for name in names], publication),
    ).fetchall()
    composites, enums, altered = _types(connection, [row[2] for row in rows])
    return {
        TableName(row[0], row[1]): Membership(
            row[2],
            dict(zip(Fact, row[3:7], strict=True)),
            _storage(*row[8:]),
            composites.get(row[2], {}),
            enums.get(row[2], {}),
            row[7],
            altered.get(row[2], ()),
        )
        for row in rows
    }


def storage_of(connection: psycopg.Connection[Any], oid: int) -> Storage | None:
    """Where a relation's rows are now; None if it is gone. Waits for no lock."""
    row = connection.execute(f"select {_STORAGE} from pg_class c where c.oid = %s", (oid,)).fetchone()
    return _storage(*row) if row else None


def _storage(
    file: int,
    toast: int,
    attributes: int,
    columns: str,
    partitions: Mapping[str, tuple[str, str, bool]],
    can_be_unlogged: bool,
) -> Storage:
    files = {partition: its_file for partition, (its_file, _, _) in partitions.items()}
    attached = {partition: since for partition, (_, since, _) in partitions.items()}
    born = frozenset(partition for partition, (_, _, is_born) in partitions.items() if is_born)
    return Storage(file, toast, columns, attributes, files, attached, born, can_be_unlogged)


def _types(
    connection: psycopg.Connection[Any], oids: Sequence[int]
) -> tuple[Mapping[int, dict[str, str]], Mapping[int, dict[str, tuple[tuple[int, str], ...]]], Mapping[int, list[str]]]:
    """(composite types, enums, altered types) of each relation's columns, in the form of ``Membership``."""
    composites: dict[int, dict[str, str]] = {}
    enums: dict[int, dict[str, tuple[tuple[int, str], ...]]] = {}
    altered: dict[int, list[str]] = {}
    rows = connection.execute(_TYPES, {"relations": list(oids), "first": FIRST_USER_OID}).fetchall()
    for relation, type_oid, attributes, labels, written, is_altered in rows:
        if is_altered:
            altered.setdefault(relation, []).append(type_oid)
        if attributes is not None:
            composites.setdefault(relation, {})[type_oid] = attributes
        if labels is not None:
            enums.setdefault(relation, {})[type_oid] = tuple(zip(labels, written, strict=True))
    return composites, enums, altered
