"""The progress topic is followed without losing a record's bounds: without some, a watermark would say too much."""

import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from cdc.kafka.consumer import open_consumer
from cdc.kafka.control_topics import Heard, LogBell, ProgressReader, read_progress
from cdc.kafka.large_rows import LargeRows
from cdc.kafka.publisher import TransactionalPublisher
from cdc.kafka.settings import KafkaSettings
from cdc.kafka.topic_admin import TopicAdmin, control_topic_plans, table_topic_plan
from cdc.kafka.topic_names import PROGRESS, control_topic, table_topic
from cdc.model.errors import Unavailable
from cdc.model.table import TableName
from cdc.protocol.control_records import ProgressRecord
from stack.stack import Endpoints
from tests.databases import until
from tests.events import kafka_settings
from tests.history import state

pytestmark = pytest.mark.live


class Log:
    """A pipeline's topics of two tables, and a publisher that records progress with each commit."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self.prefix = f"t{uuid.uuid4().hex[:12]}"
        self.orders, self.customers = (
            table_topic(self.prefix, TableName("public", name)) for name in ("orders", "customers")
        )
        self.topics = [self.orders, self.customers]
        plans = [table_topic_plan(topic, settings.topics) for topic in self.topics]
        TopicAdmin(settings.client()).create([*control_topic_plans(self.prefix, settings.topics), *plans])
        self.publisher = self.publishes_progress(every_s=0.1)
        self.publisher.start()
        self._lsn = 100

    def publishes_progress(self, *, every_s: float) -> TransactionalPublisher:
        """A publisher that isn't started yet, and that this doesn't close."""
        return TransactionalPublisher(
            self.settings.client(),
            self.prefix,
            LargeRows(max_message_bytes=self.settings.topics.max_message_bytes),
            prefix=self.prefix,
            progress_every_s=every_s,
        )

    def publish(self, topic: str) -> int:
        """Commit one event of a topic with its progress record; returns the record's LSN once readers see it. A commit
        returns before the brokers have written its markers."""
        self._lsn += 1
        self.publisher.send(topic, b'{"id":1}', b"{}")
        committed = replace(state(), commit_lsn=self._lsn, seq=1, end_lsn=self._lsn, commit_time_ms=0)
        self.publisher.commit(committed, covering=[topic])
        deadline = time.monotonic() + 300
        while all(record.lsn != self._lsn for record in read_progress(self.settings.client(), self.prefix)):
            assert time.monotonic() < deadline
        return self._lsn

    def reader(self) -> ProgressReader:
        return ProgressReader(self.settings.client(), self.prefix, self.topics)

    def recreate_progress(self) -> None:
        topic = control_topic(self.prefix, PROGRESS)
        admin = AdminClient(dict(self.settings.client()))
        admin.delete_topics([topic], operation_timeout=30)[topic].result(300)
        cluster = TopicAdmin(self.settings.client())
        until(lambda: topic not in cluster.partition_counts([topic]))
        cluster.create([plan for plan in control_topic_plans(self.prefix, self.settings.topics) if plan.name == topic])

    def delete_progress_records(self, *, kept: int) -> None:
        """As Kafka does by age: all except the last ones, each of which is followed by its marker."""
        topic = control_topic(self.prefix, PROGRESS)
        (end,) = TopicAdmin(self.settings.client()).end_offsets([(topic, 0)]).values()
        admin = AdminClient(dict(self.settings.client()))
        for future in admin.delete_records([TopicPartition(topic, 0, end - 2 * kept)]).values():
            future.result(300)


@pytest.fixture
def log(endpoints: Endpoints) -> Iterator[Log]:
    log = Log(kafka_settings(endpoints.kafka_bootstrap, partitions=1))
    yield log
    log.publisher.close()


class FailsOnce:
    """Something real, one method of which fails once, in the call after ``calls`` good ones; -1: never."""

    def __init__(self, real: Any, method: str, *, calls: int) -> None:
        self._real = real
        self._method = method
        self.left = calls

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name != self._method:
            return real

        def call(*arguments: Any, **options: Any) -> Any:
            if self.left == 0:
                self.left = -1
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            answer = real(*arguments, **options)
            if self.left > 0 and answer is not None:
                self.left -= 1
            return answer

        return call


@pytest.mark.parametrize(("every_s", "events", "has_records"), [(0.0, 1, True), (0.0, 501, False), (60.0, 1, False)])
def test_a_record_comes_with_each_small_commit_where_somebody_waits(
    log: Log, monkeypatch: pytest.MonkeyPatch, every_s: float, events: int, has_records: bool
) -> None:
    monkeypatch.setattr("cdc.kafka.publisher.PROGRESS_EVERY_S", 60.0)
    with closing(log.publishes_progress(every_s=every_s)) as publisher:
        publisher.start()
        publisher.commit(state(), covering=[log.orders])
        bounds = []
        for _ in range(2):
            publisher.send_rows(log.orders, [(b"{}", b"{}")] * (events - 1))
            publisher.send(log.orders, b"{}", b"{}")
            bounds.append(publisher.commit(state()))
        assert [one is not None for one in bounds] == [has_records] * 2
        assert publisher.owes_progress() is False
        publisher.commit(state())  # of no events, as when the stream is idle
        assert publisher.owes_progress() is False


def test_where_a_topic_ends_counts_what_is_held(log: Log) -> None:
    log.publisher.send(log.orders, b"1", b"{}")
    assert log.publisher.end_of(log.orders) == 1


def test_a_reader_goes_on_behind_the_marker_of_the_last_record(log: Log) -> None:
    """Otherwise each look would take the marker for news, and read."""
    topic = control_topic(log.prefix, PROGRESS), 0
    reader = log.reader()
    for table_of in (log.orders, log.customers):  # the first answer, and a later one
        log.publish(table_of)
        reader.new_records()
        assert reader.next_offset == TopicAdmin(log.settings.client()).committed_ends([topic])[topic]
    reader.close()


@pytest.mark.soak
def test_records_that_came_before_the_connection_was_lost_come_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    consumers: list[FailsOnce] = []

    def opened(*arguments: Any, **options: Any) -> Any:
        consumers.append(FailsOnce(open_consumer(*arguments, **options), "poll", calls=-1))
        return consumers[-1]

    monkeypatch.setattr("cdc.kafka.control_topics.open_consumer", opened)
    log.publish(log.orders)
    reader = log.reader()
    reader.new_records()
    lsns = [log.publish(topic) for topic in (log.orders, log.customers)]
    consumers[0].left = 1
    with pytest.raises(Unavailable):
        reader.new_records()
    records = reader.new_records()
    reader.close()
    assert [record.lsn for record in records] == lsns
    assert [set(record.bounds) for record in records] == [{log.orders}, {log.customers}]


@pytest.mark.soak
def test_the_first_answer_bounds_all_topics_also_after_one_that_failed(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.publish(log.orders)
    lsn = log.publish(log.customers)
    reader = log.reader()
    real, failures = TopicAdmin.end_offsets, [KafkaException(KafkaError(KafkaError._TRANSPORT))]

    def end_offsets(admin: TopicAdmin, *asked: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(admin, *asked)

    monkeypatch.setattr(TopicAdmin, "end_offsets", end_offsets)
    with pytest.raises(Unavailable):
        reader.new_records()
    (record,) = reader.new_records()
    reader.close()
    assert (record.lsn, set(record.bounds)) == (lsn, {log.orders, log.customers})


def test_records_that_kafka_has_deleted_unread_are_made_good_by_bounds_of_all_topics(log: Log) -> None:
    log.publish(log.orders)
    reader = log.reader()
    reader.new_records()
    log.publish(log.orders)
    lsn = log.publish(log.customers)
    log.delete_progress_records(kept=1)
    (record,) = reader.new_records()
    reader.close()
    assert (record.lsn, set(record.bounds)) == (lsn, {log.orders, log.customers})


def test_records_of_a_recreated_topic_that_has_grown_are_made_good_by_bounds_of_all_topics(log: Log) -> None:
    """By its offsets alone it looks like the earlier topic."""
    log.publish(log.orders)
    reader = log.reader()
    reader.new_records()
    log.recreate_progress()
    log.publish(log.customers)
    lsns = [log.publish(log.orders) for _ in range(3)]
    first, *rest = reader.new_records()
    reader.close()
    assert (first.lsn, set(first.bounds), rest) == (lsns[-1], {log.orders, log.customers}, [])


def test_bounds_lie_behind_all_that_was_sent_be_it_few_or_many(log: Log) -> None:
    """Deliveries report few, and brokers are asked about many. Each transaction has a marker behind its events."""
    publisher = log.publishes_progress(every_s=0.0)
    publisher.start()
    end = 0
    for lsn, events in enumerate((1, 3, 150, 2, 1), 1):
        for _ in range(events):
            publisher.send(log.orders, b'{"id":1}', b"{}")
        committed = replace(
            state(), commit_lsn=lsn, seq=1, end_lsn=lsn, commit_time_ms=0, last_transaction=None, begun=None
        )
        assert publisher.commit(committed) == {(log.orders, 0): end + events}
        end += events + 1
    publisher.close()


def test_records_come_with_the_identities_of_the_topics_that_they_bound(log: Log) -> None:
    """As of after they were read: a topic that was recreated since the previous records has another one."""
    log.publish(log.orders)
    reader = ProgressReader(log.settings.client(), log.prefix, log.topics, watched=log.topics)
    reader.new_records()
    before = dict(reader.identities)
    log.publish(log.customers)
    reader.new_records()
    assert set(before) == set(log.topics)
    assert reader.identities == {log.customers: before[log.customers]}
    reader.close()


def test_a_bell_that_is_silent_is_not_believed_for_long(log: Log) -> None:
    first = log.publish(log.orders)
    reader = log.reader()
    assert [record.lsn for record in reader.new_records([])] == [first]
    second = log.publish(log.orders)
    found: list[int] = []
    until(lambda: bool(found.extend(record.lsn for record in reader.new_records([])) or found))
    reader.close()
    assert found == [second]


def test_a_bell_rings_once_what_is_published_is_committed(log: Log) -> None:
    bell = LogBell(log.settings.client(), log.prefix)
    for _ in range(2):
        assert bell.rings(30)  # for what was before
        while bell.rings(0.5):
            pass
        log.publish(log.orders)
        assert bell.rings(30)
        bell.close()


def hearing(bell: LogBell, log: Log) -> list[int]:
    """Publish until the bell says what it rings for. Returns the records' LSNs. It learns the topic's end from the
    first thing that comes, which may be the first record."""
    published: list[int] = []

    def is_heard() -> bool:
        published.append(log.publish(log.orders))
        bell.rings(30)
        return bell.heard is not None

    until(is_heard)
    return published


def heard_of(bell: LogBell, lsn: int) -> list[Heard]:
    """What it rings for, until it has rung for the record of this LSN."""
    heard: list[Heard] = []

    def is_heard() -> bool:
        bell.rings(1)
        if bell.heard is None:
            return False
        heard.append(bell.heard)
        values = [message.value() for message in bell.heard.messages]
        return any(isinstance(value, bytes) and ProgressRecord.from_bytes(value, "").lsn == lsn for value in values)

    until(is_heard)
    return heard


def test_each_record_comes_once_whatever_a_bell_has_heard(log: Log) -> None:
    bell, reader = LogBell(log.settings.client(), log.prefix), log.reader()
    hearing(bell, log)
    reader.new_records()
    published, got = [], []
    for number in range(12):
        published.append(log.publish(log.orders))
        heard = heard_of(bell, published[-1])
        if number % 3 == 0:
            continue  # nobody takes it
        if number == 7:
            bell.close()
            bell.rings(0)  # opens another one
            published += hearing(bell, log)
        got += [record.lsn for record in reader.new_records(heard if number % 4 else [*heard, *heard])]
    assert got == published
    bell.close()
    reader.close()


def test_a_look_after_the_bell_has_rung_finds_what_it_rang_for(log: Log) -> None:
    bell, reader = LogBell(log.settings.client(), log.prefix), log.reader()
    reader.new_records()
    while bell.rings(0.5):
        pass
    for _ in range(20):
        log.publish(log.orders)
        assert bell.rings(30)
        found = reader.new_records()
        assert len(found) == 1
        while bell.rings(0.5):  # the end of the topic may ring, too
            pass
    bell.close()
    reader.close()
