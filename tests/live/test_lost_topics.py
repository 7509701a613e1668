"""Topics that were lost, recreated or widened: what was published to them is copied again, or capture stops."""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from cdc.capture.batch_size import BatchSize
from cdc.kafka import reading
from cdc.kafka.control_topics import read_compacted
from cdc.kafka.topic_admin import TopicAdmin, table_topic_plan
from cdc.kafka.topic_names import SCHEMA, STATE, control_topic
from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import PositionMismatch, Unavailable
from cdc.postgres.slot import Slot, find_slot
from cdc.stream.topics import create_missing_topics
from tests.captured import Captured, StartCapture
from tests.databases import Database, until
from tests.dying_publisher import Killed, dying

pytestmark = pytest.mark.live

_TABLES = (
    "create table t (id int primary key, a text)",
    "insert into t select n, 'x' from generate_series(1, 50) n",
    "create table u (id int primary key)",
    "insert into u values (1)",
)


@pytest.fixture
def captured(database: Database, capture: StartCapture) -> Captured:
    database.execute(*_TABLES)
    return capture("public.t", "public.u", start=False)


def _lose(captured: Captured, topic: str) -> None:
    admin = AdminClient(dict(captured.client))
    admin.delete_topics([topic], operation_timeout=30)[topic].result(300)
    until(lambda: topic not in TopicAdmin(captured.client).partition_counts([topic]))


def _widen(captured: Captured, topic: str) -> None:
    admin = AdminClient(dict(captured.client))
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(300)
    until(lambda: TopicAdmin(captured.client).partition_counts([topic])[topic] == 5)


def _recreate(captured: Captured, topic: str, *, partitions: int) -> None:
    _lose(captured, topic)
    settings = captured.config.kafka.topics.model_copy(update={"partitions": partitions})
    TopicAdmin(captured.client).create([table_topic_plan(topic, settings)])


@pytest.mark.parametrize("partitions", [None, *(pytest.param(number, marks=pytest.mark.soak) for number in (3, 5))])
def test_a_topic_that_was_lost_while_capture_was_stopped_is_copied_again(
    database: Database, captured: Captured, partitions: int | None
) -> None:
    captured.start()
    captured.settle()
    captured.stop()
    database.execute("delete from t where id = 3", "update t set a = 'new' where id = 4")
    if partitions is None:
        _lose(captured, captured.topic("public.t"))
    else:
        _recreate(captured, captured.topic("public.t"), partitions=partitions)
    captured.start()
    database.execute("insert into t values (100, 'later')")
    captured.assert_equal()
    assert captured.copied_rows("public.u") == 1
    captured.stop()
    captured.start()
    captured.assert_equal()
    assert captured.copied_rows("public.t") in (49, 50)  # the last row may have come before the copy


@pytest.mark.soak
def test_a_topic_that_is_lost_while_capture_runs_is_copied_again(database: Database, captured: Captured) -> None:
    captured.start()
    captured.settle()
    _lose(captured, captured.topic("public.t"))
    captured.wait_for("was recreated")
    database.execute("delete from t where id = 3", "update t set a = 'new' where id = 4")
    captured.assert_equal()


def test_a_topic_that_is_recreated_while_capture_runs_is_copied_again(database: Database, captured: Captured) -> None:
    captured.start()
    captured.settle()
    _recreate(captured, captured.topic("public.t"), partitions=3)
    database.execute("delete from t where id = 3", "update t set a = 'new' where id = 4")
    captured.wait_for("was recreated")
    captured.assert_equal()


@pytest.mark.parametrize("running", [pytest.param(False, marks=pytest.mark.soak), True])
def test_another_number_of_partitions_stops_capture_and_a_deleted_topic_is_the_way_out(
    database: Database, captured: Captured, running: bool
) -> None:
    captured.start()
    captured.settle()
    if not running:
        captured.stop()
    _widen(captured, captured.topic("public.t"))
    if not running:
        database.execute("update t set a = 'new' where id = 4")
    else:
        assert isinstance(captured.wait_error(), PositionMismatch)
    _assert_refused(database, captured, "has 5 partitions, 3 when", "public.t")
    _lose(captured, captured.topic("public.t"))
    captured.start()
    captured.assert_equal()


def test_a_state_in_several_partitions_is_refused(captured: Captured) -> None:
    """Capture would write it to one of them and read another at its next start."""
    captured.start()
    captured.settle()
    captured.stop()
    _widen(captured, control_topic(captured.name, STATE))
    captured.begin()
    assert "__state has 5 partitions, the configuration says 1" in str(captured.wait_error())


@pytest.mark.parametrize("running", [pytest.param(False, marks=pytest.mark.soak), True])
def test_lost_shapes_stop_capture_and_deleted_topics_are_the_way_out(
    database: Database, captured: Captured, running: bool
) -> None:
    captured.start()
    captured.settle()
    if not running:
        captured.stop()
    _lose(captured, control_topic(captured.name, SCHEMA))
    if running:
        assert isinstance(captured.wait_error(), PositionMismatch)
    database.execute("delete from t where id = 3", "alter table u add b int default 7", "insert into u values (2, 2)")
    _assert_refused(database, captured, "has lost the shapes", "public.t", "public.u")
    for table in ("public.t", "public.u"):
        _assert_refused(database, captured, "has lost the shapes", table)
        _lose(captured, captured.topic(table))
    captured.start()
    captured.assert_equal()
    assert all(captured.schemas(table) for table in ("public.t", "public.u"))


def _assert_refused(database: Database, captured: Captured, words: str, *tables: str) -> None:
    """It doesn't start, names the topics of these tables, and has confirmed nothing."""
    before = _slot_at_rest(database, captured)
    error = captured.refusal()
    assert words in error
    assert all(captured.topic(table) in error for table in tables)
    assert _slot_at_rest(database, captured) == before


def _slot_at_rest(database: Database, captured: Captured) -> Slot | None:
    """PostgreSQL processes the last confirmation, and ends its sender, a moment after capture has ended."""
    slots: list[Slot | None] = []

    def is_at_rest() -> bool:
        slots.append(find_slot(database.connection, captured.config.slot))
        return slots[-1] is None or slots[-1].active_pid is None

    until(is_at_rest)
    return slots[-1]


@pytest.mark.parametrize("forged", [pytest.param(b"no JSON", marks=pytest.mark.soak), b'{"format": 4, "end_lsn": 1}'])
def test_what_somebody_writes_in_place_of_the_state_costs_no_position(
    database: Database, captured: Captured, forged: bytes
) -> None:
    captured.start().settle()
    captured.stop()
    database.execute("insert into u values (2)")
    before = captured.state()
    producer = Producer(dict(captured.client))
    for _ in range(3):
        producer.produce(control_topic(captured.name, STATE), forged, captured.config.slot.encode())
    assert producer.flush(60) == 0
    assert captured.state() == before
    captured.start().settle()
    captured.assert_equal("public.u")
    assert captured.copied_rows("public.u") == 1, "nothing was copied again"


@pytest.mark.parametrize("newest", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_what_somebody_writes_in_place_of_a_shape_costs_the_topic_of_its_table_alone(
    database: Database, captured: Captured, newest: bool
) -> None:
    captured.start()
    database.execute("alter table t add b int default 7", "insert into t values (100, 'x', 8)")
    captured.settle()
    captured.stop()
    topic = control_topic(captured.name, SCHEMA)
    key = [key for key in read_compacted(captured.client, topic) if b'"t"' in key][-1 if newest else 0]
    _write(captured, topic, key, b"no JSON")
    database.execute("delete from t where id = 3")
    captured.begin()
    error = captured.wait_error()
    assert "__schema isn't one of Lockstep's" in str(error)
    assert "docs/troubleshooting.md" in str(error)
    # What that page says:
    _write(captured, topic, key, None)
    _lose(captured, captured.topic("public.t"))
    captured.start()
    captured.assert_equal()
    assert captured.copied_rows("public.u") == 1, "no other table was copied again"


def _write(captured: Captured, topic: str, key: bytes, value: bytes | None) -> None:
    producer = Producer(dict(captured.client))
    producer.produce(topic, value, key)
    assert producer.flush(60) == 0


@pytest.mark.soak
def test_a_first_snapshot_over_topics_that_hold_events_is_refused(database: Database, captured: Captured) -> None:
    captured.start()
    captured.settle()
    captured.stop()
    _lose(captured, control_topic(captured.name, STATE))
    assert "Kafka holds no state for it" in captured.refusal()
    database.drop_slot(captured.config.slot)
    database.execute("delete from t where id = 3")
    for table in ("public.t", "public.u"):
        error = captured.refusal()
        assert "these topics hold events already" in error
        assert captured.topic(table) in error
        assert find_slot(database.connection, captured.config.slot) is None
        _lose(captured, captured.topic(table))
    captured.start()
    captured.assert_equal()


def _open_transaction(captured: Captured, topic: str) -> Producer:
    producer = Producer({**captured.config.kafka.client(), "transactional.id": f"{captured.name}-killed"})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"value", b"key", partition=0)
    producer.flush(10)
    return producer


@pytest.mark.soak
def test_a_transaction_that_never_ends_keeps_a_reader_for_its_patience_alone(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that have lost a commit's marker show such a transaction. An unmoved end is no answer."""
    monkeypatch.setattr(reading, "KAFKA_SILENT_S", 5.0)
    create_missing_topics(captured.config.as_pipeline(), lambda _: None)
    topic = captured.topic("public.t")
    producer = _open_transaction(captured, topic)
    with pytest.raises(Unavailable, match="wasn't reached"):
        TopicReader(captured.client).has_records(topic)
    producer.abort_transaction(10)
    assert not TopicReader(captured.client).has_records(topic)


@pytest.mark.soak
def test_a_table_that_is_taken_out_in_the_middle_of_a_transaction_takes_nothing_of_the_others_along(
    captured: Captured, database: Database
) -> None:
    """A restart counts the transaction's changes to find those that were published: the table's too."""
    captured.start()
    captured.settle()
    captured.stop()
    captured.batch = BatchSize(10, 1 << 20)
    database.execute(
        "begin; insert into t select n, 'new' from generate_series(100, 104) n;"
        " insert into u select n from generate_series(100, 130) n; commit"
    )
    captured.start(wrap_publisher=dying(lambda commit: captured.topic("public.u") in commit.topics))
    assert isinstance(captured.wait_error(), Killed)
    captured.configure(tables=("public.u",))
    captured.start()
    captured.assert_equal()
