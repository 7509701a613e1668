"""Results of stream queries on a topic and at a webhook: whatever is done again, each row is told once by its key."""

import contextlib
import json
import threading
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from cdc.kafka.topic_admin import TopicAdmin
from cdc.webhook import WebhookSettings
from extensions.streams.jobs.posted import Posted
from extensions.streams.jobs.posting import RowPoster
from extensions.streams.jobs.rebuild import begin_again
from extensions.streams.jobs.records import posted_name
from extensions.streams.settings import StreamQuerySettings
from jobs.generations.lease import GenerationLease
from sinks.memory import open_memory
from sinks.redis.settings import RedisSettings
from sinks.warehouse.settings import WarehouseSettings
from stack.stack import Endpoints
from tests.databases import Database, until, url_of
from tests.extensions.streams.streams import Streams, at
from tests.generations import prepared_store
from tests.receivers import Receiver

pytestmark = [pytest.mark.live, pytest.mark.busy]

LOGINS = {
    "time": "at",
    "late": "10 minutes",
    "id": ["id"],
    "columns": {"id": "text", "user_id": "int8", "at": "timestamptz"},
}
PATTERN = {
    "per": ["user_id"],
    "within": "5 minutes",
    "steps": [{"name": "failed", "stream": "logins", "times": 2}],
    "select": {"ids": "array_join(failed.id, ' ')"},
}


@pytest.fixture
def database(warehouse_database: Database) -> Database:
    return warehouse_database


def login(number: int, user_id: int, minutes: float) -> dict[str, object]:
    return {"id": f"l{number}", "user_id": user_id, "at": at(minutes)}


@pytest.mark.soak
def test_matches_wait_for_a_receiver_that_is_down_and_none_is_lost_whatever_is_done_again(
    endpoints: Endpoints, spark: SparkSession, database: Database, receiver: Receiver, tmp_path: Path
) -> None:
    query = StreamQuerySettings.model_validate(
        {"pattern": PATTERN, "webhook": WebhookSettings(url=f"http://127.0.0.1:{receiver.port}/matches")}
    )
    settings = WarehouseSettings.model_validate(
        {"url": url_of(endpoints.warehouse_url, database.name), "schema": "result"}
    )
    streams = Streams(endpoints.kafka_bootstrap, tmp_path, {"logins": LOGINS}, query, settings)
    receiver.status = 503
    streams.send("logins", *[login(number, number // 2 % 3, number) for number in reversed(range(12))])
    streams.send("logins", login(99, 9, 60))
    with streams.job(spark) as job:
        until(lambda: streams.status().posted.waiting == 6)
        assert streams.status().reason == "the webhook at 127.0.0.1 answered with status 503; 6 rows wait for it"
        assert streams.status().state == "running"
        assert job.stop() == 0, job.output()
    assert receiver.documents == []

    # As if it was killed before Spark's commit, so that the batch with the matches is done again.
    commits = tmp_path / "checkpoints" / streams.pipeline / streams.name / "g1" / "commits"
    max(commits.glob("[0-9]*"), key=lambda path: int(path.name)).unlink()
    receiver.status = 204
    assert streams.run(spark) == 0, streams.told
    records = streams.on_topic()
    assert len(records) == 12
    assert len(set(records)) == len(dict(records)) == 6
    told = {document["id"]: document for document in receiver.documents}
    assert [(document["key"], document["row"]) for document in told.values()] == [
        (json.loads(key), json.loads(row)) for key, row in dict(records).items()
    ]
    for user_id in range(3):
        own = [document["row"] for document in told.values() if document["key"]["user_id"] == user_id]
        assert [row["ids"] for row in own] == [f"l{n} l{n + 1}" for n in (2 * user_id, 2 * user_id + 6)]
    assert (streams.status().posted.waiting, streams.status().reason) == (0, "")

    begin_again(streams.plan())
    assert streams.run(spark) == 0, streams.told
    again = receiver.documents[-6:]
    assert {document["generation"] for document in again} == {2}
    assert {document["id"] for document in again} == told.keys()
    names = [topic.name for topic in (streams.plan().result_topic(1), streams.plan().result_topic(2)) if topic]
    assert TopicAdmin(streams.client).partition_counts(names) == {names[1]: 1}


@pytest.mark.soak
def test_rows_that_a_topic_has_lost_are_told_of_and_those_that_it_has_are_posted(
    endpoints: Endpoints, receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    query = StreamQuerySettings(
        key=("id",), sql="x", webhook=WebhookSettings(url=f"http://127.0.0.1:{receiver.port}/rows")
    )
    streams = Streams(endpoints.kafka_bootstrap, tmp_path, {"logins": LOGINS}, query, RedisSettings())
    store, cluster, topic = prepared_store(1, 2), TopicAdmin(streams.client), streams.plan().result_topic(2)
    assert topic is not None
    cluster.create([topic])
    producer = Producer(streams.client)
    for number in range(2):
        producer.produce(topic.name, b"{}", json.dumps({"id": number}).encode())
    producer.flush()
    store.records[posted_name(1)] = Posted("of a topic that is gone", offset=3, posted=3, waiting=2).text()
    store.records[posted_name(2)] = Posted(cluster.topic_ids([topic.name])[topic.name], offset=5, posted=5).text()
    lease = GenerationLease(open_memory(store, 2), 2)
    poster = RowPoster(streams.plan(), lease, generations=lambda: [1, 2], said=lambda *_: None)
    with contextlib.closing(poster):
        poster.finish(threading.Event(), while_waiting=lambda: None)
        assert [document["key"] for document in receiver.documents] == [{"id": 0}, {"id": 1}]
        assert (poster.has_posted(1), poster.has_posted(2)) == (True, True)
    told = [record.getMessage() for record in caplog.records if "rows may be lost" in record.getMessage()]
    assert ["topic is gone" in text or "ends before" in text for text in told] == [True, True], told
