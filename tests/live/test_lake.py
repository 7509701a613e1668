"""The lake end to end: PostgreSQL -> topics -> Spark -> Delta tables, through a rebuild and a switch."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.generations.record import list_generations
from lockstep.config import load
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.pipeline import Pipeline, kill_a_job, traffic
from tests.readers import Reader

pytestmark = [pytest.mark.live, pytest.mark.busy]

KEYS = range(1, 6)


@pytest.fixture
def pipeline(endpoints: Endpoints, tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline with a lake alone, captured up to now; rows 1 to 5 are counters."""
    made = Pipeline(endpoints, tmp_path, f"lake{os.getpid()}")
    made.path.write_text(
        made.path.read_text() + f'\n[sinks.{made.name}]\ntype = "delta"\nroot = "{tmp_path}/lake"\n'
        "optimize_every_commits = 20\n"
    )
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
    opened = open_sink(pipeline.name, pipeline.config.sinks[pipeline.name], 1)
    try:
        return [
            (generation.number, generation.is_live, generation.phase.value) for generation in list_generations(opened)
        ]
    finally:
        opened.sink.close()


def _balance(pipeline: Pipeline, root: Path) -> Any:
    """A reader of counters as an application is: the pointer, then the table."""

    def read(key: int) -> int | None:
        live = DeltaTable(root / f"{pipeline.name}_live").to_pyarrow_table().to_pylist()
        path = next(live_table["path"] for live_table in live if live_table["table_name"] == "account")
        rows = DeltaTable(root / path).to_pyarrow_dataset()
        balances = rows.to_table(["balance"], filter=(ds.field("id") == key) & ~ds.field("_deleted")).to_pylist()
        return int(balances[0]["balance"]) if balances else None

    return read


@pytest.mark.soak
def test_a_lake_follows_its_source_and_is_rebuilt(pipeline: Pipeline, tmp_path: Path, spark: SparkSession) -> None:
    name, root = pipeline.name, tmp_path / "lake"
    with traffic(pipeline, seed=3, pause_s=0.05) as writes:
        kill_a_job(pipeline, begun=(root / f"{name}_live").exists, writes=writes)
        apply = pipeline.apply(spark)
        pipeline.wait_applied(apply)
        reader = Reader("lake", _balance(pipeline, root), KEYS)
        reader.start()
        try:
            pipeline.path.write_text(
                pipeline.path.read_text()
                + f'exclude = ["{name}.account.tags"]\npartition_by = {{ "{name}.account" = ["owner"] }}\n'
            )
            built = pipeline.rebuild(spark, name, switch_over=True).finish()
            assert (built.report.is_equal, built.generation, built.is_live) == (True, 2, True)
            with pipeline.sql() as sql:
                sql.execute(f"update {name}.account set balance = balance + 1 where id = any(%s)", (list(KEYS),))
        finally:
            reader.finish()
        assert (reader.problems, reader.reads > 0) == ([], True)
    assert _generations(pipeline) == [(1, False, "ready"), (2, True, "ready")]
    pipeline.wait_applied(apply)
    pipeline.assert_sinks_equal()  # generation 1, which goes on
    lag = json.loads(pipeline.run("lag", "--json"))
    assert {(stage["generation"], stage["live"]) for stage in lag["stages"] if stage.get("sink") == name} == {
        (1, False),
        (2, True),
    }
    assert "2" in pipeline.run("generations", name)
    pipeline.run("verify", name)
    pipeline.run("generations", name, "--drop", "1", "--yes")
    assert _generations(pipeline) == [(2, True, "ready")]
    assert list((root / f"{name}_g1").glob("*")) == []
    assert apply.stop() == 0
