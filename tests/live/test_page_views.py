"""The page docs/examples/page-views.md as it is written: what it claims, and its views beside their queries."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from pyspark.sql import SparkSession

from lockstep.config import load
from monitor.alerts.rules import count_rows
from stack.stack import Endpoints
from tests.databases import Database, url_of
from tests.pipeline import Pipeline

pytestmark = [pytest.mark.live, pytest.mark.busy, pytest.mark.soak]

PAGE = (Path(__file__).parent.parent.parent / "docs/examples/page-views.md").read_text()
VIEWS = ("per_ip", "per_url", "lately")
RATE = "per_hour"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def pipeline(endpoints: Endpoints, tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline with the page's table and views, all in a schema of its own."""
    made = Pipeline(endpoints, tmp_path, f"hits{os.getpid()}")
    name = made.name
    options, views, _ = blocks("toml")
    text = made.path.read_text().replace(f'"{name}.entry"]', f'"{name}.entry", "{name}.hits"]')
    for view in VIEWS:
        views = views.replace(f"[views.{view}]", f"[views.{name}_{view}]").replace(
            f'"views.{view}"', f'"views.{name}_{view}"'
        )
    made.path.write_text(
        f"{text}\n{options.replace('public.hits', f'{name}.hits')}\n{views.replace('from hits', f'from {name}.hits')}\n"
        f'[sinks.cache]\ntype = "redis"\nurl = "{endpoints.redis_url}"\napply = false\n'
    )
    made.config = load(made.path)
    run(made, blocks("sql")[0])
    yield made
    made.close()


@pytest.fixture
def week(endpoints: Endpoints, tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline with the page's table, and the view and the rule of the week before, in a warehouse of its own."""
    database = Database(endpoints.warehouse_dsn)
    made = Pipeline(endpoints, tmp_path, f"week{os.getpid()}")
    name = made.name
    options, _, rate = blocks("toml")
    for given, own in (("from hits", f"from {name}.hits"), ('"hits"', f'"{name}.hits"')):
        assert given in rate
        rate = rate.replace(given, own)
    rate = rate.replace(f"[views.{RATE}]", f"[views.{name}_{RATE}]").replace(f'"{RATE}"', f'"{name}_{RATE}"')
    text = made.path.read_text().replace(f'"{name}.entry"]', f'"{name}.entry", "{name}.hits"]')
    url = url_of(endpoints.warehouse_url, database.name)
    made.path.write_text(
        f"{text}\n{options.replace('public.hits', f'{name}.hits')}\n{rate}\n"
        f'[sinks.dwh]\ntype = "warehouse"\nurl = "{url}"\napply = false\n'
    )
    made.config = load(made.path)
    run(made, blocks("sql")[0])
    yield made
    made.close()
    database.drop()


def run(pipeline: Pipeline, statements: str) -> None:
    """Statements of the page, in the pipeline's schema."""
    with pipeline.sql() as connection:
        connection.execute(f"set search_path = {pipeline.name}")
        connection.execute(statements.encode())


def assert_as_claimed(pipeline: Pipeline, claims: str) -> None:
    with redis.Redis.from_url(pipeline.endpoints.redis_url, decode_responses=True) as client:
        for key, row in re.findall(r"^HGET (\S+) v\n  (.*)$", claims, re.MULTILINE):
            prefix, _, rest = key.partition(":")
            own = f"{pipeline.name}_{prefix}"
            found = client.hget(f"{own}:{rest.replace(f'views.{prefix}:', f'views.{own}:')}", "v")
            assert found is not None, (key, sorted(client.scan_iter(f"{own}:*")))
            assert json.loads(found) == json.loads(row)


def assert_as_the_queries(pipeline: Pipeline) -> None:
    for view in VIEWS:
        report = json.loads(pipeline.run("verify", f"{pipeline.name}_{view}", "--json"))
        assert (report["equal"], [table["not_compared"] for table in report["tables"]]) == (True, [None]), report


def test_the_page_is_true_and_late_events_correct_their_buckets(pipeline: Pipeline, spark: SparkSession) -> None:
    _, first, late, _ = blocks("sql")
    claims, corrected = blocks("text")
    capture = pipeline.start_capture()
    pipeline.wait_streaming(capture)
    with pipeline.apply(spark) as job:
        run(pipeline, first)
        pipeline.wait_applied(job)
        assert_as_claimed(pipeline, claims)
        with redis.Redis.from_url(pipeline.endpoints.redis_url, decode_responses=True) as client:
            own = f"{pipeline.name}_per_ip"
            assert len(client.smembers(f"{own}:g1:hours_of:10.0.0.1")) == 2
        run(pipeline, late)
        pipeline.wait_applied(job)
        assert_as_claimed(pipeline, corrected)
        assert_as_the_queries(pipeline)
        run(pipeline, f"truncate hits; {late}")
        pipeline.wait_applied(job)
        assert_as_the_queries(pipeline)
        assert job.stop() == 0


def test_the_rule_of_the_page_tells_of_the_week_before_until_late_events_make_up_for_it(
    week: Pipeline, spark: SparkSession
) -> None:
    *_, views = blocks("sql")
    ((rule, target),) = week.config.rules().values()
    late = views.replace("(1, 10)", "(1, 0)").replace("(1, 2)", "(3, 5)")
    capture = week.start_capture()
    week.wait_streaming(capture)
    with week.apply(spark) as job:
        hour: object = None
        while hour != _hour(week):  # once more where an hour began meanwhile
            hour, told = _hour(week), list[int]()
            for statement in (views, late):
                run(week, statement)
                week.wait_applied(job)
                told.append(count_rows(rule, target))
        assert told == [1, 0]
        assert job.stop() == 0


def _hour(pipeline: Pipeline) -> object:
    with pipeline.sql() as connection:
        return connection.execute("select date_trunc('hour', now())").fetchall()
