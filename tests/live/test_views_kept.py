"""`lockstep views list` and `explain`: what is known of views while their job runs, and when none does."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc.model.lsn import parse_lsn
from cdc.postgres.slot import emit_heartbeat
from lockstep.cli.main import exit_code
from stack.stack import Endpoints
from tests.pipeline import Pipeline, wait_until

pytestmark = pytest.mark.live

OWNERS = 6


def views_text(name: str, directory: str) -> dict[str, str]:
    return {
        "spark": f'view_directory = "{directory}"',
        "cache": f"""
[views.{name}_sums]
sink = "{name}_cache"
key = ["owner"]
sql = "select a.owner, count(*) as n, sum(e.line) as lines from {name}.account a
 join {name}.entry e on e.account_id = a.id where a.owner is not null group by a.owner"
[views.{name}_idle]
sink = "{name}_warehouse"
key = ["id"]
sql = "select id, owner from {name}.account"
""".replace("\n join", " join"),
    }


@pytest.fixture(scope="module")
def pipeline(endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    name, directory = f"viewskept{os.getpid()}", tmp_path_factory.mktemp("views_kept")
    made = Pipeline(endpoints, directory, name, sinks=True, more=views_text(name, str(directory / "views")))
    with made.sql() as connection:
        connection.execute(
            f"insert into {name}.account (id, owner) select i, 'owner ' || i % {OWNERS} from generate_series(1, 30) i"
        )
        connection.execute(f"insert into {name}.entry select i % 30 + 1, i, 'x', null from generate_series(1, 90) i")
    try:
        made.wait_streaming(made.start_capture())
        yield made
    finally:
        made.close()


def asked(pipeline: Pipeline, capsys: pytest.CaptureFixture[str], *command: str) -> tuple[int, Any]:
    code = exit_code(["views", *command, "--config", str(pipeline.path), "--json"])
    return code, json.loads(capsys.readouterr().out)


def of(pipeline: Pipeline, capsys: pytest.CaptureFixture[str], view: str) -> dict[str, Any]:
    _, found = asked(pipeline, capsys, "list")
    (status,) = (each for each in found if each["view"] == f"{pipeline.name}_{view}")
    return dict(status)


def test_a_view_is_listed_and_explained_as_it_is_now(
    pipeline: Pipeline, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{pipeline.name}_sums"
    code, before = asked(pipeline, capsys, "list")
    assert [(each["state"], each["reason"], each["figures"]) for each in before] == [
        ("absent", "nothing of it is there yet", None)
    ] * 2
    assert code == 0  # nobody has started it yet

    job = pipeline.apply(spark, name)
    with pipeline.sql() as connection:
        connection.execute(f"insert into {pipeline.name}.entry values (1, 1000, 'new', null)")
        target = emit_heartbeat(connection)

    def has_all() -> bool:
        assert job.poll() is None, job.told()
        lsn = of(pipeline, capsys, "sums")["lsn"]
        return lsn is not None and parse_lsn(lsn) >= target

    wait_until(has_all, what="the view has all")
    status = of(pipeline, capsys, "sums")
    assert (status["sink"], status["key"]) == (f"{pipeline.name}_cache", ["owner"])
    assert (status["generation"], status["state"], status["live"]) == (1, "ready", True)
    assert status["figures"]["rows"] == OWNERS
    assert status["figures"]["state_rows"] >= 30 + 91 + OWNERS
    assert status["figures"]["state_bytes"] > 0

    assert status["since_ms"] is not None
    (generation,) = json.loads(pipeline.run("generations", name, "--json"))
    assert (generation["view"]["rows"], generation["view"]["building"]) == (OWNERS, None)
    stages = json.loads(pipeline.run("lag", "--json"))["stages"]
    (view,) = (stage["view"] for stage in stages if stage.get("sink") == name)
    assert (view["rows"], view["state_rows"]) == (OWNERS, status["figures"]["state_rows"])

    code, explained = asked(pipeline, capsys, "explain", name)
    group = explained["plan"]
    (join,) = group["sources"]
    assert (code, group["operator"], group["kept_rows"]) == (0, "group", OWNERS)
    assert (join["operator"], join["kept_rows"]) == ("join", 30 + 91)
    assert sorted(scan["kept_rows"] for scan in join["sources"]) == [30, 91]
    assert explained["plan_without_figures"] is None

    assert exit_code(["views", "explain", name, "--config", str(pipeline.path)]) == 0
    shown = capsys.readouterr().out
    assert f"{name} in sink {pipeline.name}_cache: ready at 0/" in shown
    assert "(91 rows, " in shown
    assert f"the result has {OWNERS} rows" in shown

    job.ask_to_stop()
    job.close()
    code, after = asked(pipeline, capsys, "list")
    assert {each["view"]: each["state"] for each in after}[name] == "absent"
    assert exit_code(["views", "list", "--config", str(pipeline.path)]) == 0
    assert "no job keeps it" in capsys.readouterr().out


def test_a_view_without_a_state_here_has_its_plan_all_the_same(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    code, explained = asked(pipeline, capsys, "explain", f"{pipeline.name}_idle")
    assert (code, explained["plan"]["operator"], explained["plan"]["kept_rows"]) == (0, "scan", None)
    assert explained["plan_without_figures"] == "nothing of it is there yet"


def test_a_view_that_isnt_there_is_said_to_be_none(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["views", "explain", "other", "--config", str(pipeline.path)]) == 2
    assert f"views of this configuration: {pipeline.name}_sums" in capsys.readouterr().err
