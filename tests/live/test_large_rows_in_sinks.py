"""Rows that are too large for their topic, as sinks and views have them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc.kafka.control_topics import read_tables
from cdc.model.table import TableName
from cdc.postgres.slot import emit_heartbeat
from jobs.query.view_plan import planned_view
from lockstep.config import load
from monitor.waits import Waits
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.live.test_large_rows import LARGE, with_limit
from tests.opened import closing_sink
from tests.pipeline import Pipeline, wait_until

pytestmark = pytest.mark.live


@pytest.fixture
def pipeline(endpoints: Endpoints, tmp_path: Path) -> Iterator[Pipeline]:
    name = f"large{os.getpid()}"
    view = f"""
[views.{name}_notes]
sink = "{name}_cache"
key = ["account_id", "line"]
sql = "select account_id, line, note from {name}.entry where line > 0"
"""
    made = Pipeline(
        endpoints,
        tmp_path,
        name,
        sinks=True,
        more={
            "capture": "large_rows = 'reject'",
            "spark": f'view_directory = "{tmp_path}/views"',
            "warehouse": view,
        },
    )
    with_limit(made.path)
    made.config = load(made.path)
    with made.sql() as connection:
        connection.execute(f"insert into {name}.entry values (1, 1, 'a', null), (1, 2, 'b', null)")
    try:
        made.wait_streaming(made.start_capture())
        yield made
    finally:
        made.close()


@pytest.mark.busy
def test_sinks_and_views_keep_the_older_row_and_say_so_until_a_newer_one_comes(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    name = pipeline.name
    cache, view = f"{name}_cache", f"{name}_notes"

    def rows(sink: str) -> dict[int, str]:
        settings = pipeline.config.sinks[sink]
        with closing_sink(open_sink(sink, settings, 1)) as opened:
            shapes = read_tables(pipeline.client, name)
            table = shapes[TableName(name, "entry")]
            if settings.view is not None:
                table = planned_view(settings.view, shapes).table
            return {int(row.key["line"]): row.row["note"] for row in opened.sink.scan(table)}

    def rejected() -> set[tuple[str, int]]:
        found: list[dict[str, Any]] = json.loads(pipeline.run("rejections", "list", "--json"))["rejections"]
        assert LARGE[:50] not in json.dumps(found)
        assert {each["table"] for each in found} <= {f"{name}.entry"}
        return {(each["sink"], each["key"]["line"]) for each in found if each["sink"] in (cache, view)}

    def write(statement: str) -> None:
        with pipeline.sql() as connection:
            connection.execute(statement.format(name).encode())

    def put(line: int, note: str) -> None:
        write(
            f"insert into {{0}}.entry values (1, {line}, '{note}', null)"
            " on conflict (account_id, line) do update set note = excluded.note"
        )

    put(2, LARGE)
    put(3, LARGE)
    job = pipeline.apply(spark, cache, view)

    def wait_applied() -> None:
        with pipeline.sql() as connection:
            target = emit_heartbeat(connection)
        with Waits(pipeline.config.as_pipeline(), pipeline.config.sinks) as waits:
            while not waits.wait(target, (cache, view), timeout_s=2.0).is_reached:
                assert job.poll() is None, job.output()

    wait_applied()
    put(1, "newer")
    put(4, LARGE)
    wait_applied()
    both = {(sink, line) for sink in (cache, view) for line in (2, 3, 4)}
    wait_until(lambda: rejected() == both, what="both tell of each row", every_s=1)
    assert rows(cache) == rows(view) == {1: "newer", 2: "b"}
    verified = json.loads(pipeline.run("verify", cache, "--json", ends_with=1))
    notes = [difference["note"] for table in verified["tables"] for difference in table["differences"]]
    assert len(notes) == 3
    assert all("too large for its topic" in note for note in notes)
    refused = json.loads(pipeline.run("rejections", "retry", cache, "--all", "--json", ends_with=1))
    assert (refused["taken"], len(refused["refused"])) == (0, 3)

    put(2, "short")  # closed by itself
    write("delete from {0}.entry where line = 3")
    wait_applied()
    wait_until(lambda: rejected() == {(cache, 4), (view, 4)}, what="what came is closed", every_s=1)
    assert rows(cache) == rows(view) == {1: "newer", 2: "short"}
    job.ask_to_stop()
    job.close()
    assert not [seen for seen in job.reports if seen["report"] == "SinkFailed"]
