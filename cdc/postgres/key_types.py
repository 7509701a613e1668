"""The types of key columns as SQL compares them, whatever the search path is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

# Domains resolve to their base, and types have no modifier: a cast to varchar(3) would cut off a longer key and so find
# another row. The operators are those of the type's index order. Bare names would depend on the search path, which has
# none of an extension's.
_KEY_TYPES = """
with recursive resolved as (
    select k.place, t.oid, t.typtype, t.typbasetype
    from unnest(%s::oid[]) with ordinality as k(oid, place) join pg_type t on t.oid = k.oid
    union all
    select r.place, t.oid, t.typtype, t.typbasetype
    from resolved r join pg_type t on t.oid = r.typbasetype
    where r.typtype = 'd'
), operators as (
    select c.opcintype, a.amopstrategy, format('operator(%%I.%%s)', s.nspname, o.oprname) as operator
    from pg_opclass c
    join pg_am m on m.oid = c.opcmethod and m.amname = 'btree'
    join pg_amop a on a.amopfamily = c.opcfamily and a.amoplefttype = c.opcintype and a.amoprighttype = c.opcintype
    join pg_operator o on o.oid = a.amopopr
    join pg_namespace s on s.oid = o.oprnamespace
    where c.opcdefault
)
select format('%%I.%%I', n.nspname, t.typname),
    coalesce((select operator from operators where opcintype = t.oid and amopstrategy = 3), 'operator(pg_catalog.=)'),
    coalesce((select operator from operators where opcintype = t.oid and amopstrategy = 5), 'operator(pg_catalog.>)')
from resolved r join pg_type t on t.oid = r.oid join pg_namespace n on n.oid = t.typnamespace
where r.typtype <> 'd'
order by r.place
"""


@dataclass(frozen=True, slots=True)
class KeyType:
    """A type as SQL names it, and its operators."""

    sql: str
    equals: str
    greater: str


def key_types(connection: psycopg.Connection[Any], oids: Sequence[int]) -> list[KeyType]:
    """The types of these oids, in their order."""
    return [KeyType(*row) for row in connection.execute(_KEY_TYPES, (list(oids),)).fetchall()]


def after_key(names: Sequence[str], types: Sequence[KeyType], values: Sequence[str]) -> str:
    """The condition that a key of these columns sorts after these values in its index. All arguments are SQL."""
    if len({kind.greater for kind in types}) == 1:
        return f"({', '.join(names)}) {types[0].greater} ({', '.join(values)})"
    # A row comparison has one operator for all columns.
    first, *others = zip(names, types, values, strict=True)
    name, kind, value = first
    rest = after_key(*zip(*others, strict=True))
    return f"({name} {kind.greater} {value} or {name} {kind.equals} {value} and {rest})"
