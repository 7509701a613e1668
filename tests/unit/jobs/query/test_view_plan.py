"""A view's settings and its tables' shapes: the plan, and by what several tasks divide it."""

import pytest

from jobs.query.view_plan import planned_view
from sinks.view_settings import TopSettings, ViewSettings
from tests.view_queries import TABLES
from views.failures import Refused

VIEW = ViewSettings(name="v", sql="select id, g from a where g is not null", key=("id",))


def test_a_view_is_divided_where_several_tasks_keep_it() -> None:
    assert planned_view(VIEW, TABLES).sharding is None
    sharding = planned_view(VIEW.model_copy(update={"tasks": 2}), TABLES).sharding
    assert sharding is not None
    assert sharding.key == "id"


def test_a_view_that_can_not_be_divided_is_refused_with_the_reason_and_the_remedy() -> None:
    top = TopSettings(per=("g",), order="id", n=3)
    with pytest.raises(Refused) as refused:
        planned_view(VIEW.model_copy(update={"tasks": 2, "top": top}), TABLES)
    (problem,) = refused.value.problems
    assert problem == (
        "tasks = 2: the view can't be divided by a column of its key: by id it can't be, since `top` isn't per id;"
        " leave `tasks` out, or give the view a key with a column that all of its groups, `distinct` and `top` are by"
    )
