"""The statistics of ``analyze``: rows of tables, and each column's values."""

from collections.abc import Collection
from typing import Any

import psycopg

from cdc.model.statistics import ColumnStatistics, TableStatistics
from cdc.model.table import TableName

_ROWS = """
select n.nspname, c.relname,
    case when c.relkind = 'p' and c.reltuples < 0
        then (select case when min(l.reltuples) >= 0 then sum(l.reltuples) else -1 end
            from pg_partition_tree(c.oid) t join pg_class l on l.oid = t.relid where t.isleaf)
        else c.reltuples end
from unnest(%s::text[], %s::text[]) as t(schema, name)
join pg_namespace n on n.nspname = t.schema
join pg_class c on c.relnamespace = n.oid and c.relname = t.name and c.relkind in ('r', 'p')
"""

# For a partitioned table, only the statistics of all its partitions together exist.
_COLUMNS = """
select s.schemaname, s.tablename, s.attname, s.n_distinct, coalesce(s.most_common_freqs[1], 0), s.null_frac, s.avg_width
from unnest(%s::text[], %s::text[]) as t(schema, name)
join pg_stats s on s.schemaname = t.schema and s.tablename = t.name
join pg_namespace n on n.nspname = t.schema
join pg_class c on c.relnamespace = n.oid and c.relname = t.name and s.inherited = (c.relkind = 'p')
"""


# Histograms divide the rows that are neither null nor among the most frequent values into equal parts.
_SHARE = """
select s.null_frac, avg((bound > now() - make_interval(hours => %(hours)s))::int)
from pg_stats s
join pg_namespace n on n.nspname = s.schemaname
join pg_class c on c.relnamespace = n.oid and c.relname = s.tablename and s.inherited = (c.relkind = 'p')
left join lateral unnest(
    coalesce(s.histogram_bounds::text::text[], s.most_common_vals::text::text[])::timestamptz[]
) as bound on true
where s.schemaname = %(schema)s and s.tablename = %(name)s and s.attname = %(column)s
group by s.null_frac
"""


def share_since(connection: psycopg.Connection[Any], table: TableName, column: str, *, hours: int) -> float:
    """The share of a table's rows whose time in a column is at most ``hours`` ago, or null. 1 without statistics."""
    values = {"hours": hours, "schema": table.schema, "name": table.name, "column": column}
    noted = connection.execute(_SHARE, values).fetchone()
    if noted is None or noted[1] is None:
        return 1.0
    nulls, since = float(noted[0]), float(noted[1])
    return nulls + (1 - nulls) * since


def table_statistics(
    connection: psycopg.Connection[Any], names: Collection[TableName]
) -> dict[TableName, TableStatistics]:
    """The statistics of those of these tables that were analysed. Columns that our role may not read are left out."""
    wanted = ([name.schema for name in names], [name.name for name in names])
    rows = {TableName(schema, name): count for schema, name, count in connection.execute(_ROWS, wanted).fetchall()}
    columns: dict[TableName, dict[str, ColumnStatistics]] = {name: {} for name in rows}
    for schema, name, column, distinct, most_common, nulls, width in connection.execute(_COLUMNS, wanted).fetchall():
        table = TableName(schema, name)
        # A negative number is a share of the rows.
        count = distinct if distinct >= 0 else -distinct * max(rows[table] or 0.0, 0.0)
        columns[table][column] = ColumnStatistics(count, most_common, nulls, width)
    return {
        name: TableStatistics(float(count), columns[name])
        for name, count in rows.items()
        if count is not None and count >= 0
    }
