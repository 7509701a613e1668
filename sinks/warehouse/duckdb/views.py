"""The views that show the live generation to readers, in a DuckDB file.

All are replaced in one transaction, while nobody reads. DuckDB doesn't know what a view depends on: views that others
built on ours still find columns by their names, and fail if one of these is gone.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from sinks.warehouse.duckdb.connection import DuckDbConnection
from sinks.warehouse.names import qualified
from sinks.warehouse.reader_views import ViewDefinition


@dataclass(frozen=True, slots=True)
class View:
    relation: str
    name: str
    generations: frozenset[int]


class DuckDbViews:
    def __init__(self, connection: DuckDbConnection, schema: str) -> None:
        self._connection = connection
        self._schema = schema
        self._generation_schema = re.compile(re.escape(schema) + r"_g(?P<generation>\d+)")

    def marks(self) -> str | None:
        """None: checking all views is fast enough."""
        return None

    def held(self, relations: Mapping[str, str]) -> list[View]:
        rows: Iterable[Any] = self._connection.execute(
            "select view_name, sql from duckdb_views() where database_name = current_database() and schema_name = "
            ":view_schema "
            "union all select table_name, null from duckdb_tables() "
            "where database_name = current_database() and schema_name = :view_schema"
        )
        there: dict[str, str | None] = {name.lower(): query for name, query in rows}
        views = []
        for relation, what in sorted(relations.items()):
            if relation.lower() not in there:
                continue
            query = there[relation.lower()]
            generations: frozenset[int] = frozenset() if query is None else self._generations(query)
            if not generations:
                kind = "no view" if query is None else "a view of something else"
                raise LockstepError(
                    f"{qualified(self._schema, relation)}, the view by which readers find this sink's {what}, is "
                    f"{kind} now",
                    hint="it was replaced by hand: rename or remove what is there, then try again; nothing was changed",
                )
            views.append(View(relation, qualified(self._schema, relation), generations))
        return views

    def hold(self, relations: Mapping[str, str]) -> None:
        """A transaction has the file to itself."""

    def expose(self, wanted: Mapping[str, ViewDefinition], known: Mapping[str, str]) -> None:
        for view in self.held(known):
            if view.relation not in wanted:
                self._connection.run(f"drop view {view.name}")
        for relation, definition in sorted(wanted.items()):
            self._connection.run(f"create or replace view {qualified(self._schema, relation)} as {definition.query}")

    def rename_columns(self, relations: Mapping[str, str], renamed: Mapping[str, str]) -> None:
        """``expose`` replaces them."""

    def _generations(self, query: str) -> frozenset[int]:
        """The generations whose tables a view reads; none if it reads anything else."""
        driver: Any = self._connection.driver
        names: Sequence[str] = sorted(driver.get_table_names(_selection(query), qualified=True))
        schemas = [self._generation_schema.fullmatch(_schema_of(name)) for name in names]
        if None in schemas:
            return frozenset()
        return frozenset(int(match["generation"]) for match in schemas if match is not None)


def _selection(query: str) -> str:
    """The text after ``create view ... as``. A quoted name and a column list may hold these words, too."""
    name = r'(?:"(?:[^"]|"")*"|[^\s".(]+)'
    match = re.match(
        rf"create\s+view\s+{name}(?:\.{name}){{0,2}}\s*(?:\((?:\"(?:[^\"]|\"\")*\"|[^\"()])*\))?\s*as\s", query, re.I
    )
    return query if match is None else query[match.end() :]


def _schema_of(name: str) -> str:
    try:
        return TableName.parse(name).schema
    except ValueError:
        return ""
