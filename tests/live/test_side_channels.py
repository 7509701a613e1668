"""Logical messages and the outbox: topics beside those of the tables."""

import base64

import orjson
import pytest
from confluent_kafka.admin import AdminClient

from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_reader import TopicReader
from tests.captured import Captured, StartCapture
from tests.databases import Database, until
from tests.topics import read_committed

pytestmark = pytest.mark.live

_TABLE = "create table t (id int primary key)"


def _messages(captured: Captured) -> list[dict[str, object]]:
    records = TopicReader(captured.client).records(f"{captured.name}.__messages")
    return [orjson.loads(record.value or b"") | {"key": orjson.loads(record.key)} for record in records]


def _content(message: dict[str, object]) -> bytes:
    return base64.b64decode(message["message"]["content"])  # type: ignore[index]


def test_messages_of_configured_prefixes_are_published_in_order(database: Database, capture: StartCapture) -> None:
    database.execute(_TABLE)
    source = "messages = ['audit', 'other']"
    captured = capture("public.t", source=source)
    database.execute(
        "begin; insert into t values (1); select pg_logical_emit_message(true, 'audit', 'in a transaction');"
        " insert into t values (2); commit",
        r"select pg_logical_emit_message(false, 'audit', '\x00ff'::bytea)",
        "begin; select pg_logical_emit_message(true, 'audit', 'never'); rollback",
        "begin; select pg_logical_emit_message(false, 'audit', 'although it is rolled back'); rollback",
        "select pg_logical_emit_message(true, 'unknown', 'x')",
        "select pg_logical_emit_message(true, 'other', '')",
    )
    captured.assert_equal()
    captured.stop()
    captured.start()
    database.execute("select pg_logical_emit_message(false, 'audit', 'last')", "insert into t values (3)")
    captured.assert_equal()
    messages = _messages(captured)
    assert [_content(message) for message in messages] == [
        b"in a transaction", b"\x00\xff", b"although it is rolled back", b"", b"last",
    ]  # fmt: skip
    assert [message["key"]["prefix"] for message in messages] == ["audit", "audit", "audit", "other", "audit"]  # type: ignore[index]
    tags = [str(message["tag"]) for message in messages]
    assert tags == sorted(set(tags))
    assert [message["source"]["txId"] is None for message in messages] == [False, True, True, False, True]  # type: ignore[index]
    # Within its transaction it is between the two rows.
    inserted = {event.key: event.tag for event in captured.events("public.t") if event.op == "c"}
    assert inserted[b'{"id":1}'] < tags[0] < inserted[b'{"id":2}']


def _records(captured: Captured, topic: str) -> list[tuple[bytes, bytes | None, dict[str, bytes]]]:
    read = read_committed(captured.client, [topic], of=lambda one: (one.key(), one.value(), dict(one.headers() or [])))
    return [record for records in read.values() for record in records]


def test_new_rows_of_an_outbox_go_to_the_topic_of_their_aggregate(database: Database, capture: StartCapture) -> None:
    database.execute(
        _TABLE,
        "create table outbox (id uuid primary key default gen_random_uuid(), aggregatetype text not null,"
        " aggregateid text not null, type text, payload jsonb, extra int)",
    )
    source = "outbox = 'public.outbox'"
    captured = capture("public.t", source=source)
    row = "insert into outbox (aggregatetype, aggregateid, type, payload)"
    database.execute(
        f"begin; insert into t values (1); {row} values ('order', '7', 'Created', '{{\"a\": 1}}');"
        " delete from outbox; commit",
        f"{row} values ('order', '7', 'Changed', '{{\"a\": 2}}'), ('a b/c', 'x', 'Odd', null)",
        "update outbox set payload = '{}'",
        "truncate outbox",
        f"begin; {row} values ('order', '8', 'Never', '{{}}'); rollback",
    )
    captured.assert_equal()
    captured.stop()
    captured.start()
    database.execute(f"{row} values ('order', '9', 'After', '[]')")
    captured.assert_equal()
    orders = _records(captured, f"{captured.name}.__outbox.order")
    odd = _records(captured, f"{captured.name}.__outbox.a-20b-2fc")
    assert sorted((key, value, headers["type"]) for key, value, headers in orders) == [
        (b"7", b'{"a": 1}', b"Created"),
        (b"7", b'{"a": 2}', b"Changed"),
        (b"9", b"[]", b"After"),
    ]
    assert [value for key, value, _ in orders if key == b"7"] == [b'{"a": 1}', b'{"a": 2}']
    assert [(key, value) for key, value, _ in odd] == [(b"x", None)]
    assert len({headers["id"] for _, _, headers in orders}) == 3
    assert all(len(headers["tag"]) == 28 for _, _, headers in orders)


@pytest.mark.soak
def test_no_row_of_an_outbox_stops_capture_or_makes_topics_without_end(
    database: Database, capture: StartCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.stream.live_stream.OUTBOX_TYPES_MAX", 2)
    database.execute(
        _TABLE,
        "create table outbox (n serial primary key, id text, aggregatetype text, aggregateid text, type text,"
        " payload jsonb)",
    )
    source = "outbox = 'public.outbox'"
    captured = capture("public.t", source=source)
    row = "insert into outbox (id, aggregatetype, aggregateid, type, payload) values"
    database.execute(f"{row} ('1', repeat('注', 300), 'k', 'x', '{{}}'), ('2', 'secret', 'k', 'x', '{{}}')")
    database.execute(f"{row} ('3', 'private', 'k', 'x', '{{}}'), (null, null, null, null, null)")
    captured.settle()
    captured.stop()
    captured.start()
    database.execute(f"{row} ('4', 'private', 'k', 'x', '{{}}'), ('5', 'secret', 'k', 'x', '{{}}')")
    captured.settle()
    topics = [name for name in TopicAdmin(captured.client).all_partition_counts() if f"{captured.name}.__out" in name]
    shared = _records(captured, f"{captured.name}.__outbox")
    own = _records(captured, f"{captured.name}.__outbox.secret")
    assert len(topics) == 3
    assert sorted((headers["id"], headers["aggregatetype"]) for _, _, headers in shared) == [
        (b"", b""),
        (b"3", b"private"),
        (b"4", b"private"),
    ]
    assert sorted(headers["id"] for _, _, headers in own) == [b"2", b"5"]
    assert not any("secret" in line or "private" in line for line in captured.said)


@pytest.mark.soak
def test_beside_an_outbox_a_tables_topic_that_was_lost_is_created_as_it_has_to_be(
    database: Database, capture: StartCapture
) -> None:
    database.execute(
        _TABLE,
        "insert into t values (1)",
        "create table outbox (id int primary key, aggregatetype text, aggregateid text, type text, payload jsonb)",
    )
    source = "outbox = 'public.outbox'"
    captured = capture("public.t", source=source, start=False)
    captured.configure(heartbeat_interval_s=600)  # so that only a publication shows that the topic is gone
    captured.start()
    captured.settle()
    topic, cluster = captured.topic("public.t"), TopicAdmin(captured.client)
    admin = AdminClient(dict(captured.client))
    admin.delete_topics([topic], operation_timeout=30)[topic].result(300)
    until(lambda: topic not in cluster.partition_counts([topic]))
    database.execute(
        "begin; insert into outbox values (1, 'order', '7', 'Created', '{}'); insert into t values (2); commit"
    )
    captured.assert_equal()
    assert cluster.configs([topic])[topic]["cleanup.policy"] == "compact"
    assert [key for key, _, _ in _records(captured, f"{captured.name}.__outbox.order")] == [b"7"]


def test_an_outbox_that_left_the_publication_stops_capture(database: Database, capture: StartCapture) -> None:
    database.execute(
        _TABLE,
        "create table outbox (id int primary key, aggregatetype text, aggregateid text, type text, payload jsonb)",
    )
    source = "outbox = 'public.outbox'"
    captured = capture("public.t", source=source)
    database.execute(f"alter publication {captured.config.publication} drop table outbox")
    assert "public.outbox: not in publication" in str(captured.wait_error())
