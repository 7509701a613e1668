"""Finds columns that identify the rows of a query's result, for users who haven't named any."""

from collections.abc import Mapping
from itertools import combinations
from typing import Final

from cdc.model.table import Table, TableName
from views.failures import Refused
from views.sql.query_reader import QueryReader
from views.sql.refusals import Refuse
from views.sql.relations import settled
from views.sql.tables_read import query_tree

_COLUMNS_MAX: Final = 5


def shortest_key(sql: str, tables: Mapping[TableName, Table]) -> tuple[str, ...] | None:
    """The fewest columns that are a key of the result; of several possible keys, the first in the select list. None if
    there is no such key of at most five columns, or the query can't be read.
    """
    reader = QueryReader(tables)
    try:
        relation = settled(reader.read(query_tree(sql)))
    except (Refused, Refuse):
        return None
    fit = [name for name, made in relation.names.items() if made.type.has_one_form and relation.is_never_null(made)]
    for count in range(1, min(len(fit), _COLUMNS_MAX) + 1):
        for names in combinations(fit, count):
            if relation.is_unique(names):
                return names
    return None
