"""A warehouse in a DuckDB file: PostgreSQL -> topics -> Spark -> the file, through a rebuild and a switch."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lockstep.config import load
from stack.stack import Endpoints
from tests.pipeline import Pipeline, kill_a_job, traffic, wait_until

pytestmark = [pytest.mark.live, pytest.mark.busy]


@pytest.fixture
def pipeline(endpoints: Endpoints, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(endpoints, tmp_path, f"file{os.getpid()}")
    made.path.write_text(
        made.path.read_text()
        + f'\n[sinks.{made.name}]\ntype = "warehouse"\nurl = "duckdb:///{tmp_path}/dwh.duckdb"\nlock_timeout_s = 30.0\n'
        f'history = ["{made.name}.account"]\n'
    )
    made.config = load(made.path)
    with made.sql() as sql:
        sql.execute(f"insert into {made.name}.entry select i, 1, 'n', '{{}}' from generate_series(1, 3000) i")
    made.wait_streaming(made.start_capture())
    yield made
    made.close()


_ASKING = """
import json, sys, duckdb
with duckdb.connect(sys.argv[1], read_only=True) as connection:
    print(json.dumps(connection.execute(sys.argv[2]).fetchall()))
"""


def _read(file: Path, query: str) -> list[list[object]]:
    """As people do it beside a job: open, ask, close, and again when somebody else has the file.

    In a process of its own: whoever closes the file gives up its process's lock, and here the job runs in this one.
    """
    answers: list[str] = []

    def asked() -> bool:
        done = subprocess.run([sys.executable, "-c", _ASKING, file, query], capture_output=True, text=True, check=False)
        answers.append(done.stdout)
        return done.returncode == 0

    wait_until(asked, what=f"an answer to {query}")
    return list(json.loads(answers[-1]))


@pytest.mark.soak
def test_a_file_follows_its_source_and_is_rebuilt(pipeline: Pipeline, tmp_path: Path, spark: SparkSession) -> None:
    name, file = pipeline.name, tmp_path / "dwh.duckdb"
    with traffic(pipeline, seed=3, pause_s=0.05) as writes:
        kill_a_job(pipeline, begun=file.exists, writes=writes)
        apply = pipeline.apply(spark)
        pipeline.wait_applied(apply)
        assert _read(file, f"select count(*) > 0 from {name}.{name}__entry") == [[True]]
        pipeline.path.write_text(pipeline.path.read_text() + f'exclude = ["{name}.account.tags"]\n')
        built = pipeline.rebuild(spark, name, switch_over=True).finish()
        assert (built.report.is_equal, built.generation, built.is_live) == (True, 2, True)
    pipeline.wait_applied(apply)
    lag = json.loads(pipeline.run("lag", "--json"))
    assert {(stage["generation"], stage["live"]) for stage in lag["stages"] if stage.get("sink") == name} == {
        (1, False),
        (2, True),
    }
    for generation in (1, 2):
        pipeline.run("verify", name, "--generation", str(generation))
    pipeline.run("generations", name, "--drop", "1", "--yes")
    assert apply.stop() == 0
    assert _read(file, "select generation, is_live from lockstep.history") == [[2, True]]
    columns = _read(
        file,
        f"select column_name from duckdb_columns() where schema_name = '{name}' and table_name = '{name}__account'",
    )
    assert ["tags"] not in columns
