"""`lockstep views list` and `explain`: what is known of views while their job runs, and when none does."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc.kafka.control_topics import read_tables
from cdc.model.lsn import parse_lsn
from cdc.postgres.slot import emit_heartbeat
from jobs.query.view_plan import planned_view
from lockstep.cli.main import exit_code
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.pipeline import Pipeline, wait_until

pytestmark = [pytest.mark.live, pytest.mark.busy]

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
[views.{name}_notes]
sink = "{name}_cache"
key = ["account_id", "line"]
sql = "select account_id, line, note from {name}.entry where line > 500"
max_value_bytes = 300
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


@pytest.mark.soak
def test_a_view_is_listed_and_explained_as_it_is_now(
    pipeline: Pipeline, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{pipeline.name}_sums"
    code, before = asked(pipeline, capsys, "list")
    assert [(each["state"], each["reason"], each["figures"]) for each in before] == [
        ("absent", "nothing of it is there yet", None)
    ] * 3
    assert code == 0  # nobody has started it yet

    job = pipeline.apply(spark, name)
    with pipeline.sql() as connection:
        connection.execute(f"insert into {pipeline.name}.entry values (1, 1000, 'new', null)")
        target = emit_heartbeat(connection)

    def has_all() -> bool:
        assert job.poll() is None, job.output()
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
    (view,) = (stage["view"] for stage in stages if stage.get("sink") == name and "view" in stage)
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
    assert f"{name} in sink {pipeline.name}_cache: ready at " in shown
    assert "(91 rows, " in shown
    assert f"the result has {OWNERS} rows" in shown

    job.ask_to_stop()
    job.close()
    code, after = asked(pipeline, capsys, "list")
    assert {each["view"]: each["state"] for each in after}[name] == "absent"
    assert exit_code(["views", "list", "--config", str(pipeline.path)]) == 0
    assert "no job keeps it" in capsys.readouterr().out


@pytest.mark.soak
def test_a_row_that_the_store_refuses_is_a_rejection_and_the_view_goes_on(
    pipeline: Pipeline, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    view, long = f"{pipeline.name}_notes", "very secret " * 100

    def write(line: int, note: str | None) -> None:
        with pipeline.sql() as connection:
            values = "insert into {0}.entry values (1, %s, %s, null) on conflict (account_id, line) do update set"
            connection.execute(f"{values} note = excluded.note".format(pipeline.name).encode(), (line, note))

    def rejections() -> list[dict[str, Any]]:
        return list(json.loads(pipeline.run("rejections", "list", view, "--json"))["rejections"])

    def stored() -> dict[int, str]:
        settings = pipeline.config.sinks[view]
        opened = open_sink(view, settings, 1)
        shapes = read_tables(pipeline.client, pipeline.name)
        assert settings.view is not None
        rows = {
            int(row.key["line"]): row.row["note"] for row in opened.sink.scan(planned_view(settings.view, shapes).table)
        }
        opened.sink.close()
        return rows

    for line, note in ((1001, "short"), (1002, long), (1003, long)):
        write(line, note)
    job = pipeline.apply(spark, view)

    def wait_all() -> None:
        with pipeline.sql() as connection:
            target = emit_heartbeat(connection)

        def has_all() -> bool:
            assert job.poll() is None, job.output()
            lsn = of(pipeline, capsys, "notes")["lsn"]
            return lsn is not None and parse_lsn(lsn) >= target

        wait_until(has_all, what="the view has all")

    wait_all()
    write(1004, long)
    write(1005, "short too")
    wait_all()
    assert {line: note for line, note in stored().items() if line > 1000} == {1001: "short", 1005: "short too"}
    found = rejections()
    assert [(each["table"], each["key"]["line"]) for each in found] == [
        (f"views.{view}", line) for line in (1002, 1003, 1004)
    ]
    assert "secret" not in json.dumps(found)
    lag = json.loads(pipeline.run("lag", "--json"))
    assert (lag["open_rejections"][view], lag["rejected"][view]) == (3, 3)
    verified = pipeline.run("verify", view, "--json", ends_with=1)
    (table,) = json.loads(verified)["tables"]
    assert {difference["note"].partition(":")[0] for difference in table["differences"]} == {"rejected"}

    write(1002, "mended")  # closed by itself
    with pipeline.sql() as connection:
        connection.execute(f"delete from {pipeline.name}.entry where line = 1003".encode())
    wait_all()
    wait_until(lambda: len(rejections()) == 1, what="what changed is closed")
    refused = json.loads(pipeline.run("rejections", "retry", view, "--all", "--json", ends_with=1))
    assert (refused["taken"], len(refused["refused"])) == (0, 1)
    text = pipeline.path.read_text()
    pipeline.path.write_text(text.replace("max_value_bytes = 300", "max_value_bytes = 30000"))
    taken = json.loads(pipeline.run("rejections", "retry", view, "--all", "--json"))
    assert (taken["taken"], rejections()) == (1, [])
    rows = {line: note for line, note in stored().items() if line > 1000}
    assert rows == {1001: "short", 1002: "mended", 1004: long, 1005: "short too"}
    pipeline.path.write_text(text)

    write(1006, long)
    wait_all()
    wait_until(lambda: len(rejections()) == 1, what="one more is refused")
    pipeline.run("rejections", "discard", view, "--all", "--yes")
    write(1007, "after")
    wait_all()
    assert (rejections(), stored()[1007]) == ([], "after")
    job.ask_to_stop()
    job.close()
    assert not [seen for seen in job.reports if seen["report"] == "SinkFailed"]
