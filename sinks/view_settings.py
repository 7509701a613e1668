"""What is configured of a view: the query whose result a sink holds. Pure data; ``views`` knows what it means."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field, field_validator

from cdc.model.table import TableName
from cdc.settings import Settings

TASKS_MAX = 64
"""More tasks than these would read the log for nothing: each of them reads all of it."""

_AGE: Final = re.compile(r"(?:(?P<days>\d{1,5})d)?\s*(?:(?P<hours>\d{1,6})h)?")

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
    """Rows of a ``table`` count up to this ``age``, as 90d, 12h or 1d12h, by the time in one of their columns."""

    table: str
    column: Annotated[str, Field(min_length=1)]
    age: str

    @field_validator("table")
    @classmethod
    def _is_table(cls, table: str) -> str:
        _table_name(table)
        return table

    @field_validator("age")
    @classmethod
    def _is_age(cls, age: str) -> str:
        if not _hours(age):
            raise ValueError("isn't an age of days and hours, as 90d, 12h or 1d12h")
        return age

    @property
    def table_name(self) -> TableName:
        """As in a query, one without a schema is in ``public``."""
        return _table_name(self.table)

    @property
    def hours(self) -> int:
        """The age in hours."""
        return _hours(self.age)


def _table_name(text: str) -> TableName:
    return TableName.parse(text if "." in text else f"public.{text}")


def _hours(age: str) -> int:
    """0 for what is no age."""
    match = _AGE.fullmatch(age)
    return 0 if match is None else int(match["days"] or 0) * 24 + int(match["hours"] or 0)


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
