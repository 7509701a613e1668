"""A view with another query is built beside the old one, switched to and back, and an erased row leaves both."""

import shutil
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from cdc.kafka.control_topics import read_tables
from cdc.kafka.topic_names import view_topic
from cdc.postgres.slot import emit_heartbeat
from extensions.erase.erase import erase
from jobs.query.view_plan import planned_view
from lockstep.config import load
from lockstep.erasing import Place
from lockstep.generations import find, settings_of_generation, switch_to
from monitor.waits import Waits
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.pipeline import Pipeline, wait_until
from tests.spark_here import Job

pytestmark = [pytest.mark.live, pytest.mark.busy]

SECRET = "very secret"
Rows = dict[tuple[int, int], dict[str, Any]]


@pytest.fixture
def pipeline(endpoints: Endpoints, tmp_path: Path) -> Iterator[Pipeline]:
    name = f"viewgen{uuid.uuid4().hex[:8]}"
    view = f"""apply = false
[views.{name}_lines]
sink = "{name}_warehouse"
topic = true
key = ["account_id", "line"]
sql = "select e.account_id, e.line, e.note, a.owner from {name}.entry e join {name}.account a on a.id = e.account_id"
"""
    directory = f'view_directory = "{tmp_path / "views"}"'
    made = Pipeline(endpoints, tmp_path, name, sinks=True, more={"spark": directory, "warehouse": view})
    with made.sql() as connection:
        connection.execute(f"insert into {name}.account (id, owner) values (1, 'x'), (2, 'y')".encode())
        connection.execute(
            f"insert into {name}.entry values (1, 1, 'stays'), (1, 2, 'second'), (2, 1, '{SECRET}')".encode()
        )
    yield made
    made.close()


def rows(pipeline: Pipeline, generation: int) -> Rows:
    """What a generation of the view holds, by the query that it was built with."""
    config, view = load(pipeline.path), f"{pipeline.name}_lines"
    settings = settings_of_generation(config, view, find(config, view, generation))
    assert settings.view is not None
    table = planned_view(settings.view, read_tables(pipeline.client, pipeline.name)).table
    opened = open_sink(view, settings, generation)
    with closing(opened.sink):
        found = {(row.key["account_id"], row.key["line"]): dict(row.row) for row in opened.sink.scan(table)}
    return {key: {name: row[name] for name in row if name not in ("account_id", "line")} for key, row in found.items()}


def marks(pipeline: Pipeline, generation: int) -> int:
    """How many marks of deleted rows a generation of the view has."""
    view = f"{pipeline.name}_lines"
    with psycopg.connect(pipeline.endpoints.warehouse_dsn) as warehouse:
        found = warehouse.execute(f"select count(*) from {view}_g{generation}.views__{view} where _deleted".encode())
        return int(found.fetchone()[0])  # type: ignore[index]


def write(pipeline: Pipeline, *statements: str) -> int:
    """An LSN from after these, each in a transaction of its own."""
    with pipeline.sql() as connection:
        for statement in statements:
            connection.execute(statement.format(name=pipeline.name).encode())
        return emit_heartbeat(connection)


def wait(pipeline: Pipeline, job: Job, lsn: int) -> None:
    """Until readers of the view see all of this."""
    view = f"{pipeline.name}_lines"
    with Waits(pipeline.config.as_pipeline(), {view: pipeline.config.sinks[view]}) as waits:
        while not (waited := waits.wait(lsn, timeout_s=2.0)).is_reached:
            assert job.poll() is None, f"{waited.late}\n{job.output()}"


def test_a_view_gets_another_query_beside_the_old_one_and_a_row_that_is_erased_leaves_both(
    pipeline: Pipeline, spark: SparkSession, tmp_path: Path
) -> None:
    name, view = pipeline.name, f"{pipeline.name}_lines"
    other = pipeline.path.with_name(f"other-{pipeline.path.name}")
    text = pipeline.path.read_text().replace("e.note, a.owner from", "e.note, e.line * 2 as twice from")
    other.write_text(text.replace("on a.id = e.account_id", "on a.id = e.account_id where e.line <> 2"))
    pipeline.wait_streaming(pipeline.start_capture())

    def stays(note: str = "stays") -> dict[str, Any]:
        return {"note": note, "owner": "x"}

    with pipeline.apply(spark, view) as job:
        wait(pipeline, job, write(pipeline))
        first = {(1, 1): stays(), (1, 2): stays("second"), (2, 1): {"note": SECRET, "owner": "y"}}
        assert rows(pipeline, 1) == first
        with pipeline.rebuild(spark, view, path=other) as rebuild:
            built = rebuild.finish()
        assert (built.generation, built.report.is_equal, built.is_live) == (2, True, False)
        assert [change.partition(" was ")[0] for change in built.explained] == ["view"]
        assert rows(pipeline, 1) == first, "readers see the old query's rows until somebody switches"
        assert switch_to(load(other), view, number=None, back=False) == (1, 2)
        wait(pipeline, job, write(pipeline, "update {name}.entry set note = 'newer' where account_id = 1 and line = 1"))
        assert rows(pipeline, 2) == {(1, 1): {"note": "newer", "twice": 2}, (2, 1): {"note": SECRET, "twice": 2}}
        assert job.stop() == 0

    # Nobody keeps the view while the topic is compacted: what it has not read by then is the deletion alone.
    write(pipeline, "delete from {name}.entry where account_id = 2")
    said: list[str] = []
    with ThreadPoolExecutor(1) as erasing:
        report = erasing.submit(
            erase,
            pipeline.config,
            f"{name}.entry",
            '{"account_id": 2, "line": 1}',
            dry_run=False,
            timeout_s=300,
            stopping=lambda: False,
            say=said.append,
        )
        wait_until(lambda: f"view {view}" in said or report.done(), what="it asks the view")
        with pipeline.apply(spark, view) as job:
            places: dict[str, Place] = {place.name: place for place in report.result().places}
            assert job.stop() == 0
    assert all(place.is_proven for place in places.values()), list(places.values())
    for number, live in ((1, ""), (2, " (live)")):
        in_sink = places[f"view {view}, generation {number}{live}"]
        assert [leftover.what for leftover in in_sink.found] == ["1 mark of deleted rows, with their keys"]
        assert (in_sink.left, marks(pipeline, number)) == ((), 0)
        # What a reader may be reading stays for an hour, and it is known until when.
        on_topic = places[f"topic {view_topic(name, view, number)}"]
        assert {leftover.until_ms is not None for leftover in on_topic.left} == {True}
    shutil.rmtree(tmp_path / "views")  # a state that is built anew reads the topic, and that has the row as well
    with pipeline.apply(spark, view) as job:
        wait(pipeline, job, write(pipeline, "update {name}.entry set note = note where account_id = 1 and line = 1"))
        assert rows(pipeline, 2) == {(1, 1): {"note": "newer", "twice": 2}}
        assert [marks(pipeline, number) for number in (1, 2)] == [0, 0]
        wait(pipeline, job, write(pipeline, "insert into {name}.entry values (2, 1, 'again')"))
        assert rows(pipeline, 2)[2, 1] == {"note": "again", "twice": 2}
        assert switch_to(load(pipeline.path), view, number=None, back=True) == (2, 1)
        wait(pipeline, job, write(pipeline, "update {name}.account set owner = 'z' where id = 2"))
        assert rows(pipeline, 1) == {
            (1, 1): stays("newer"),
            (1, 2): stays("second"),
            (2, 1): {"note": "again", "owner": "z"},
        }
        assert job.stop() == 0


@pytest.mark.soak
def test_a_view_is_built_from_a_table_whose_key_got_another_type(
    endpoints: Endpoints, tmp_path: Path, spark: SparkSession
) -> None:
    """The copy that follows deletes all keys of the old type: they are no rows of the table as it is now."""
    name = f"viewkey{uuid.uuid4().hex[:8]}"
    view = f"{name}_lines"
    section = f"""apply = false
[views.{view}]
sink = "{name}_cache"
key = ["id"]
sql = "select id, owner from {name}.account"
"""
    more = {"spark": f'view_directory = "{tmp_path / "views"}"', "cache": section}
    with closing(Pipeline(endpoints, tmp_path, name, sinks=True, more=more)) as pipeline:
        write(pipeline, "insert into {name}.account (id, owner) values (1, 'x'), (2, 'y'), (3, 'z')")
        pipeline.wait_streaming(pipeline.start_capture())
        with pipeline.apply(spark, view) as job:
            wait(pipeline, job, write(pipeline, "delete from {name}.account where id = 3"))
            assert job.stop() == 0
        write(
            pipeline,
            "alter table {name}.account alter id type text using 'n' || id",
            "insert into {name}.account (id, owner) values ('n4', 'new')",
        )
        with pipeline.rebuild(spark, view, switch_over=True) as rebuild:
            built = rebuild.finish()
        assert (built.report.is_equal, built.is_live) == (True, True)
