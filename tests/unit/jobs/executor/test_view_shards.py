"""Which shard of a view a task keeps: it is told so with where the log is."""

from dataclasses import replace
from typing import Any

from cdc.model.table import TableName
from jobs.executor.log_reader import dump_ranges, load_ranges
from jobs.executor.task_input import Task, ViewInput
from jobs.executor.view_shards import of_shard, range_of_shard
from jobs.offsets import Offsets
from sinks.redis.settings import RedisSettings
from tests.view_queries import TABLES
from views.result import result_table
from views.shard import shards
from views.sharding import sharding_of
from views.sql.reader import read_view

PLAN = read_view("select id, g from a", TABLES, key=["id"])


def told(number: int, reached: Offsets) -> Offsets:
    """As it comes to the task."""
    return {part.at: part.end for part in load_ranges(dump_ranges(range_of_shard(number, reached)))}


def task(**view: Any) -> Task:
    table = result_table(PLAN, TABLES, TableName("views", "v"))
    of = ViewInput(PLAN, table, "/states/g1", "p", "shop", **view)
    return Task("v", RedisSettings(), 1, 1, {}, TABLES, 1, 1.0, "run", view=of)


def test_a_task_is_told_which_shard_it_keeps_and_where_that_is() -> None:
    divided = task(shards=tuple(shards(sharding_of(PLAN, 2), 2)))
    own, reached = of_shard(divided, told(1, {("t", 0): 7, ("u", 3): 9}))
    assert reached == {("t", 0): 7, ("u", 3): 9}
    assert own.view is not None
    assert divided.view is not None
    assert own.view == replace(divided.view, shard=divided.view.shards[1], directory="/states/g1/shard-2-of-2")
    own, reached = of_shard(divided, told(0, {}))
    assert own.view is not None
    assert own.view.shard is not None
    assert (own.view.shard.number, reached) == (0, {})


def test_the_task_of_a_view_that_is_not_divided_stays_as_it_is() -> None:
    plain = task()
    assert of_shard(plain, {("t", 0): 7}) == (plain, {("t", 0): 7})
