"""Indexes that a sink's settings declare for its tables in the warehouse (pure)."""

import hashlib
from collections.abc import Collection
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from cdc.model.table import Table, quote_identifier
from cdc.settings import Settings
from sinks.warehouse.names import NAME_BYTES_MAX, listed

NAME_PREFIX: Final = "lockstep_index_"
"""The prefix of their names, which distinguishes them from indexes made by hand."""


class OwnIndex(Settings):
    """An index on ``columns``, by their names in the warehouse, or on an ``expression``.

    The expression is as between the parentheses of ``create index``. ``method`` and ``where`` are PostgreSQL's. It is
    never unique: rows arrive by key, not in the order of their changes, so two may share a value for a while.
    """

    columns: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    expression: str = ""
    method: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]*$")] = "btree"
    where: str = ""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if bool(self.columns) == bool(self.expression.strip()):
            raise ValueError("an index has columns or an expression, one of both")
        return self

    @property
    def on(self) -> str:
        return listed(self.columns) if self.columns else self.expression

    def name(self, relation: str) -> str:
        """Its name in a generation's schema. Another declaration has another name."""
        definition = "\0".join((relation, self.method, self.on, self.where))
        name = f"{NAME_PREFIX}{hashlib.sha256(definition.encode()).hexdigest()[:10]}_{relation}"
        return name.encode()[:NAME_BYTES_MAX].decode(errors="ignore")

    def sql(self, relation: str, target: str) -> str:
        """DDL; ``target`` is the relation with its schema."""
        where = f" where {self.where}" if self.where else ""
        name = quote_identifier(self.name(relation))
        return f"create index if not exists {name} on {target} using {self.method} ({self.on}){where}"

    def file_sql(self, relation: str, target: str) -> str:
        """DDL for DuckDB, which has one kind of index."""
        return f"create index if not exists {quote_identifier(self.name(relation))} on {target} ({self.on})"

    def file_problems(self) -> list[str]:
        problems = ["where: DuckDB has no indexes of some rows; leave it out"] if self.where else []
        if self.expression:
            # Rows are checked before they are written, so that none fails a whole batch. Expressions can't be.
            problems.append("expression: a value that it fails for would stop a batch; name columns")
        if self.method != "btree":
            problems.append("method: DuckDB has one kind of index; leave it out")
        return problems

    def arrays(self, table: Table) -> list[str]:
        """Its columns that are arrays in DuckDB. Arrays in a key are text there."""
        names = [column.name for column in table.columns if column.is_array and column.name not in table.key]
        return [name for name in self.columns if name in names]

    def unknown_columns(self, columns: Collection[str]) -> list[str]:
        return [name for name in self.columns if name not in columns]
