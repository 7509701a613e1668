"""How a table's columns are stored, from the catalogue: what decides over TOAST."""

from typing import Any, Final

import psycopg

from cdc.model.table import Table
from cdc.postgres.catalogue import FAMILY
from cdc.toast.rule import ColumnFacts, ToastRule

# Domains resolve to their base. A type is an array if it is its element's array type, as in the catalogue module.
_COLUMNS = """
with recursive resolved as (
    select a.attnum, a.attname, a.attlen, a.attalign, t.oid, t.typtype, t.typbasetype
    from pg_attribute a join pg_type t on t.oid = a.atttypid
    where a.attrelid = %(table)s and a.attnum > 0 and not a.attisdropped and a.attgenerated <> 'v'
    union all
    select r.attnum, r.attname, r.attlen, r.attalign, t.oid, t.typtype, t.typbasetype
    from resolved r join pg_type t on t.oid = r.typbasetype
    where r.typtype = 'd'
), elements as (
    select a.oid as array_oid, e.oid, e.typtype, e.typbasetype, e.typlen, e.typalign
    from pg_type a join pg_type e on e.oid = a.typelem and e.typarray = a.oid
    where a.oid in (select oid from resolved)
    union all
    select e.array_oid, t.oid, t.typtype, t.typbasetype, e.typlen, e.typalign
    from elements e join pg_type t on t.oid = e.typbasetype
    where e.typtype = 'd'
), named as (
    select t.oid,
        case when t.oid < 16384 then t.typname::text else coalesce(x.extname || '.' || t.typname, '') end as name
    from (select oid from resolved union select oid from elements) used
    join pg_type t on t.oid = used.oid
    left join pg_depend d on d.classid = 'pg_type'::regclass and d.objid = t.oid
        and d.refclassid = 'pg_extension'::regclass and d.deptype = 'e'
    left join pg_extension x on x.oid = d.refobjid
)
select r.attname, n.name, r.attlen, r.attalign::text, m.name, e.typlen, e.typalign::text
from resolved r
join named n on n.oid = r.oid
left join elements e on e.array_oid = r.oid and e.typtype <> 'd'
left join named m on m.oid = e.oid
where r.typtype <> 'd'
order by r.attnum
"""

# Rows of a partitioned table are in its partitions, each of which has its own settings and dropped columns.
_STORAGE = f"""
{FAMILY}
select max(c.relnatts)::int,
    min((select o.option_value::int from pg_options_to_table(c.reloptions) o
        where o.option_name = 'toast_tuple_target')),
    current_setting('block_size')::int,
    (select pg_encoding_to_char(encoding) from pg_database where datname = current_database())
from family f join pg_class c on c.oid = f.oid
"""


_HAS_LESSER: Final = f"""
{FAMILY}
select exists (select from family f join pg_class c on c.oid = f.oid
    where c.relkind = 'r' and c.relreplident <> 'f' and c.oid <> %(table)s)
"""


def has_lesser_partitions(connection: psycopg.Connection[Any], table: Table) -> bool:
    """Whether the stream sends less than whole old rows for some partition, whatever it sends for the table."""
    row = connection.execute(_HAS_LESSER, {"table": table.oid}).fetchone()
    return bool(row and row[0])


def load_rule(connection: psycopg.Connection[Any], table: Table) -> ToastRule:
    """The rule of a table's shape. Load it with the shape and again with every Relation message, which ALTER TABLE SET
    (toast_tuple_target) causes too. If the catalogue doesn't fit the shape, being ahead or without the table, every
    value may be large."""
    published = {column.name for column in table.columns}
    facts = [
        ColumnFacts(
            name,
            type_name,
            length,
            alignment,
            name in published,
            element_name,
            -1 if element_length is None else element_length,
            element_alignment or "d",
        )
        for name, type_name, length, alignment, element_name, element_length, element_alignment in connection.execute(
            _COLUMNS, {"table": table.oid}
        ).fetchall()
    ]
    if [fact.name for fact in facts if fact.published] != [column.name for column in table.columns]:
        unknown = [ColumnFacts(column.name, "", -1, "i") for column in table.columns]
        return ToastRule(unknown, attributes=len(unknown))
    storage = connection.execute(_STORAGE, {"table": table.oid}).fetchone()
    assert storage is not None
    attributes, tuple_target, block_size, encoding = storage
    return ToastRule(facts, attributes=attributes, tuple_target=tuple_target, block_size=block_size, encoding=encoding)
