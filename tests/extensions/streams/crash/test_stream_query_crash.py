"""A stream query's job is killed again and again, and its result is what its events say."""

import contextlib
import json
import random
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from cdc.webhook import WebhookSettings
from extensions.streams.executor.pattern_matching import Event
from extensions.streams.jobs.pattern_frames import stages_of
from extensions.streams.settings import StreamQuerySettings
from jobs.dead_letters.topic import DeadLetterTopic
from sinks.warehouse.settings import WarehouseSettings
from stack.stack import Endpoints
from tests.databases import Database, until, url_of
from tests.extensions.streams.pattern_search import searched
from tests.extensions.streams.streams import Streams, at
from tests.job_process import JobProcess
from tests.receivers import Receiver

pytestmark = [pytest.mark.live, pytest.mark.crash, pytest.mark.busy, pytest.mark.soak]

_EVENT = {"time": "at", "late": "10 minutes", "id": ["id"]}
_USERS = 6
_PER_USER = 9


def _shuffled(seed: random.Random, round_: int) -> list[dict[str, Any]]:
    """Events of every user over half an hour, out of order by some minutes; some of later rounds are hours late."""
    events = []
    for user_id in range(_USERS):
        for number in range(_PER_USER):
            minutes = round_ * 30 + seed.random() * 30
            is_late = round_ > 0 and seed.random() < 0.2
            event = {"id": f"e{round_}-{user_id}-{number}", "user_id": user_id, "kind": seed.choice("abc")}
            events.append((minutes + seed.random() * 8, event | {"at": at(minutes - 300 * is_late)}))
    return [event for _, event in sorted(events, key=lambda one: one[0])]


def test_kill_9_in_the_middle_of_a_batch_leaves_the_matches_that_a_search_of_all_events_finds(
    endpoints: Endpoints, spark: SparkSession, tmp_path: Path
) -> None:
    seed = random.Random(15)
    database = Database(endpoints.warehouse_dsn)
    query = StreamQuerySettings.model_validate(
        {
            "topic": True,
            "pattern": {
                "per": ["user_id"],
                "within": "12 minutes",
                "steps": [
                    {"name": "cart", "stream": "events", "where": "kind = 'a'"},
                    {"name": "left", "stream": "events", "where": "kind = 'b'", "without": True},
                    {"name": "paid", "stream": "events", "where": "kind = 'c'"},
                ],
                "select": {"ids": "concat(cart.id, ' ', paid.id)"},
            },
        }
    )
    columns = {"id": "text", "user_id": "int8", "kind": "text", "at": "timestamptz"}
    settings = WarehouseSettings.model_validate(
        {"url": url_of(endpoints.warehouse_url, database.name), "schema": "result"}
    )
    streams = Streams(endpoints.kafka_bootstrap, tmp_path, {"events": {**_EVENT, "columns": columns}}, query, settings)
    checkpoint = tmp_path / "checkpoints" / streams.pipeline / streams.name / "g1"
    sent = []

    def newest(part: str) -> int:
        return max((int(path.name) for path in (checkpoint / part).glob("[0-9]*")), default=-1)

    def send(round_: int) -> None:
        events = _shuffled(seed, round_)
        streams.send("events", *events, received=1_000)
        sent.extend(events)

    try:
        with JobProcess(**streams.arguments(once=False)) as job:
            send(0)
            # From now on events may be late.
            until(lambda: "StreamReport" in job.output() and (streams.figures().watermark_ms or 0) > 0)
            send(1)
            # A batch has begun, and Spark hasn't committed it.
            until(lambda: newest("offsets") > newest("commits"))
            job.kill()
        send(2)
        end = {"id": "end", "user_id": -1, "kind": "x", "at": at(500)}
        streams.send("events", end, received=1_000)
        assert streams.run(spark) == 0, streams.told

        late = {json.loads(record["value"])["id"] for record in streams.aside("late")}
        assert late
        expected = set[tuple[int, str]]()
        for user_id in range(_USERS):
            own = [
                Event(_microseconds(event["at"]), event["id"], 1 << "abc".index(event["kind"]), event["id"])
                for event in sent
                if event["user_id"] == user_id and event["id"] not in late
            ]
            assert query.pattern is not None
            matches = searched(stages_of(query.pattern), own)
            expected |= {(user_id, " ".join(event.values for event in match)) for match in matches}
        assert len(expected) > _USERS
        with psycopg.connect(database.dsn) as connection:
            ((table,),) = connection.execute(
                "select table_name from information_schema.tables where table_schema = 'result' and table_name not"
                " like '\\_%'"
            ).fetchall()
            rows = connection.execute(f"select user_id, ids from result.{table}").fetchall()
        assert sorted(rows) == sorted(expected)
        told = [json.loads(row) for row in dict(streams.on_topic()).values()]
        assert sorted((row["user_id"], row["ids"]) for row in told) == sorted(expected)
        assert streams.figures().late == len(late)
        assert streams.figures().refused == 0
    finally:
        database.drop()


_ROWS = 60
_WEBHOOK_KILLS = 2


def test_kill_9_of_a_job_whose_webhook_refuses_rows_loses_none_of_them(
    endpoints: Endpoints, spark: SparkSession, tmp_path: Path
) -> None:
    """Each row is received, or open as a rejection, by the receiver's last answer."""
    seed = random.Random(23)
    database = Database(endpoints.warehouse_dsn)
    answers = dict[str, list[bool]]()
    with contextlib.closing(Receiver()) as receiver:

        def answered(document: dict[str, Any]) -> int | None:
            name = document["row"]["id"]
            # The first tries are refused together, and so the row is; what a kill has posted again may be taken.
            is_refused = int(name[1:]) % 4 == 0 and (len(answers.get(name, ())) < 3 or seed.random() < 0.5)
            answers.setdefault(name, []).append(is_refused)
            return 422 if is_refused else None

        receiver.refuses = answered
        streams = Streams(
            endpoints.kafka_bootstrap,
            tmp_path,
            {"logins": {**_EVENT, "columns": {"id": "text", "at": "timestamptz"}}},
            StreamQuerySettings(
                key=("id",),
                sql="select id, at from logins",
                webhook=WebhookSettings(url=f"http://127.0.0.1:{receiver.port}/rows"),
            ),
            WarehouseSettings.model_validate(
                {"url": url_of(endpoints.warehouse_url, database.name), "schema": "result"}
            ),
        )
        try:
            streams.send("logins", *({"id": f"l{number}", "at": at(number)} for number in range(_ROWS)))
            for _ in range(_WEBHOOK_KILLS):
                asked, wait = receiver.asked, seed.randrange(2, 14)
                with JobProcess(**streams.arguments(once=False)) as job:
                    until(lambda asked=asked, wait=wait: receiver.asked >= asked + wait)
                    job.kill()
            assert streams.run(spark) == 0, streams.told
            readable, _ = DeadLetterTopic(streams.client, streams.pipeline).read()
            rejected = {json.loads(each.key)["id"] for each in readable}
            assert answers.keys() == {f"l{number}" for number in range(_ROWS)}
            assert rejected == {name for name, given in answers.items() if given[-1]}
            assert rejected
            received = {document["row"]["id"] for document in receiver.documents}
            assert received == {name for name, given in answers.items() if not all(given)}
            assert streams.status().posted.waiting == 0
        finally:
            database.drop()


def _microseconds(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)
