"""What ``analyze`` has noted of tables: rows, and each column's values."""

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

# Of a partitioned table only what was noted of all its partitions together is there.
_COLUMNS = """
select s.schemaname, s.tablename, s.attname, s.n_distinct, coalesce(s.most_common_freqs[1], 0), s.null_frac, s.avg_width
from unnest(%s::text[], %s::text[]) as t(schema, name)
join pg_stats s on s.schemaname = t.schema and s.tablename = t.name
join pg_namespace n on n.nspname = t.schema
join pg_class c on c.relnamespace = n.oid and c.relname = t.name and s.inherited = (c.relkind = 'p')
"""


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
