"""A lake, and a warehouse in a file: PostgreSQL -> topics -> Spark -> files, through a rebuild and a switch."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.generations.record import list_generations
from lockstep.config import load
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.opened import closing_sink
from tests.pipeline import Pipeline, kill_a_job, traffic, wait_until
from tests.readers import Reader

pytestmark = [pytest.mark.live, pytest.mark.busy, pytest.mark.soak]

KEYS = range(1, 6)
SINKS = {
    "lake": 'type = "delta"\nroot = "{0}/lake"\n',
    "file": 'type = "warehouse"\nurl = "duckdb:///{0}/dwh.duckdb"\nlock_timeout_s = 30.0\nhistory = ["{1}.account"]\n',
}
PLACES = {"lake": "lake/{0}_live", "file": "dwh.duckdb"}
"""What exists once the sink has begun."""
ANOTHER_SHAPE = {"lake": 'partition_by = {{ "{0}.account" = ["owner"] }}\n', "file": ""}


@pytest.fixture
def pipeline(endpoints: Endpoints, tmp_path: Path, kind: str) -> Iterator[Pipeline]:
    """A pipeline with one sink, captured up to now; rows 1 to 5 are counters."""
    made = Pipeline(endpoints, tmp_path, f"{kind}{os.getpid()}")
    sink = SINKS[kind].format(tmp_path, made.name)
    made.path.write_text(f"{made.path.read_text()}\n[sinks.{made.name}]\n{sink}")
    made.config = load(made.path)
    with made.sql() as sql:
        sql.execute(
            f"insert into {made.name}.account (id, owner, balance) select i, 'counter', 1 from generate_series(1, 5) i"
        )
        sql.execute(f"insert into {made.name}.entry select i, 1, 'n', '{{}}' from generate_series(1, 3000) i")
    made.wait_streaming(made.start_capture())
    yield made
    made.close()


def _generations(pipeline: Pipeline) -> list[tuple[int, bool, str]]:
    with closing_sink(open_sink(pipeline.name, pipeline.config.sinks[pipeline.name], 1)) as opened:
        return [(each.number, each.is_live, each.phase.value) for each in list_generations(opened)]


@contextmanager
def _counters_are_read(pipeline: Pipeline, root: Path) -> Iterator[None]:
    """A reader of the lake's counters, as an application is: the pointer, then the table."""

    def read(key: int) -> int | None:
        live = DeltaTable(root / f"{pipeline.name}_live").to_pyarrow_table().to_pylist()
        path = next(live_table["path"] for live_table in live if live_table["table_name"] == "account")
        rows = DeltaTable(root / path).to_pyarrow_dataset()
        balances = rows.to_table(["balance"], filter=(ds.field("id") == key) & ~ds.field("_deleted")).to_pylist()
        return int(balances[0]["balance"]) if balances else None

    reader = Reader("lake", read, KEYS)
    reader.start()
    try:
        yield
    finally:
        reader.finish()
    assert (reader.problems, reader.reads > 0) == ([], True)


_ASKING = """
import json, sys, duckdb
with duckdb.connect(sys.argv[1], read_only=True) as connection:
    print(json.dumps(connection.execute(sys.argv[2]).fetchall()))
"""


def _ask(file: Path, query: str) -> list[list[object]]:
    """As people do beside a job: open, ask, close, and again if somebody else has the file. In a process of its own:
    closing the file gives up its process's lock, and here the job runs in this one."""
    answers: list[str] = []

    def asked() -> bool:
        done = subprocess.run([sys.executable, "-c", _ASKING, file, query], capture_output=True, text=True, check=False)
        answers.append(done.stdout)
        return done.returncode == 0

    wait_until(asked, what=f"an answer to {query}")
    return list(json.loads(answers[-1]))


@contextmanager
def _the_file_is_read(pipeline: Pipeline, file: Path) -> Iterator[None]:
    assert _ask(file, f"select count(*) > 0 from {pipeline.name}.{pipeline.name}__entry") == [[True]]
    yield


@pytest.mark.parametrize("kind", SINKS)
def test_it_follows_its_source_and_is_rebuilt_while_it_is_read(
    pipeline: Pipeline, tmp_path: Path, spark: SparkSession, kind: str
) -> None:
    name, place = pipeline.name, tmp_path / PLACES[kind].format(pipeline.name)
    reading = _counters_are_read(pipeline, place.parent) if kind == "lake" else _the_file_is_read(pipeline, place)
    with traffic(pipeline, seed=3, pause_s=0.05) as writes:
        kill_a_job(pipeline, begun=place.exists, writes=writes)
        apply = pipeline.apply(spark)
        pipeline.wait_applied(apply)
        with reading:
            changed = f'exclude = ["{name}.account.tags"]\n{ANOTHER_SHAPE[kind].format(name)}'
            pipeline.path.write_text(pipeline.path.read_text() + changed)
            built = pipeline.rebuild(spark, name, switch_over=True).finish()
            assert (built.report.is_equal, built.generation, built.is_live) == (True, 2, True)
            with pipeline.sql() as sql:
                sql.execute(f"update {name}.account set balance = balance + 1 where id = any(%s)", (list(KEYS),))
    assert _generations(pipeline) == [(1, False, "ready"), (2, True, "ready")]
    pipeline.wait_applied(apply)
    lag = json.loads(pipeline.run("lag", "--json"))
    assert {(stage["generation"], stage["live"]) for stage in lag["stages"] if stage.get("sink") == name} == {
        (1, False),
        (2, True),
    }
    for generation in (1, 2):  # the first one goes on
        pipeline.run("verify", name, "--generation", str(generation))
    pipeline.run("generations", name, "--drop", "1", "--yes")
    assert _generations(pipeline) == [(2, True, "ready")]
    assert apply.stop() == 0
    if kind == "lake":
        assert list((tmp_path / "lake" / f"{name}_g1").glob("*")) == []
        return
    assert _ask(place, "select generation, is_live from lockstep.history") == [[2, True]]
    columns = (
        f"select column_name from duckdb_columns() where schema_name = '{name}' and table_name = '{name}__account'"
    )
    assert ["tags"] not in _ask(place, columns)
