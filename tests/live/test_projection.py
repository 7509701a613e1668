"""What a sink sees: names, masks, computed columns and filters, in every store and in every way that rows arrive."""

import itertools
import json
import os
import urllib.request
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import redis
from pyspark.sql import SparkSession

from lockstep.verify.options import VerifyOptions
from lockstep.verify.report import Kind, VerifyReport
from lockstep.verify.verify import verify
from tests.pipeline import Pipeline, wait_until

pytestmark = [pytest.mark.live, pytest.mark.busy]

SALT = "a long random text"
_numbers = itertools.count(1)


def _settings(name: str) -> str:
    return f"""
exclude = ["{name}.account.tags"]
rename = {{ "{name}.account.id" = "number", "{name}.account.owner" = "name" }}
mask = {{ "{name}.account.owner" = {{ truncate = 2 }}, "{name}.entry.note" = "hash", "{name}.entry.doc" = "drop" }}
computed."{name}.account.share" = {{ sql = "balance / 4", type = "numeric" }}
computed."{name}.account.inverse" = {{ sql = "100 / balance::int", type = "int4" }}
where = {{ "{name}.account" = "owner <> 'nobody'" }}
"""


@pytest.fixture(scope="module")
def pipeline(stack: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """Its rows aren't applied anywhere yet."""
    name = f"shown{os.getpid()}_{next(_numbers)}"
    os.environ |= {f"LOCKSTEP_SINK_{name}_{kind}_SALT".upper(): SALT for kind in ("search", "cache", "warehouse")}
    more = dict.fromkeys(("search", "cache", "warehouse"), _settings(name))
    more["warehouse"] += "history = true"
    made = Pipeline(
        stack.endpoints(),
        tmp_path_factory.mktemp("shown"),
        name,
        sinks=True,
        more={**more, "spark": "trigger_ms = 100"},
    )
    yield made
    made.close()
    for variable in [
        variable_name for variable_name in os.environ if variable_name.startswith(f"LOCKSTEP_SINK_{name}_".upper())
    ]:
        del os.environ[variable]


def _verify(pipeline: Pipeline, kind: str, against: str = "source") -> VerifyReport:
    return verify(
        pipeline.config,
        VerifyOptions(f"{pipeline.name}_{kind}", against=against),
        say=lambda _: None,
        progress=lambda _: None,
        stopping=lambda: False,
    )


def _cached(pipeline: Pipeline, table: str, key: str) -> dict[str, Any] | None:
    with redis.Redis.from_url(pipeline.endpoints.redis_url) as client:
        value: Any = client.hget(f"{pipeline.name}_cache:g1:{pipeline.name}.{table}:{key}", "v")
    document: dict[str, Any] | None = None if value is None else json.loads(value)
    return document


def _searched(pipeline: Pipeline, number: int) -> dict[str, Any] | None:
    index = f"{pipeline.name}_search.{pipeline.name}.account"
    url = f"{pipeline.endpoints.opensearch_url}/{index}/_search?q=number:{number}"
    with urllib.request.urlopen(url) as answer:
        hits = json.load(answer)["hits"]["hits"]
    return hits[0]["_source"] if hits else None


def _stored(pipeline: Pipeline, number: int) -> tuple[Any, ...] | None:
    view = f"{pipeline.name}_warehouse.{pipeline.name}__account"
    with psycopg.connect(pipeline.endpoints.warehouse_dsn) as connection:
        return connection.execute(
            f"select name, balance::text, share::text, inverse from {view} where number = %s", (number,)
        ).fetchone()


def _versions(pipeline: Pipeline, number: int) -> list[tuple[Any, ...]]:
    view = f"{pipeline.name}_warehouse.{pipeline.name}__account_history"
    with psycopg.connect(pipeline.endpoints.warehouse_dsn) as connection:
        return connection.execute(
            f"select _operation, name, balance::text, valid_to is null from {view} where number = %s order by _tag",
            (number,),
        ).fetchall()


def test_every_store_shows_what_its_settings_say_and_a_comparison_agrees(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    name = pipeline.name
    with pipeline.sql() as sql:
        sql.execute(
            f"insert into {name}.account values (1, 'Alice', 10.5, '{{a}}'), (2, 'Bob', 7, null),"
            " (3, 'nobody', 8, null), (4, 'Dora', 0, null)"
        )
        sql.execute(f"insert into {name}.entry values (1, 1, 'secret', '{{}}'), (1, 2, null, null)")
    capture = pipeline.start_capture()
    apply = pipeline.apply(spark)
    with pipeline.sql() as sql:
        pipeline.wait_streaming(capture)
        sql.execute(f"update {name}.account set owner = 'Albert' where id = 1")
        sql.execute(f"update {name}.account set owner = 'nobody' where id = 2")  # was there, and shouldn't be any more
        sql.execute(f"insert into {name}.account values (5, 'Eve', 50, null)")
        sql.execute(f"delete from {name}.account where id = 5")
        sql.execute(f"insert into {name}.account values (6, 'Fred', 50, null), (7, null, 1, null)")
    pipeline.wait_applied(apply)

    assert _stored(pipeline, 1) == ("Al", "10.5", "2.6250000000000000", 9)
    assert _stored(pipeline, 6) == ("Fr", "50", "12.5000000000000000", 2)
    assert [_stored(pipeline, number) for number in (2, 3, 4, 5, 7)] == [None] * 5
    cached = _cached(pipeline, "account", "1")
    assert cached is not None
    assert cached.keys() == {"number", "name", "balance", "changed", "share", "inverse"}
    assert (cached["number"], cached["name"], cached["share"], cached["inverse"]) == (1, "Al", "2.6250000000000000", 9)
    entry = _cached(pipeline, "entry", "1:1")
    assert entry is not None
    assert entry.keys() == {"account_id", "line", "note"}
    assert len(entry["note"]) == 64
    assert "secret" not in str(entry)
    assert _cached(pipeline, "entry", "1:2") == {"account_id": 1, "line": 2, "note": None}

    # Every sink refuses a row for which an expression fails, and nothing else.
    refused = json.loads(pipeline.run("rejections", "list", "--json"))
    rejected = {(rejection["sink"], json.dumps(rejection["key"])) for rejection in refused["rejections"]}
    assert {sink for sink, _ in rejected} == {f"{name}_{kind}" for kind in ("search", "cache", "warehouse")}
    assert len(rejected) == 3

    for against in ("source", "topic"):
        report = _verify(pipeline, "cache", against)
        [difference] = [difference for table_report in report.tables for difference in table_report.differences]
        assert (difference.key, difference.kind) == (b'{"id":4}', Kind.MISSING)
        assert "expression: computed column 'inverse'" in difference.note

    with pipeline.sql() as sql:
        sql.execute(f"update {name}.account set balance = 25 where id = 4")
    pipeline.wait_applied(apply)
    assert _stored(pipeline, 4) == ("Do", "25", "6.2500000000000000", 4)
    wait_until(lambda: _searched(pipeline, 4) is not None, what="the document can be found")
    found_document = _searched(pipeline, 4)
    assert found_document is not None
    assert (found_document["name"], found_document["inverse"]) == ("Do", 4)
    assert json.loads(pipeline.run("rejections", "list", "--json"))["rejections"] == []
    assert [_verify(pipeline, kind).is_equal for kind in ("search", "cache", "warehouse")] == [True] * 3
    # All versions are there, as they should be seen.
    assert _versions(pipeline, 1) == [("snapshot", "Al", "10.5", False), ("update", "Al", "10.5", True)]
    assert _versions(pipeline, 2) == [("snapshot", "Bo", "7", False), ("delete", None, None, False)]
    assert _versions(pipeline, 4) == [("update", "Do", "25", True)]
    assert _versions(pipeline, 5) == [("insert", "Ev", "50", False), ("delete", None, None, False)]

    # A later column, and the values that earlier rows have in it, with masks or without.
    with pipeline.sql() as sql:
        sql.execute(f"alter table {name}.account add column region text default 'north'")
        sql.execute(f"update {name}.account set owner = 'Alice' where id = 1")
    pipeline.wait_applied(apply)
    assert _verify(pipeline, "cache").is_equal  # which carries rows over
    assert "equal" in pipeline.run("verify", f"{name}_warehouse")  # which has them from its DDL
    assert apply.stop() == 0, apply.output()
    assert pipeline.stop(capture) == 0

    os.environ[f"LOCKSTEP_SINK_{name}_cache_SALT".upper()] = "another"
    try:
        other = pipeline.apply(spark, f"{name}_cache")
        assert other.finish() == 1
    finally:
        os.environ[f"LOCKSTEP_SINK_{name}_cache_SALT".upper()] = SALT
    assert "another salt of this sink's hashes" in other.wait_for("SinkFailed")["error"]
