"""The settings of a view: the query whose result a sink holds. Pure data; ``views`` interprets it."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field, field_validator

from cdc.model.table import TableName
from cdc.settings import Settings

TASKS_MAX = 64
"""More tasks would waste their reading: each of them reads the whole log."""

_AGE: Final = re.compile(r"(?:(?P<days>\d{1,5})d)?\s*(?:(?P<hours>\d{1,6})h)?")

VIEWS_SCHEMA = "views"
"""A view's result is a table of this schema, under the view's name."""


def _are_distinct(columns: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise ValueError(f"names a column twice: {', '.join(twice)}")
    return columns


class TopSettings(Settings):
    """The first ``n`` rows for each value of ``per``, in an ``order`` written as in SQL: ``created_at desc``."""

    per: Annotated[tuple[str, ...], AfterValidator(_are_distinct)]
    order: Annotated[str, Field(min_length=1)]
    n: int = Field(ge=1)


class RetainSettings(Settings):
    """Rows of a ``table`` count up to this ``age`` (90d, 12h or 1d12h), by the time in one of their columns."""

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
        """A name without a schema is in ``public``, as in a query."""
        return _table_name(self.table)

    @property
    def hours(self) -> int:
        return _hours(self.age)


def _table_name(text: str) -> TableName:
    return TableName.parse(text if "." in text else f"public.{text}")


def _hours(age: str) -> int:
    """0 if the text is no age."""
    match = _AGE.fullmatch(age)
    return 0 if match is None else int(match["days"] or 0) * 24 + int(match["hours"] or 0)


class ViewSettings(Settings):
    """A view's ``name``, its query, and the columns that identify its rows.

    With ``retain`` only rows that aren't too old count. ``tasks`` is how many tasks maintain it in parallel, each with
    rows of its own.
    """

    name: str
    sql: Annotated[str, Field(min_length=1)]
    key: Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_are_distinct)]
    top: TopSettings | None = None
    retain: tuple[RetainSettings, ...] | None = None
    tasks: int = Field(default=1, ge=1, le=TASKS_MAX)

    @property
    def beyond_query(self) -> str:
        """The setting that makes the result differ from the query's; "" if there is none."""
        return "top" if self.top is not None else "retain" if self.retain else ""

    @property
    def table(self) -> TableName:
        return TableName(VIEWS_SCHEMA, self.name)
