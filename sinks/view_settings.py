"""What is configured of a view: the query whose result a sink holds. Pure data; ``views`` knows what it means."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from cdc.model.table import TableName

VIEWS_SCHEMA = "views"
"""A view's result is a table of this schema, under the view's name."""


def _are_distinct(columns: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise ValueError(f"names a column twice: {', '.join(twice)}")
    return columns


class TopSettings(BaseModel):
    """The first ``n`` rows for each value of ``per``, in an ``order`` as SQL has it: ``created_at desc``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    per: Annotated[tuple[str, ...], AfterValidator(_are_distinct)]
    order: Annotated[str, Field(min_length=1)]
    n: int = Field(ge=1)


class ViewSettings(BaseModel):
    """The view of this ``name``: its query, and the columns by which its rows are told apart."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    sql: Annotated[str, Field(min_length=1)]
    key: Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_are_distinct)]
    top: TopSettings | None = None

    @property
    def table(self) -> TableName:
        """What the result is called in its store."""
        return TableName(VIEWS_SCHEMA, self.name)
