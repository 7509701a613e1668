"""What a sink's job is about."""

from typing import Any, cast

import pytest

from cdc.model.table import TableName
from jobs.batch_limits import PARTITIONS_MAX
from jobs.query.sink_plan import SinkPlan, goes_on
from jobs.settings import SparkSettings
from sinks.delta.settings import DeltaSettings
from sinks.redis.settings import RedisSettings
from sinks.registry import SinkSettings
from sinks.warehouse.settings import WarehouseSettings

TABLES = [TableName("public", "a"), TableName("public", "b")]
ADDRESS = "postgresql+psycopg://nowhere/w"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (RedisSettings(url="redis://nowhere"), True),
        (RedisSettings(url="redis://nowhere", where={"public.a": "id > 5"}), True),
        (WarehouseSettings(url=ADDRESS), True),
        (WarehouseSettings(url=ADDRESS, history=True), False),
        (WarehouseSettings(url=ADDRESS, history=("public.c",)), True),
        (WarehouseSettings(url="duckdb:////nowhere/w.duckdb"), False),
        (DeltaSettings(root="/nowhere/lake"), False),
    ],
)
def test_a_task_goes_on_where_few_rows_are_cheap(settings: SinkSettings, expected: bool) -> None:
    assert goes_on(settings, TABLES) is expected


@pytest.mark.parametrize(
    ("partitions", "master", "once", "bulk", "expected"),
    [
        (PARTITIONS_MAX, "local[2]", False, False, True),
        (PARTITIONS_MAX + 1, "local[2]", False, False, False),
        (6, "yarn", False, False, False),
        (6, "local[2]", True, False, False),
        (6, "local[2]", False, True, False),
    ],
)
def test_batches_go_on_where_that_costs_less_and_the_task_can_talk_to_the_driver(
    partitions: int, master: str, once: bool, bulk: bool, expected: bool
) -> None:
    nothing = cast("Any", None)
    spark = SparkSettings(master=master)
    plan = SinkPlan("s", RedisSettings(url="redis://nowhere"), 1, "p", nothing, TABLES, spark, once=once, bulk=bulk)
    assert plan.goes_on(partitions) is expected


@pytest.mark.parametrize(
    ("consistent", "bulk", "expected"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_whole_transactions_are_for_readers_whom_a_bulk_load_does_not_have(
    consistent: bool, bulk: bool, expected: bool
) -> None:
    settings = WarehouseSettings(url=ADDRESS, consistent=consistent)
    nothing = cast("Any", None)
    plan = SinkPlan("s", settings, 1, "p", nothing, TABLES, SparkSettings(), once=False, bulk=bulk)
    assert plan.applies_steps is expected
