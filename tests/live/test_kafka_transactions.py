"""What Kafka's client and brokers do to a batch: its transaction is ended, it is refused, or an event is too large."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer

from cdc.kafka.topic_names import STATE, control_topic, outbox_topic
from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import LockstepError
from cdc.stream.topics import create_missing_topics
from lockstep.config import load
from lockstep.doctor.kafka import check_kafka
from stack.stack import Endpoints
from tests.captured import Captured
from tests.databases import Database
from tests.topics import configure

pytestmark = pytest.mark.live


@pytest.fixture
def captured(database: Database, endpoints: Endpoints, tmp_path: Path) -> Iterator[Captured]:
    """Not started; ends with the test."""
    database.execute("create table t (id int primary key, a text)", "insert into t values (1, 'x')")
    with Captured(database, endpoints.kafka_bootstrap, tmp_path, ["public.t"]) as made:
        yield made


def test_a_transaction_that_was_ended_is_begun_again_where_nobody_has_taken_over(
    captured: Captured, database: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    """Brokers answer the same to a producer whose transaction took too long as to one that was replaced."""
    captured.start()
    captured.settle()
    other = Producer({**captured.client, "transactional.id": f"{captured.name}.{captured.config.slot}"})
    other.init_transactions(10)
    database.execute("insert into t values (2, 'y')")
    captured.wait_for("starting over from the committed state")
    captured.assert_equal()
    assert "FATAL" not in capfd.readouterr().err  # Kafka's client calls it so, and it is mended by now


def test_an_event_that_is_larger_than_the_clients_queue_is_sent(captured: Captured, database: Database) -> None:
    small = captured.config.capture.model_copy(update={"queue_bytes": 1024 * 1024})
    captured.config = captured.config.model_copy(update={"capture": small})
    captured.start()
    database.execute("insert into t select 2, string_agg(md5(n::text), '') from generate_series(1, 100000) n")
    captured.assert_equal()


@pytest.mark.soak
def test_many_rows_that_fit_are_no_batch_that_does_not(captured: Captured, database: Database) -> None:
    """A broker holds a batch against the limit of a record, and compression doesn't help with noise."""
    topics = captured.config.kafka.topics.model_copy(update={"max_message_bytes": 20_000})
    captured.config = captured.config.model_copy(
        update={"kafka": captured.config.kafka.model_copy(update={"topics": topics})}
    )
    captured.start()
    noise = "(select string_agg(md5(n::text || i), '') from generate_series(1, 200) i)"
    database.execute(f"insert into t select n, {noise} from generate_series(2, 500) n")
    captured.assert_equal()


_NOISE = "(select string_agg(md5(n::text || i), '') from generate_series(1, {parts}) i)"
"""32 bytes for each part, which are half as many compressed."""


def _stopped_with_command(captured: Captured, topic: str, setting: str, value: int) -> str:
    """The message of the error that has ended capture; its last words are the command that helps."""
    error = captured.wait_error()
    assert isinstance(error, LockstepError)
    assert (error.hint or "").endswith(
        f"kafka-configs.sh --bootstrap-server {captured.client['bootstrap.servers']} --alter --entity-type topics"
        f" --entity-name {topic} --add-config {setting}={value}"
    )
    return error.message


def _set(captured: Captured, topic: str, changes: Mapping[str, str]) -> None:
    configure(captured.client, [topic], changes)


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.soak
def test_a_topic_that_takes_smaller_records_than_the_settings_say_stops_capture_at_the_first_larger_one(
    captured: Captured, database: Database, is_running: bool
) -> None:
    """Whatever fits goes on, in smaller batches. What doesn't is told with both sizes, and nothing is left out."""
    topic = captured.topic("public.t")
    if is_running:
        captured.start()
        captured.settle()
    else:
        create_missing_topics(captured.config.as_pipeline(), lambda _: None)
    _set(captured, topic, {"max.message.bytes": "100000"})
    if not is_running:
        captured.start()
    database.execute(f"insert into t select n, {_NOISE.format(parts=200)} from generate_series(2, 100) n")
    captured.assert_equal()

    database.execute(f"insert into t select n, {_NOISE.format(parts=10_000)} from generate_series(501, 501) n")
    database.execute("insert into t values (502, 'later')")
    told = _stopped_with_command(captured, topic, "max.message.bytes", 16 * 1024 * 1024)
    assert f"topic {topic} doesn't take a record of 320," in told
    assert "its limit is 100,000 bytes (max.message.bytes), and kafka.topics.max_message_bytes is 16,777,216" in told
    assert 502 not in {row["id"] for row in captured.rows("public.t").values()}

    captured.start()  # nothing was mended
    _stopped_with_command(captured, topic, "max.message.bytes", 16 * 1024 * 1024)
    (found,) = [finding for finding in check_kafka(load(captured.path)) if "at most" in finding.what]
    assert found.what == (
        f"topic {topic} takes records of 100,000 bytes (max.message.bytes) at most, the configuration says 16,777,216"
        " bytes"
    )
    setting, _, value = found.fix.rpartition("--add-config ")[2].partition("=")
    _set(captured, topic, {setting: value})
    assert not [finding for finding in check_kafka(load(captured.path)) if "at most" in finding.what]
    captured.start()
    captured.assert_equal()


@pytest.mark.soak
def test_a_topic_of_the_outbox_that_takes_smaller_records_stops_capture_too(
    database: Database, endpoints: Endpoints, tmp_path: Path
) -> None:
    """It isn't known before its first row comes, so no setting names it."""
    database.execute(
        "create table t (id int primary key)",
        "create table outbox (id int primary key, aggregatetype text, aggregateid text, type text, payload text)",
    )
    add = "insert into outbox select n, 'order', 'k', 'x', {} from generate_series({}, {}) n"
    source = "outbox = 'public.outbox'"
    with Captured(database, endpoints.kafka_bootstrap, tmp_path, ["public.t"], source=source) as captured:
        captured.start()
        database.execute(add.format("''", 1, 1))
        captured.settle()
        topic = outbox_topic(captured.name, "order")
        _set(captured, topic, {"max.message.bytes": "100000"})
        database.execute(add.format(_NOISE.format(parts=200), 2, 500))
        captured.settle()

        database.execute(add.format(_NOISE.format(parts=10_000), 501, 501))
        told = _stopped_with_command(captured, topic, "max.message.bytes", 16 * 1024 * 1024)
        assert f"topic {topic} doesn't take a record of 320,000 bytes" in told
        (found,) = [finding for finding in check_kafka(load(captured.path)) if "at most" in finding.what]
        assert found.what.startswith(f"topic {topic} takes records of 100,000 bytes")
        setting, _, value = found.fix.rpartition("--add-config ")[2].partition("=")
        _set(captured, topic, {setting: value})
        captured.start()
        captured.settle()
        assert len(list(TopicReader(captured.client).records(topic))) == 501


@pytest.mark.soak
def test_workers_copy_to_a_topic_that_takes_smaller_records(captured: Captured, database: Database) -> None:
    database.execute(f"insert into t select n, {_NOISE.format(parts=200)} from generate_series(2, 3000) n")
    small = captured.config.snapshot.model_copy(update={"workers": 2, "range_bytes": 1024 * 1024})
    captured.config = captured.config.model_copy(update={"snapshot": small})
    create_missing_topics(captured.config.as_pipeline(), lambda _: None)
    _set(captured, captured.topic("public.t"), {"max.message.bytes": "20000"})
    captured.start()
    assert any("workers copy" in line for line in captured.said)
    captured.assert_equal()


@pytest.mark.soak
def test_a_state_that_its_topic_does_not_take_stops_capture(captured: Captured, database: Database) -> None:
    captured.start()
    captured.settle()
    topic = control_topic(captured.name, STATE)
    _set(captured, topic, {"max.message.bytes": "200"})
    database.execute("insert into t values (2, 'y')")
    told = _stopped_with_command(captured, topic, "max.message.bytes", 16 * 1024 * 1024)
    assert f"topic {topic} doesn't take a record of" in told


@pytest.mark.soak
def test_a_batch_that_brokers_refuse_for_another_setting_stops_capture(captured: Captured, database: Database) -> None:
    """Here for its time, which a topic can limit. It would be refused as often as it is sent."""
    captured.start()
    captured.settle()
    topic = captured.topic("public.t")
    _set(captured, topic, {"message.timestamp.before.max.ms": "0"})
    database.execute("insert into t values (2, 'y')")
    error = captured.wait_error()
    assert isinstance(error, LockstepError)
    assert error.message.startswith("Kafka refuses for good")
    assert topic in error.message
    _set(captured, topic, {"message.timestamp.before.max.ms": str(2**63 - 1)})
    captured.start()
    captured.assert_equal()
