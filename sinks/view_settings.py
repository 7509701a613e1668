"""What is configured of a view: the query whose result a sink holds. Pure data; ``views`` knows what it means."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from cdc.model.table import TableName
from cdc.settings import Settings

TASKS_MAX = 64
"""More tasks than these would read the log for nothing: each of them reads all of it."""

VIEWS_SCHEMA = "views"
"""A view's result is a table of this schema, under the view's name."""


def _are_distinct(columns: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise ValueError(f"names a column twice: {', '.join(twice)}")
    return columns


class TopSettings(Settings):
    """The first ``n`` rows for each value of ``per``, in an ``order`` as SQL has it: ``created_at desc``."""

    per: Annotated[tuple[str, ...], AfterValidator(_are_distinct)]
    order: Annotated[str, Field(min_length=1)]
    n: int = Field(ge=1)


class RetainSettings(Settings):
    """Rows of a ``table`` count for so many ``days`` and ``hours`` after the time in one of their columns."""

    table: str
    column: Annotated[str, Field(min_length=1)]
    days: int = Field(default=0, ge=0, le=36_500)
    hours: int = Field(default=0, ge=0, le=876_000)

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = []
        if not self.days + self.hours:
            problems.append("for how long? Set days, hours or both")
        try:
            _ = self.table_name
        except ValueError as error:
            problems.append(f"table: {error}")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def table_name(self) -> TableName:
        """As in a query, one without a schema is in ``public``."""
        return TableName.parse(self.table if "." in self.table else f"public.{self.table}")


class ViewSettings(Settings):
    """The view of this ``name``: its query, and the columns by which its rows are told apart.

    With ``retain`` it is the query over those rows of tables that aren't too old. So many ``tasks`` keep
    it side by side, each with rows of its own.
    """

    name: str
    sql: Annotated[str, Field(min_length=1)]
    key: Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_are_distinct)]
    top: TopSettings | None = None
    retain: tuple[RetainSettings, ...] | None = None
    tasks: int = Field(default=1, ge=1, le=TASKS_MAX)

    @property
    def beyond_query(self) -> str:
        """The setting by which the result isn't that of the query alone; "" where it is."""
        return "top" if self.top is not None else "retain" if self.retain else ""

    @property
    def table(self) -> TableName:
        """What the result is called in its store."""
        return TableName(VIEWS_SCHEMA, self.name)
