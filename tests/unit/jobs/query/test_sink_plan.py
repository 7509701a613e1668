"""What a sink's job is about."""

from typing import Any, cast

import pytest

from cdc.model.table import TableName
from jobs.query.sink_plan import PARTITIONS_MAX, SinkPlan, why_micro_batches, why_no_long_batches
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
    assert (why_no_long_batches(settings, TABLES) is None) is expected


def _why(partitions: int = 6, *, once: bool = False, **spark: str) -> str | None:
    nothing = cast("Any", None)
    settings = SparkSettings.model_validate(spark)
    plan = SinkPlan("s", RedisSettings(url="redis://nowhere"), 1, "p", nothing, TABLES, settings, once=once)
    return why_micro_batches(plan, partitions=partitions)


def test_batches_go_on_by_default_where_that_costs_less() -> None:
    assert _why() is None
    assert _why(PARTITIONS_MAX) is None
    assert "partitions" in (_why(PARTITIONS_MAX + 1) or "")
    assert _why(PARTITIONS_MAX + 1, trigger="continuous") is None
    assert "cluster" in (_why(master="yarn") or "")


def test_who_asked_for_micro_batches_is_not_told_why_they_are_there() -> None:
    assert _why(trigger="micro-batch") == ""
    assert _why(once=True) == ""


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
