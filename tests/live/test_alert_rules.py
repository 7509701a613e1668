"""The rule of docs/examples/page-views.md, asked of rows in a warehouse as its view has them."""

import re
import tomllib
from pathlib import Path

import psycopg
import pytest

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from monitor.alerts.rules import RuleCollector, count_rows
from monitor.alerts.settings import RuleSettings, RuleTarget
from sinks.warehouse.settings import WarehouseSettings
from stack.stack import Endpoints
from tests.databases import Database, until, url_of

pytestmark = [pytest.mark.live, pytest.mark.soak]

PAGE = (Path(__file__).parent.parent.parent / "docs/examples/page-views.md").read_text()


def test_an_hour_with_less_than_half_of_the_week_before_is_told_of_until_late_events_make_up_for_it(
    endpoints: Endpoints,
) -> None:
    (settings,) = [text for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if "[alerts" in text]
    rule = RuleSettings.model_validate(tomllib.loads(settings)["alerts"]["rules"]["quiet_hour"])
    database = Database(endpoints.warehouse_dsn)
    try:
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            connection.execute("create schema per_hour")
            connection.execute("create table per_hour.views__per_hour (hour timestamptz, n bigint)")
            connection.execute(
                "insert into per_hour.views__per_hour values"
                " (date_trunc('hour', now(), 'UTC') - interval '169 hours', 10)"
            )
            address = WarehouseSettings.model_validate({"url": url_of(endpoints.warehouse_url, database.name)})
            target = RuleTarget("per_hour", address, TableName("views", "per_hour"))
            assert count_rows(rule, target) == 1, "an hour without a view has no row"
            connection.execute(
                "insert into per_hour.views__per_hour values (date_trunc('hour', now(), 'UTC') - interval '1 hour', 4)"
            )
            assert count_rows(rule, target) == 1
            connection.execute("update per_hour.views__per_hour set n = 5 where n = 4")
            assert count_rows(rule, target) == 0
        wrong = rule.model_copy(update={"where": "no_such_column > 1"})
        with RuleCollector({"wrong": (wrong, target)}) as rules:
            answer = until(lambda: rules.latest()["wrong"])
        assert isinstance(answer, LockstepError)
        assert "no_such_column" in answer.message
    finally:
        database.drop()
