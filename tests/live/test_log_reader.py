"""Both ways to read the log, Spark's and the tasks', on real brokers: the same records, and the same end."""

import itertools
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from cdc.kafka.settings import KafkaSettings
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import PositionMismatch, Unavailable
from cdc.model.tag import TAG_HEADER
from jobs.executor import log_reader
from jobs.executor.log_reader import LogReader, Range, load_ranges, open_ranges, ranges, reader_for, spread
from jobs.offsets import Offsets
from jobs.spark.arrow_map import ArrowMap
from jobs.spark.source import portable_client, range_frame
from stack.stack import Endpoints

pytestmark = pytest.mark.live

OF_SPARK = ("key", "value", "topic", "partition", "offset")
SCHEMA = "key binary, value binary, topic string, partition int, offset long, tombstone_tag binary, timestamp_ms long"


class Log:
    def __init__(self, bootstrap: str) -> None:
        self.kafka = KafkaSettings(bootstrap_servers=bootstrap)
        self.name = f"log.{uuid.uuid4().hex[:12]}"
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self._bootstrap = bootstrap

    def topic(self, partitions: int, **config: str) -> str:
        name = f"{self.name}.{uuid.uuid4().hex[:6]}"
        self.admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(300)
        return name

    def publish(self, *transactions: tuple[bool, Sequence[tuple[str, int, bytes, bytes | None]]]) -> None:
        """Transactions of topic, partition, key and value, each committed or aborted; tombstones get their tag."""
        producer = Producer({"bootstrap.servers": self._bootstrap, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(30)
        for is_committed, records in transactions:
            producer.begin_transaction()
            for topic, partition, key, value in records:
                headers = [("other", b"x"), (TAG_HEADER, b"tag of " + key)] if value is None else None
                producer.produce(topic, value, key, partition, headers=headers)
            producer.flush(30)
            (producer.commit_transaction if is_committed else producer.abort_transaction)(30)

    def ends(self, *topics: str) -> Offsets:
        """The ends that Spark gets: those of committed records."""
        admin = TopicAdmin(self.kafka.client())
        counts = admin.partition_counts(topics)
        return admin.committed_ends([(topic, at) for topic, count in counts.items() for at in range(count)])


@pytest.fixture
def log(endpoints: Endpoints) -> Log:
    return Log(endpoints.kafka_bootstrap)


@pytest.fixture
def reader(log: Log) -> Iterator[LogReader]:
    reader = LogReader(log.kafka.client())
    yield reader
    reader.close()


def rows(batches: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    log_rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(log_rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def through_spark(spark: SparkSession, log: Log, topics: Sequence[str]) -> list[dict[str, Any]]:
    options = {
        "kafka.bootstrap.servers": log.kafka.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "subscribe": ",".join(topics),
        "startingOffsets": "earliest",
    }
    return rows(spark.read.format("kafka").options(**options).load().select(*OF_SPARK).toArrow().to_batches())


def through_tasks(
    spark: SparkSession, log: Log, wanted: Sequence[Range], *, tasks_max: int
) -> tuple[list[dict[str, Any]], int]:
    """What a job sees, and in how many tasks."""
    client = portable_client(log.kafka)

    def see(tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for text in (text for told in tasks for text in told.column("ranges").to_pylist()):
            with reader_for(client, load_ranges(text)) as reader:
                yield from reader.read(load_ranges(text))

    frame = range_frame(spark, spread(wanted, tasks_max=tasks_max))
    return rows(ArrowMap(see, SCHEMA)(frame).toArrow().to_batches()), frame.rdd.getNumPartitions()


@pytest.mark.busy
def test_tasks_read_what_spark_reads(spark: SparkSession, log: Log) -> None:
    three_partitions, two_partitions = log.topic(3), log.topic(2)
    numbers = itertools.count()

    def some(count: int, topic: str, partitions: int, *, value: bytes | None = b"value %d") -> list[Any]:
        return [(topic, n % partitions, b"key %d" % n, value and value % n) for n in itertools.islice(numbers, count)]

    log.publish(
        (True, some(50, three_partitions, 2)),  # its third partition stays empty
        (False, some(7, three_partitions, 2)),
        (
            True,
            [*some(5, three_partitions, 2, value=None), *some(20, two_partitions, 2), (two_partitions, 0, b"", b"")],
        ),
        (True, [(two_partitions, 1, b"large", b"x" * 900_000)]),
        (False, some(3, two_partitions, 2)),  # before the end there are only remains of aborted transactions
    )
    topics = [three_partitions, two_partitions]
    wanted = ranges({}, log.ends(*topics))
    assert {(three_partitions, 0), (three_partitions, 1), (two_partitions, 0), (two_partitions, 1)} == {
        part.at for part in wanted
    }
    known = through_spark(spark, log, topics)
    assert len(known) == 50 + 5 + 20 + 1 + 1
    read, tasks = through_tasks(spark, log, wanted, tasks_max=100)
    assert [{name: row[name] for name in OF_SPARK} for row in read] == known
    assert tasks == 4
    assert [row["tombstone_tag"] for row in read] == [
        b"tag of " + row["key"] if row["value"] is None else None for row in read
    ]
    assert all(row["timestamp_ms"] > 0 for row in read)
    assert through_tasks(spark, log, wanted, tasks_max=3) == (read, 3)
    assert through_tasks(spark, log, wanted, tasks_max=1) == (read, 1)
    assert through_tasks(spark, log, [], tasks_max=100) == ([], 1)


def test_a_range_has_both_its_ends(log: Log, reader: LogReader) -> None:
    topic = log.topic(2)
    log.publish((True, [(topic, n % 2, b"%d" % n, b"v") for n in range(2_000)]))
    for start, end in ((0, 1), (0, 1_000), (10, 20), (999, 1_000), (999, 1_001), (1_000, 1_001)):
        wanted = [Range(topic, 0, start, end), Range(topic, 1, start, end)]
        read = rows(list(reader.read(wanted)))
        of_each = list(range(start, min(end, 1_000)))  # the transaction's marker is at 1,000
        assert [(row["partition"], row["offset"]) for row in read] == [(n, at) for n in (0, 1) for at in of_each]
        assert rows(list(reader.read(wanted[:1]))) == [row for row in read if row["partition"] == 0]


def test_the_end_is_found_though_somebody_writes_without_a_pause(log: Log, reader: LogReader) -> None:
    topic = log.topic(1)
    log.publish((True, [(topic, 0, b"a", b"1")]), (False, [(topic, 0, b"b", b"2")]))
    [end] = log.ends(topic).values()
    log.publish(*((True, [(topic, 0, b"%d" % n, b"3")]) for n in range(50)))
    assert [row["key"] for row in rows(list(reader.read([Range(topic, 0, None, end)])))] == [b"a"]


def test_what_an_open_transaction_holds_back_is_waited_for(log: Log, reader: LogReader) -> None:
    """The end may come from a broker that knows more than the one that is read."""
    topic = log.topic(1)
    producer = Producer({"bootstrap.servers": log.kafka.bootstrap_servers, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"v", b"k")
    producer.flush(30)
    batches = reader.read([Range(topic, 0, 0, 2)])
    began = time.monotonic()

    def commit_later() -> None:
        time.sleep(1)
        producer.commit_transaction(30)

    thread = threading.Thread(target=commit_later)
    thread.start()
    assert [row["key"] for row in rows(list(batches))] == [b"k"]
    assert time.monotonic() - began >= 0.9
    thread.join()


def test_records_that_are_gone_are_lost(log: Log, reader: LogReader) -> None:
    topic = log.topic(1, **{"cleanup.policy": "delete"})
    log.publish((True, [(topic, 0, b"%d" % n, b"v") for n in range(10)]))
    deleted = log.admin.delete_records([log_reader.Assigned(topic, 0, 5)])
    next(iter(deleted.values())).result(300)
    with pytest.raises(PositionMismatch, match="no longer holds"):
        list(reader.read([Range(topic, 0, 0, 10)]))
    # From its beginning, wherever that is: this caller knows that something is missing.
    assert [row["offset"] for row in rows(list(reader.read([Range(topic, 0, None, 10)])))] == [5, 6, 7, 8, 9]
    assert [row["offset"] for row in rows(list(reader.read([Range(topic, 0, 7, 10)])))] == [7, 8, 9]


def test_a_beginning_that_was_deleted_since_it_was_read_is_not_asked_for_again(log: Log) -> None:
    topic = log.topic(1)
    log.publish((True, [(topic, 0, b"%d" % n, b"v") for n in range(10)]))

    def read(*wanted: Range) -> list[int]:
        with reader_for(log.kafka.client(), wanted) as reader:
            return [row["offset"] for row in rows(list(reader.read(wanted)))]

    for begin in (0, 3, 6):
        if begin:
            next(iter(log.admin.delete_records([log_reader.Assigned(topic, 0, begin)]).values())).result(300)
        assert read(Range(topic, 0, None, 10)) == [*range(begin, 10)]
        assert read(Range(topic, 0, 8, 10)) == [8, 9]


def test_what_was_lost_to_one_task_is_not_reported_to_the_next(log: Log) -> None:
    trimmed, whole = log.topic(6), log.topic(1)
    log.publish((True, [(trimmed, partition, b"k", b"v") for partition in range(6)]), (True, [(whole, 0, b"k", b"v")]))
    gone = [log_reader.Assigned(trimmed, partition, 1) for partition in range(6)]
    for future in log.admin.delete_records(gone).values():
        future.result(300)

    def read(*wanted: Range) -> list[dict[str, Any]]:
        with reader_for(log.kafka.client(), wanted) as reader:
            return rows(list(reader.read(wanted)))

    for _ in range(5):
        with pytest.raises(PositionMismatch, match="no longer holds"):
            read(*(Range(trimmed, partition, 0, 2) for partition in range(6)))
        assert [row["offset"] for row in read(Range(whole, 0, None, 1))] == [0]


def test_a_topic_that_is_gone_and_brokers_that_dont_answer(
    log: Log, reader: LogReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "KAFKA_SILENT_S", 1.0)
    with pytest.raises(Unavailable):
        list(reader.read([Range(f"{log.name}.none", 0, 0, 10)]))
    nobody = LogReader({**log.kafka.client(), "bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(Unavailable, match="nothing for 1 s"):
        list(nobody.read([Range(log.name, 0, 0, 10)]))
    with pytest.raises(Unavailable, match="nothing for 1 s"):
        followed(nobody, [Range(log.name, 0, 0, 10)], {(log.name, 0): 10})
    nobody.close()


def followed(reader: LogReader, wanted: Sequence[Range], until: Offsets) -> list[dict[str, Any]]:
    """The records up to these ends, which are passed on only after the records before them."""
    seen: list[pa.RecordBatch] = []
    ends: Offsets = {}
    with closing(reader.follow(wanted)) as all_polled:
        for polled in all_polled:
            seen += polled.records
            ends |= polled.ends
            assert all(row["offset"] < ends[row["topic"], row["partition"]] for row in rows(polled.records))
            if all(ends.get(at, 0) >= end for at, end in until.items()):
                assert {at: ends[at] for at in until} == until
                return rows(seen)
    raise AssertionError("it has no end")


def test_who_follows_gets_what_comes_behind_the_ranges(log: Log, reader: LogReader) -> None:
    topic = log.topic(3)
    log.publish((True, [(topic, 0, b"a", b"1"), (topic, 1, b"b", b"2")]))
    wanted = open_ranges({(topic, 1): 2}, log.ends(topic))
    assert wanted == [Range(topic, 0, None, 2), Range(topic, 1, 2, 2), Range(topic, 2, None, 0)]

    def publish_later() -> None:
        time.sleep(0.5)
        log.publish((False, [(topic, 0, b"aborted", b"3")]), (True, [(topic, 0, b"c", b"4"), (topic, 2, b"d", b"5")]))
        log.publish((False, [(topic, 1, b"aborted", b"6")]))

    thread = threading.Thread(target=publish_later)
    thread.start()
    # Behind the last record of each there is a marker; partition 1 holds nothing else.
    read = followed(reader, wanted, {(topic, 0): 6, (topic, 1): 4, (topic, 2): 2})
    thread.join()
    assert [(row["partition"], row["key"]) for row in read] == [(0, b"a"), (0, b"c"), (2, b"d")]
    # The next one begins where it should, whatever this one had read ahead.
    read = followed(reader, [Range(topic, 0, 4, 4)], {(topic, 0): 6})
    assert [row["key"] for row in read] == [b"c"]


def test_who_follows_is_told_again_and_again_that_nothing_comes(log: Log, reader: LogReader) -> None:
    topic = log.topic(1)
    with closing(reader.follow([Range(topic, 0, 0, 0)])) as all_polled:
        assert [list(next(all_polled).records) for _ in range(5)] == [[]] * 5


def test_who_follows_is_told_what_is_gone(log: Log, reader: LogReader) -> None:
    topic = log.topic(1, **{"cleanup.policy": "delete"})
    log.publish((True, [(topic, 0, b"%d" % n, b"v") for n in range(10)]))
    next(iter(log.admin.delete_records([log_reader.Assigned(topic, 0, 5)]).values())).result(300)
    with pytest.raises(PositionMismatch, match="no longer holds"):
        followed(reader, [Range(topic, 0, 0, 10)], {(topic, 0): 11})
