"""What a sink's job is about."""

import pytest

from cdc.model.table import TableName
from jobs.query.sink_plan import may_go_on
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
        (RedisSettings(url="redis://nowhere", where={"public.a": "id > 5"}), False),
        (WarehouseSettings(url=ADDRESS), True),
        (WarehouseSettings(url=ADDRESS, history=True), False),
        (WarehouseSettings(url=ADDRESS, history=("public.c",)), True),
        (WarehouseSettings(url="duckdb:////nowhere/w.duckdb"), False),
        (DeltaSettings(root="/nowhere/lake"), False),
    ],
)
def test_a_task_goes_on_where_it_reads_the_log_itself_and_few_rows_are_cheap(
    settings: SinkSettings, expected: bool
) -> None:
    assert may_go_on(settings, TABLES) is expected
