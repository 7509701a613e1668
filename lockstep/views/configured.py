"""Views as the configuration has them."""

from collections.abc import Mapping

from cdc.model.errors import ConfigurationError
from cdc.model.table import Table, TableName
from lockstep.config import Config
from lockstep.views.check import Question
from sinks.view_settings import ViewSettings
from views.plan import ViewPlan
from views.sql.reader import TopRows, read_view


def view_of(config: Config, name: str) -> ViewSettings:
    """A view's settings. Raises ConfigurationError for a name that isn't there."""
    views = config.views
    if name not in views:
        raise ConfigurationError(
            f"no such view: {name}", hint=f"views of this configuration: {', '.join(views) or 'none'}"
        )
    return views[name]


def top_rows(view: ViewSettings) -> TopRows | None:
    """Its setting ``top``."""
    return None if view.top is None else TopRows(view.top.per, view.top.order, view.top.n)


def question_of(view: ViewSettings) -> Question:
    """What is asked of a database of it."""
    return Question(view.sql, view.key, top_rows(view))


def plan_of(view: ViewSettings, tables: Mapping[TableName, Table]) -> ViewPlan:
    """Its plan over these shapes. Raises Refused."""
    return read_view(view.sql, tables, key=view.key, top=top_rows(view))
