"""What Kafka's client and brokers do to a batch: its transaction is ended, it is refused, or an event is too large."""

from collections.abc import Mapping

import pytest
from confluent_kafka import Producer

from cdc.kafka.topic_names import STATE, control_topic
from cdc.model.errors import LockstepError
from cdc.stream.topics import create_missing_topics
from lockstep.config import load
from lockstep.doctor.kafka import check_kafka
from tests.captured import Captured, StartCapture
from tests.databases import Database
from tests.topics import configure

pytestmark = pytest.mark.live


@pytest.fixture
def captured(database: Database, capture: StartCapture) -> Captured:
    database.execute("create table t (id int primary key, a text)", "insert into t values (1, 'x')")
    return capture("public.t", start=False)


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


def test_an_event_that_is_larger_than_the_clients_queue_is_sent(
    captured: Captured, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.kafka.transactions.QUEUE_BYTES", 1024 * 1024)
    captured.start()
    database.execute("insert into t select 2, string_agg(md5(n::text), '') from generate_series(1, 100000) n")
    captured.assert_equal()


_NOISE = "(select string_agg(md5(n::text || i), '') from generate_series(1, {parts}) i)"
"""32 bytes for each part, half as many compressed."""


def _stopped_with_command(captured: Captured, topic: str, setting: str, value: int) -> str:
    """The error that has ended capture; its last words are the command that helps."""
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
    """What fits goes on, in smaller batches. A larger one is reported with both sizes; nothing is left out."""
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
def test_a_state_that_its_topic_does_not_take_stops_capture(captured: Captured, database: Database) -> None:
    captured.start()
    captured.settle()
    topic = control_topic(captured.name, STATE)
    _set(captured, topic, {"max.message.bytes": "200"})
    database.execute("insert into t values (2, 'y')")
    told = _stopped_with_command(captured, topic, "max.message.bytes", 16 * 1024 * 1024)
    assert f"topic {topic} doesn't take a record of" in told
