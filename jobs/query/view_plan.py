"""A view's settings and its tables' shapes -> what its job prepares and what its tasks maintain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdc.model.append_only import stored_tables
from cdc.model.table import Table, TableName
from sinks.view_settings import RetainSettings, ViewSettings
from views.plan import ViewPlan
from views.result import result_table
from views.shard import Sharding
from views.sharding import sharding_of
from views.sql.reader import RetainedRows, TopRows, read_view


@dataclass(frozen=True, slots=True)
class PlannedView:
    """The plan of a view, and its result as a table of the sink. ``sharding`` says how several tasks divide the view;
    None if one task maintains all of it."""

    plan: ViewPlan
    table: Table
    sharding: Sharding | None = None


def planned_view(settings: ViewSettings, tables: Mapping[TableName, Table]) -> PlannedView:
    """The plan over tables of these shapes. Raises Refused if the query can't be maintained, or not in shards. Raises
    LockstepError for an append-only table with a column whose name Lockstep needs itself."""
    retain = retained_rows(settings.retain or ())
    plan = read_view(settings.sql, stored_tables(tables), key=settings.key, top=top_rows(settings), retain=retain)
    sharding = None if settings.tasks == 1 else sharding_of(plan, settings.tasks)
    return PlannedView(plan, result_table(plan, tables, settings.table), sharding)


def retained_rows(retain: Sequence[RetainSettings]) -> list[RetainedRows]:
    """The setting ``retain``, in the form that the reader of queries takes."""
    return [RetainedRows(each.table_name, each.column, each.hours) for each in retain]


def top_rows(settings: ViewSettings) -> TopRows | None:
    """The setting ``top``, in the form that the reader of queries takes."""
    return None if settings.top is None else TopRows(settings.top.per, settings.top.order, settings.top.n)
