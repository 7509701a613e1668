"""Results of stream queries on a topic and at a webhook: whatever is done again, each row is told once by its key."""

import contextlib
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from cdc.kafka.topic_admin import TopicAdmin, TopicPlan
from cdc.model.table import ReplicaIdentity, Table
from cdc.webhook import WebhookSettings
from jobs.executor.open_sinks import close_sink
from jobs.executor.result import from_arrow
from jobs.executor.stream_results import apply_results
from jobs.executor.stream_topics import RECORD_OVERHEAD_BYTES, StreamTopics, close_topics
from jobs.executor.task_input import StreamInput, Task
from jobs.generations.lease import GenerationLease
from jobs.streams.job import record_bytes_max
from jobs.streams.posted import Posted
from jobs.streams.posting import RowPoster
from jobs.streams.rebuild import begin_again
from jobs.streams.records import posted_name
from jobs.streams.settings import StreamQuerySettings, column_of, result_name
from sinks.memory import MemoryStore, open_memory
from sinks.redis.settings import RedisSettings
from sinks.warehouse.settings import WarehouseSettings
from stack.stack import Endpoints
from tests.databases import Database, until, url_of
from tests.generations import prepared_store
from tests.receivers import Receiver
from tests.streams import Streams, at

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


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with contextlib.closing(Receiver()) as receiver:
        yield receiver


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
        assert job.stop() == 0, job.told()
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


@pytest.mark.soak
def test_rows_of_a_topic_that_was_recreated_while_they_were_read_are_written_nowhere(
    endpoints: Endpoints, tmp_path: Path
) -> None:
    streams = Streams(
        endpoints.kafka_bootstrap, tmp_path, {"logins": LOGINS}, StreamQuerySettings(key=("id",), sql="x"),
        RedisSettings(),
    )  # fmt: skip
    topic, store = streams.streams["logins"].topic, MemoryStore()
    known = TopicAdmin(streams.client).topic_ids([topic])
    columns = [column_of("id", "bigint")]
    table = Table(result_name("q"), tuple(filter(None, columns)), ("id",), ReplicaIdentity.DEFAULT)
    open_memory(store).sink.prepare([table])
    where = StreamInput(streams.name, 1, known, streams.plan().side_topic.name, 4000)
    task = Task(
        streams.name, RedisSettings(), 1, 0, {}, {table.name: table}, 0, 1.0, "run",
        client=streams.client, stream=where, open=lambda _name, _settings, number: open_memory(store, number),
    )  # fmt: skip
    batch = pa.RecordBatch.from_pydict({"row": ['{"id":"7"}', '{"id":null}']})

    def applied(batch_id: int) -> list[str]:
        (result,) = apply_results(task, table, batch_id, [batch])
        return [failure.kind for failure in from_arrow(pa.Table.from_batches([result])).failures]

    try:
        TopicAdmin(streams.client).create([streams.plan().side_topic])
        assert applied(0) == []
        streams.recreate()
        assert applied(1) == ["PositionMismatch"]
    finally:
        close_sink(task)
        close_topics(where)
    assert [row.row for row in open_memory(store).sink.scan(table)] == [{"id": 7}]
    assert [record["batch"] for record in streams.aside("refused")] == [0]


@pytest.mark.soak
def test_many_rows_that_fit_are_no_batch_that_does_not(endpoints: Endpoints, tmp_path: Path) -> None:
    """A broker holds a batch against the limit of a record, and compression doesn't help with noise."""
    query = StreamQuerySettings(key=("id",), sql="x", topic=True)
    streams = Streams(
        endpoints.kafka_bootstrap, tmp_path, {"logins": LOGINS}, query, RedisSettings(), max_message_bytes=20_000
    )
    side, result = streams.plan().side_topic, streams.plan().result_topic(1)
    assert result is not None
    TopicAdmin(streams.client).create([side, result])
    limits = [int(plan.config["max.message.bytes"]) for plan in (side, result)]
    topics = StreamTopics(
        streams.client, StreamInput(streams.name, 1, {}, side.name, limits[0], result.name, limits[1])
    )
    with contextlib.closing(topics):
        for number in range(500):
            topics.write_row(b"%d" % number, random.Random(number).randbytes(3_000).hex().encode(), "tag")
        topics.write_row(b"500", b"x" * (limits[1] - RECORD_OVERHEAD_BYTES - 3), "t" * 28)
        topics.flush()
    assert len(streams.on_topic()) == 501


@pytest.mark.soak
def test_a_topic_that_takes_smaller_records_is_altered(endpoints: Endpoints, tmp_path: Path) -> None:
    streams = Streams(
        endpoints.kafka_bootstrap, tmp_path, {"logins": LOGINS}, StreamQuerySettings(key=("id",), sql="x"),
        RedisSettings(), max_message_bytes=100_000,
    )  # fmt: skip
    wanted, cluster = streams.plan().side_topic, TopicAdmin(streams.client)
    assert wanted.config["max.message.bytes"] == "400000"
    cluster.create([TopicPlan(wanted.name, 1, 1, {"max.message.bytes": "1000"})])
    assert record_bytes_max(cluster, wanted) == 400_000
    assert cluster.configs([wanted.name])[wanted.name]["max.message.bytes"] == "400000"
