"""Patterns over streams: matches of events that come late, out of order and in several runs, and a batch done again."""

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
CARTS = {**EVENT, "columns": {"id": "text", "user_id": "int8", "at": "timestamptz", "product": "text"}}
PAYMENTS = {**EVENT, "columns": {"id": "text", "user_id": "int8", "at": "timestamptz"}}
LOGINS = {**EVENT, "columns": {"id": "text", "user_id": "int8", "at": "timestamptz", "ok": "bool"}}
ABANDONED = StreamQuerySettings.model_validate(
    {
        "pattern": {
            "per": ["user_id"],
            "within": "30 minutes",
            "steps": [
                {"name": "cart", "stream": "carts"},
                {"name": "paid", "stream": "payments", "without": True},
            ],
            "select": {"product": "cart.product"},
        }
    }
)
FAILED = StreamQuerySettings.model_validate(
    {
        "pattern": {
            "per": ["user_id"],
            "within": "5 minutes",
            "steps": [
                {"name": "failed", "stream": "logins", "where": "not ok", "times": 3},
            ],
            "select": {"ids": "array_join(failed.id, ' ')"},
        }
    }
)


@pytest.fixture
def database(warehouse_database: Database) -> Database:
    return warehouse_database


def streams_of(
    endpoints: Endpoints, directory: Path, database: Database, query: StreamQuerySettings, **streams: dict[str, Any]
) -> Streams:
    url = url_of(endpoints.warehouse_url, database.name)
    settings = WarehouseSettings.model_validate({"url": url, "schema": "result"})
    return Streams(endpoints.kafka_bootstrap, directory, streams, query, settings)


def rows(database: Database, columns: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database.dsn) as connection:
        ((table,),) = connection.execute(
            "select table_name from information_schema.tables where table_schema = 'result' and table_name not like"
            " '\\_%'"
        ).fetchall()
        return connection.execute(f"select {columns} from result.{table} order by {columns}").fetchall()


def cart(number: int, user_id: int, minutes: float) -> dict[str, Any]:
    return {"id": f"c{number}", "user_id": user_id, "at": at(minutes), "product": f"shoes {number}"}


def payment(number: int, user_id: int, minutes: float) -> dict[str, Any]:
    return {"id": f"p{number}", "user_id": user_id, "at": at(minutes)}


def failed(number: int, user_id: int, minutes: float, *, ok: bool = False) -> dict[str, Any]:
    return {"id": f"l{number}", "user_id": user_id, "at": at(minutes), "ok": ok}


@pytest.mark.soak
def test_what_did_not_follow_comes_once_it_can_not_any_more(
    endpoints: Endpoints, spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    streams = streams_of(endpoints, tmp_path, database, ABANDONED, carts=CARTS, payments=PAYMENTS)
    streams.send("payments", payment(1, 1, 5))
    streams.send("carts", cart(2, 2, 1), cart(1, 1, 0), cart(2, 2, 1))
    assert streams.run(spark) == 0, streams.told
    assert rows(database, "user_id") == []

    streams.send("payments", payment(2, 4, 46))
    streams.send("carts", cart(3, 3, 45), cart(4, 4, 40))
    assert streams.run(spark) == 0, streams.told
    assert rows(database, "user_id, product") == [(2, "shoes 2")]

    streams.send("carts", cart(5, 5, 30), cart(6, 6, 100), received=100)
    streams.send("payments", payment(3, 7, 100), payment(4, 8, 30), received=100)
    assert streams.run(spark) == 0, streams.told
    found = rows(database, "user_id, began_at, ended_at, product")
    assert [(user_id, began_at.isoformat(), product) for user_id, began_at, _, product in found] == [
        (2, at(1).replace("Z", "+00:00"), "shoes 2"),
        (3, at(45).replace("Z", "+00:00"), "shoes 3"),
    ]
    assert all(began_at == ended_at for _, began_at, ended_at, _ in found)
    late = [(record["stream"], record["offset"]) for record in streams.aside("late")]
    assert sorted(late) == [("carts", 5), ("payments", 3)]
    assert (streams.figures().results, streams.figures().late) == (2, 2)


@pytest.mark.soak
def test_a_batch_that_is_done_again_and_a_new_build_have_the_same_matches(
    endpoints: Endpoints, spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    streams = streams_of(endpoints, tmp_path, database, FAILED, logins=LOGINS)
    # Six failures in a row are two matches, also where three are of one time.
    streams.send("logins", failed(2, 1, 1), failed(1, 1, 0), failed(9, 2, 0), failed(3, 1, 1), failed(4, 1, 2))
    assert streams.run(spark) == 0, streams.told
    streams.send(
        "logins", failed(7, 1, 2), failed(6, 1, 2), failed(5, 1, 2, ok=True), failed(8, 2, 8), failed(10, 3, 20)
    )
    assert streams.run(spark) == 0, streams.told
    expected = [(1, "l1 l2 l3"), (1, "l4 l6 l7")]
    assert rows(database, "user_id, ids") == expected
    figures = streams.figures()

    commits = tmp_path / "checkpoints" / streams.pipeline / streams.name / "g1" / "commits"
    for path in commits.iterdir():
        if path.name == str(figures.batch):
            path.unlink()
    streams.send("logins", failed(11, 3, 21), failed(12, 3, 22), failed(13, 3, 40))
    assert streams.run(spark) == 0, streams.told
    expected.append((3, "l10 l11 l12"))
    assert rows(database, "user_id, ids") == expected
    assert (streams.figures().results, streams.figures().refused) == (3, 0)

    begin_again(streams.plan())
    assert streams.run(spark) == 0, streams.told
    assert rows(database, "user_id, ids") == expected
    assert streams.figures(2).results == 3
    # What is kept is copied as a whole now and then, and has no file with a checksum beside each.
    assert list(tmp_path.rglob("*.zip"))
    assert list(tmp_path.rglob("*.crc")) == []
