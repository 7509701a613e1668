"""What Kafka's client and brokers do to a batch: its transaction is ended, or an event doesn't fit into the queue."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from stack.stack import Endpoints
from tests.captured import Captured
from tests.databases import Database

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
