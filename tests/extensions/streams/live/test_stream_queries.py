"""Queries over streams on Spark's event-time operators: what comes out, what is late, and what a restart does."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from extensions.streams.jobs.rebuild import begin_again
from extensions.streams.settings import StreamQuerySettings
from sinks.warehouse.settings import WarehouseSettings
from stack.stack import Endpoints
from tests.databases import Database, url_of
from tests.extensions.streams.streams import Streams, at

pytestmark = [pytest.mark.live, pytest.mark.busy]

EVENT = {"time": "at", "late": "10 minutes", "id": ["id"]}
SEARCHES = {**EVENT, "columns": {"id": "text", "user_id": "int8", "at": "timestamptz", "query": "text"}}
CLICKS = {**EVENT, "columns": {"id": "text", "search_id": "text", "at": "timestamptz", "url": "text"}}
SEARCH_CLICKS = StreamQuerySettings(
    key=("search_id", "click_id"),
    sql="select s.id as search_id, coalesce(c.id, '') as click_id, s.query, s.at, c.url from searches s left join"
    " clicks c on c.search_id = s.id and c.at between s.at and s.at + interval '10 minutes'",
)


class Warehouse:
    """The result of a query in a warehouse of its own."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._database = Database(endpoints.warehouse_dsn)
        self._connection = psycopg.connect(self._database.dsn, autocommit=True)
        self.settings = WarehouseSettings.model_validate(
            {"url": url_of(endpoints.warehouse_url, self._database.name), "schema": "result"}
        )

    def rows(self, columns: str) -> list[tuple[Any, ...]]:
        (table,) = self._connection.execute(
            "select table_name from information_schema.tables where table_schema = 'result' and table_name not like"
            " '\\_%'"
        ).fetchall()
        return self._connection.execute(f"select {columns} from result.{table[0]} order by {columns}").fetchall()

    def close(self) -> None:
        self._connection.close()
        self._database.drop()


@pytest.fixture
def warehouse(endpoints: Endpoints) -> Iterator[Warehouse]:
    made = Warehouse(endpoints)
    try:
        yield made
    finally:
        made.close()


def search(number: int, minutes: float) -> dict[str, Any]:
    return {"id": f"s{number}", "user_id": number, "at": at(minutes), "query": f"shoes {number}"}


def click(number: int, search_number: int, minutes: float) -> dict[str, Any]:
    return {"id": f"c{number}", "search_id": f"s{search_number}", "at": at(minutes), "url": f"/{number}"}


@pytest.mark.soak
def test_what_spark_drops_as_late_is_on_the_side_topic_with_its_lateness(
    endpoints: Endpoints, spark: SparkSession, warehouse: Warehouse, tmp_path: Path
) -> None:
    streams = Streams(
        endpoints.kafka_bootstrap, tmp_path, {"searches": SEARCHES, "clicks": CLICKS}, SEARCH_CLICKS, warehouse.settings
    )
    streams.send("searches", search(1, 0), search(2, 60))
    streams.send("clicks", click(1, 1, 1), click(2, 2, 61))
    assert streams.run(spark) == 0, streams.told
    # The slower stream is at 60 minutes, less 10. An event at the watermark is late, and one just after it isn't.
    streams.send("searches", search(3, 50), search(4, 50.001), received=62)
    streams.send("clicks", click(4, 4, 51), click(5, 3, 20), received=62)
    assert streams.run(spark) == 0, streams.told

    late = sorted(streams.aside("late"), key=lambda record: record["stream"])
    assert [(each["stream"], each["event_time"], each["watermark"], each["late_ms"]) for each in late] == [
        ("clicks", at(20), at(50), 30 * 60_000),
        ("searches", at(50), at(50), 0),
    ]
    assert json.loads(late[1]["value"])["id"] == "s3"
    assert late[1]["received_at"] == at(62)
    assert streams.figures().late == 2
    assert streams.aside("malformed") == []


@pytest.mark.soak
def test_a_record_that_is_no_event_is_on_the_side_topic_with_the_reason(
    endpoints: Endpoints, spark: SparkSession, warehouse: Warehouse, tmp_path: Path
) -> None:
    query = StreamQuerySettings(key=("id",), sql="select id, user_id, at from searches")
    # A record of the side topic has 16 kB at most, and a value there 10,752 bytes.
    streams = Streams(
        endpoints.kafka_bootstrap, tmp_path, {"searches": SEARCHES}, query, warehouse.settings, max_message_bytes=4096
    )
    broken = [b"{", b"[1]", b"\xff", None, {**search(8, 0), "user_id": "many"}, {**search(9, 0), "id": None}]
    streams.send("searches", search(1, 0), *broken)
    streams.send("searches", search(10, 500), received=0)
    streams.send("searches", *[byte * 60_000 for byte in (b"x", b"\x01", b"\xff")])
    assert streams.run(spark) == 0, streams.told

    assert warehouse.rows("id, user_id") == [("s1", 1)]
    reasons = {record["offset"]: record["reason"] for record in streams.aside("malformed")}
    unfit = "it isn't a JSON object whose members fit the columns"
    assert reasons == {
        **dict.fromkeys((1, 2, 3, 5), unfit),
        4: "the record has no value",
        6: "it has no id",
        7: "it happened more than an hour after it was received",
        **dict.fromkeys((8, 9, 10), unfit),
    }
    values = {record["offset"]: record for record in streams.aside("malformed")}
    assert (values[1]["value"], values[3]["value_base64"]) == ("{", "/w==")
    assert [offset for offset, record in values.items() if record.get("value_bytes") == 60_000] == [8, 9, 10]
    assert (values[8]["value"], values[9]["value"]) == ("x" * 10_752, "\x01" * (10_752 // 6))
    assert base64.b64decode(values[10]["value_base64"]) == b"\xff" * 8_064
    assert streams.figures().malformed == 10
    assert streams.aside("late") == []


@pytest.mark.soak
def test_sessions_end_after_their_gap_and_come_once(
    endpoints: Endpoints, spark: SparkSession, warehouse: Warehouse, tmp_path: Path
) -> None:
    query = StreamQuerySettings(
        key=("user_id", "began_at"),
        sql="select user_id, session_window(at, '30 minutes').start as began_at, max(at) as last_at, count(*) as events"
        " from searches group by user_id, session_window(at, '30 minutes')",
    )
    streams = Streams(endpoints.kafka_bootstrap, tmp_path, {"searches": SEARCHES}, query, warehouse.settings)
    streams.send("searches", *[{**search(n, minute), "user_id": 7} for n, minute in enumerate((0, 20, 40, 100))])
    assert streams.run(spark) == 0, streams.told
    assert warehouse.rows("user_id, events") == [(7, 3)]
    # It comes in the middle of the batch's time, and is no more than ten minutes behind: not late.
    streams.send("searches", {**search(5, 95), "user_id": 7}, {**search(6, 300), "user_id": 8})
    assert streams.run(spark) == 0, streams.told
    told = warehouse.rows("user_id, events, to_char(began_at at time zone 'UTC', 'HH24:MI')")
    assert told == [(7, 2, "13:35"), (7, 3, "12:00")]


@pytest.mark.soak
def test_a_lost_checkpoint_stops_the_query_until_its_result_is_built_again(
    endpoints: Endpoints, spark: SparkSession, warehouse: Warehouse, tmp_path: Path
) -> None:
    query = StreamQuerySettings(key=("id",), sql="select id, user_id from searches")
    streams = Streams(endpoints.kafka_bootstrap, tmp_path, {"searches": SEARCHES}, query, warehouse.settings)
    streams.send("searches", search(1, 0))
    assert streams.run(spark) == 0, streams.told
    other = streams.spark.model_copy(update={"checkpoint_directory": str(tmp_path / "elsewhere")})
    streams.send("searches", search(2, 1))
    assert streams.run(spark, spark=other) == 1
    assert "its checkpoint is gone" in streams.told
    assert f"lockstep streams rebuild {streams.name}" in streams.told
    assert warehouse.rows("id") == [("s1",)]

    begin_again(streams.plan())
    assert streams.run(spark, spark=other) == 0, streams.told
    assert warehouse.rows("id") == [("s1",), ("s2",)]


@pytest.mark.parametrize("are_figures_stored", [pytest.param(False, marks=pytest.mark.soak), True])
def test_results_come_once_each_also_of_a_batch_that_was_not_committed_and_is_done_again(
    endpoints: Endpoints, spark: SparkSession, warehouse: Warehouse, tmp_path: Path, are_figures_stored: bool
) -> None:
    """With a click and without one. As after a kill between what a batch writes and Spark's commit."""
    streams = Streams(
        endpoints.kafka_bootstrap, tmp_path, {"searches": SEARCHES, "clicks": CLICKS}, SEARCH_CLICKS, warehouse.settings
    )
    streams.send("searches", search(1, 0), search(1, 0), search(5, 1), search(2, 60))
    streams.send("clicks", click(1, 1, 1), click(1, 1, 1), click(2, 2, 61))
    assert streams.run(spark) == 0, streams.told
    before = streams.figures()
    # None of these moves the watermark, so they are one batch, and no other one follows it.
    streams.send("searches", b"{", search(3, 20), search(4, 55), received=62)
    streams.send("clicks", click(4, 4, 56), click(5, 3, 20), received=63)
    assert streams.run(spark) == 0, streams.told
    assert streams.figures().batch == before.batch + 1
    rows, figures = warehouse.rows("search_id, click_id, query, at, url"), streams.figures()
    late = streams.aside("late")
    assert [row[:2] for row in rows] == [("s1", "c1"), ("s2", "c2"), ("s4", "c4"), ("s5", "")]
    assert (figures.late, figures.malformed) == (2, 1)

    commits = tmp_path / "checkpoints" / streams.pipeline / streams.name / "g1" / "commits"
    done = sorted((int(path.name), path) for path in commits.iterdir() if path.name.isdecimal())
    for number, path in done:
        if number > before.batch:
            path.unlink()
    if not are_figures_stored:
        streams.restore(before)
    assert streams.run(spark) == 0, streams.told
    assert warehouse.rows("search_id, click_id, query, at, url") == rows
    assert streams.aside("late") == late
    assert streams.figures().results == figures.results
    assert (streams.figures().late, streams.figures().malformed) == (2, 1)
