"""Rows of chosen keys are published again: in the order of the stream, exactly as it has them, and only on request."""

import threading
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer
from psycopg.conninfo import make_conninfo

from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.table import TableName
from cdc.postgres.repair_messages import REPAIR_PREFIX, RepairRequest, request_repair
from cdc.toast.store import ToastStore
from snapshot import chunk_session
from tests.captured import Captured, Published, StartCapture
from tests.databases import Database, until
from tests.dying_publisher import Killed, dying
from tests.threads import beside
from tests.topics import read_committed

pytestmark = pytest.mark.live

_DONE = "for a repair"
Key = dict[str, Any]


def ask(captured: Captured, keys: Sequence[Key] | None, table: str = "public.t") -> int:
    connection = captured.database.connection
    return request_repair(connection, TableName.parse(table), keys, slot=captured.config.slot)


def repair(captured: Captured, keys: Sequence[Key], table: str = "public.t") -> None:
    before = sum(_DONE in line for line in captured.said)
    ask(captured, keys, table)
    wait(captured, lambda: sum(_DONE in line for line in captured.said) > before)


def wait(captured: Captured, condition: Any) -> None:
    """Wait for a condition while capture goes on."""

    def holds() -> bool:
        if captured.error is not None:
            raise captured.error
        return bool(condition())

    until(holds)


def forge(captured: Captured, table: str, key: Key, row: Key | None) -> None:
    """Write an event to the topic that the source knows nothing of, with the oldest possible tag."""
    producer = Producer({**captured.client, "partitioner": "murmur2_random"})
    event = {"op": "u", "tag": "0" * 28, "before": None, "after": row}
    shape = captured.schemas(table)[-1].table
    value = (
        orjson.dumps(event)[:-1] + b',"source":{"version":"x","schema_id":"%b"},"ts_ms":0}' % shape.schema_id.encode()
    )
    producer.produce(captured.topic(table), value, orjson.dumps(key))
    assert producer.flush(10) == 0


def events_of_key(events: Sequence[Published], key: Key) -> list[Published]:
    return [event for event in events if orjson.loads(event.key) == key]


def assert_in_order(events: Sequence[Published]) -> None:
    """Per key, no event has an older tag than the one before it."""
    newest: dict[bytes, str] = {}
    for event in events:
        if event.value is not None and event.tag != "0" * 28:
            assert event.tag >= newest.get(event.key, "")
            newest[event.key] = event.tag


_TABLE = ("create table t (id int primary key, a text)", "insert into t select n, 'x' from generate_series(1, 50) n")


def test_what_the_log_has_wrong_is_right_after_a_repair(database: Database, capture: StartCapture) -> None:
    database.execute(*_TABLE)
    captured = capture("public.t")
    database.execute("delete from t where id = 5", "update t set a = 'y' where id = 6")
    captured.settle()
    forge(captured, "public.t", {"id": 1}, {"id": 1, "a": "forged"})
    forge(captured, "public.t", {"id": 5}, {"id": 5, "a": "back"})
    forge(captured, "public.t", {"id": 99}, {"id": 99, "a": "never was"})
    assert captured.rows("public.t") != captured.source_rows("public.t")
    lsn = ask(captured, [{"id": 1}, {"id": 5}, {"id": 6}, {"id": 99}])
    captured.wait_for(_DONE)
    captured.assert_equal()
    events = captured.events("public.t")
    assert [event.op for event in events_of_key(events, {"id": 6})] == ["r", "u", "r"]
    assert [event.op for event in events_of_key(events, {"id": 5})[-2:]] == ["d", "tombstone"]
    assert [event.op for event in events_of_key(events, {"id": 99})] == ["u", "d", "tombstone"]
    repaired = {events_of_key(events, {"id": 1})[-1].tag, events_of_key(events, {"id": 99})[-2].tag}
    assert len(repaired) == 1  # all have the tag of one snapshot
    assert repaired.pop()[-8:] == "00000000"
    assert lsn > 0
    assert [event.op for event in events_of_key(events, {"id": 2})] == ["r"]
    assert any("published 2 rows and 2 deletes again" in line for line in captured.said)
    assert tombstone_tags(captured, {"id": 99}) == [events_of_key(events, {"id": 99})[-2].tag]


@pytest.mark.soak
def test_a_whole_table_is_copied_when_somebody_asks_for_it(database: Database, capture: StartCapture) -> None:
    database.execute(*_TABLE)
    captured = capture("public.t")
    database.execute("update t set a = 'y' where id = 6")
    captured.settle()
    forge(captured, "public.t", {"id": 1}, {"id": 1, "a": "forged"})
    forge(captured, "public.t", {"id": 99}, {"id": 99, "a": "never was"})
    ask(captured, None)
    captured.wait_for("copying public.t at")
    wait(captured, lambda: captured.rows("public.t") == captured.source_rows("public.t"))
    events = captured.events("public.t")
    assert [event.op for event in events_of_key(events, {"id": 6})] == ["r", "u", "r"]
    assert [event.op for event in events_of_key(events, {"id": 99})] == ["u", "d", "tombstone"]
    assert_in_order(events)


def tombstone_tags(captured: Captured, key: Key) -> list[str]:
    """The tags of a key's tombstones, from their headers."""
    read = read_committed(captured.client, [captured.topic("public.t")])
    return [
        tag.decode()
        for events in read.values()
        for _, its_key, value, tag in events
        if value is None and orjson.loads(its_key) == key
    ]


def test_repairs_keep_their_place_under_traffic(database: Database, capture: StartCapture) -> None:
    database.execute(
        "create table t (id int primary key, a int)", "insert into t select n, 0 from generate_series(1, 61) n"
    )
    captured = capture("public.t")

    def write(over: threading.Event) -> None:
        with database.reading() as connection:
            number = 0
            while not over.is_set():
                number += 1
                connection.execute("update t set a = a + 1 where id <= 60 and id %% 7 = %s", (number % 7,))
                connection.execute("delete from t where id = %s", (number % 60,))
                connection.execute("insert into t values (%s, 1) on conflict do nothing", ((number + 30) % 60,))

    with beside(write):
        for _ in range(4):
            # Nobody writes row 61. Of the others, a repair leaves out those that change while it reads.
            repair(captured, [{"id": number} for number in range(70)])
    captured.assert_equal()
    events = captured.events("public.t")
    assert_in_order(events)
    repaired = [event for event in events if event.op == "r"]
    assert len({event.tag for event in repaired}) == 5  # the first copy and four repairs
    assert len(events_of_key(events, {"id": 65})) == 8  # never there: a delete and a tombstone each time


_ODD = ["", " ", "a\tb\\n", "l1\nl2\r", "'q\"", "%s %d %%", "{1,2}", "\\N", "NULL", "ü 中 🐘", "\x01\x7f", "x" * 2000]
KEY_TYPES: dict[str, Sequence[str]] = {
    "uuid": ["00000000-0000-0000-0000-00000000000a", "ffffffff-0000-0000-0000-000000000000"],
    "numeric": ["1.50", "-0.0000000000000000001", "123456789012345678901234567890.5", "NaN", "0"],
    "numeric(10,2)": ["1.50", "0"],
    "timestamptz": ["2016-11-04 13:51:30.123456+05", "infinity", "0044-03-15 12:00:00+00 BC", "21016-01-01 00:00+00"],
    "timestamp": ["2016-11-04 13:51:30", "-infinity", "0044-03-15 12:00:00.5 BC"],
    "date": ["2016-11-04", "0001-01-01 BC"],
    "time": ["13:51:30.1"],
    "interval": ["1 mon 2 days 03:04:05", "30 days"],
    "bytea": [r"\x", r"\x00ff5c"],
    "text": _ODD,
    "varchar(3)": ["abc", "a"],
    "char(5)": ["ab", "abcde"],
    "name": ["a name"],
    '"char"': ["c"],
    "bool": ["t", "f"],
    "int8": ["9223372036854775807", "-9007199254740993"],
    "float8": ["NaN", "Infinity", "1e300", "0.1", "100", "-5e-324"],
    "float4": ["1.1", "16777216"],
    "inet": ["10.0.0.1/8", "::1"],
    "bit(3)": ["101"],
    "varbit": ["10101"],
    "jsonb": ['{"a": [1, "x"]}', '"text"', "null"],
    "int4range": ["[1,5)", "empty"],
    "mood": ["happy", 'it\'s "odd"'],
    "email": ["a@b", "A@B"],
    "pair": ['(1,"a b")'],
    "int[]": ["{1,2}", "{}", "[0:1]={7,8}", "{{1,2},{3,NULL}}"],
    "text[]": ['{"a b","c\\"d\\\\e",NULL,"NULL",""}'],
    "ext.citext": ["CaSe"],
}


@pytest.mark.soak
def test_a_key_of_any_type_is_found_again(database: Database, capture: StartCapture) -> None:
    database.execute(
        "create schema ext",
        "create extension citext schema ext",
        "create type mood as enum ('happy', 'it''s \"odd\"')",
        "create domain email as varchar(3)",
        "create type pair as (n int, t text)",
    )
    tables = {kind: f"public.t{number}" for number, kind in enumerate(KEY_TYPES)}
    for kind, table in tables.items():
        database.execute(f'create table {table} ("k %s" {kind} primary key, a text)')
        for value in KEY_TYPES[kind]:
            database.connection.execute(f"insert into {table} values (%s::text::{kind}, 'x')".encode(), (value,))
    captured = capture(*tables.values())
    before = {kind: {event.key for event in captured.events(table)} for kind, table in tables.items()}
    for table in tables.values():
        database.execute(f"delete from {table} where ctid = (select max(ctid) from {table})")
    captured.settle()
    for kind, table in tables.items():
        assert len(before[kind]) == len(KEY_TYPES[kind]), kind
        ask(captured, [orjson.loads(key) for key in before[kind]], table)
    wait(captured, lambda: sum(_DONE in line for line in captured.said) == len(tables))
    captured.assert_equal()
    for kind, table in tables.items():
        events = captured.events(table)
        assert {event.key for event in events} == before[kind], kind
        operations = {key: [event.op for event in events if event.key == key] for key in before[kind]}
        (gone,) = (key for key in operations if "d" in operations[key])
        assert operations.pop(gone) == ["r", "d", "tombstone", "d", "tombstone"], kind
        assert all(seen == ["r", "r"] for seen in operations.values()), kind


@pytest.mark.soak
def test_a_key_in_another_form_never_deletes_the_row_that_it_means(database: Database, capture: StartCapture) -> None:
    database.execute("create table t (id numeric(10,2) primary key)", "insert into t values (1)")
    captured = capture("public.t")
    repair(captured, [{"id": "1.0"}])
    assert [(event.key, event.op) for event in captured.events("public.t")] == [(b'{"id":"1.00"}', "r")] * 2


def test_a_row_that_the_publication_hides_counts_as_gone(database: Database, capture: StartCapture) -> None:
    database.execute(
        "create table t (id int primary key, a int, secret text)",
        "insert into t select n, n, 'hidden' from generate_series(1, 10) n",
        "create publication p for table t (id) where (id % 2 = 0)",
    )
    captured = capture("public.t", source="publication = 'p'")
    repair(captured, [{"id": 3}, {"id": 4}])
    events = captured.events("public.t")
    assert [event.op for event in events_of_key(events, {"id": 3})] == ["d", "tombstone"]
    assert [event.after for event in events_of_key(events, {"id": 4})] == [{"id": 4}] * 2


def _send(database: Database, content: bytes) -> None:
    database.connection.execute("select pg_logical_emit_message(true, %s, %s::bytea)", (REPAIR_PREFIX, content))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            [{"id": "abc"}],
            "public.t are ignored (1): PostgreSQL doesn't take them for a key (id integer): InvalidTextRepresentation",
        ),
        ([{"id": 2**40}, {"id": 2**41}], "are ignored (2): PostgreSQL doesn't"),
        ([{"id": 1.5}], "InvalidTextRepresentation"),
        ([{"id": True}], "the value of id isn't one of type integer"),
        ([{"id": None}], "the value of id isn't one of type integer"),
        ([{"id": [1]}], "id is no array"),
        ([{"id": "1\0"}], "NUL"),
        ([{"nr": 1}], "the columns of its key are id"),
        ([{"id": 1, "a": "x"}], "the columns of its key are id"),
    ],
)
@pytest.mark.soak
def test_keys_that_cannot_be_are_ignored_and_the_others_repaired(
    database: Database, capture: StartCapture, keys: list[Key], words: str
) -> None:
    database.execute(*_TABLE)
    captured = capture("public.t")
    repair(captured, [{"id": 2}, *keys, {"id": 3}])
    captured.wait_for(words)
    events = captured.events("public.t")
    assert [len(events_of_key(events, {"id": number})) for number in (1, 2, 3, 4)] == [1, 2, 2, 1]
    assert not any("abc" in line for line in captured.said)
    captured.assert_equal()


def test_bad_requests_are_ignored_with_a_sentence(database: Database, capture: StartCapture) -> None:
    database.execute(
        *_TABLE,
        "create table log (a text)",
        "create table other (id int primary key)",
        "alter table log replica identity full",
    )
    captured = capture("public.t", "public.log", source="[source.options.'public.log']\nappend_only = true")
    slot = captured.config.slot
    good = orjson.loads(RepairRequest(slot, TableName("public", "t"), ({"id": 1},)).to_bytes())
    for content, words in (
        (b"\xff{", "it isn't JSON"),
        (b"[]", "it isn't a JSON object"),
        (orjson.dumps(good | {"format": 2}), "another version"),
        (orjson.dumps(good | {"slot": 7}), "its field 'slot' is missing"),
        (orjson.dumps(good | {"keys": [1]}), "its field 'keys' is missing"),
        (orjson.dumps(good).replace(b'{"id":1}', b'{"id":' + b"[" * 600 + b"]" * 600 + b"}"), "its field 'keys'"),
        (orjson.dumps(good | {"table": "other"}), "public.other is ignored: the table isn't captured"),
        (orjson.dumps(good | {"table": "log"}), "public.log is ignored: it is append-only"),
    ):
        _send(database, content)
        captured.wait_for(words)
    _send(database, orjson.dumps(good | {"keys": []}))
    repair(captured, [{"id": 1}])
    captured.assert_equal("public.t")


@pytest.mark.soak
def test_a_long_transaction_holds_up_no_repair(database: Database, capture: StartCapture) -> None:
    database.execute(*_TABLE)
    captured = capture("public.t")
    with database.reading() as holder:
        holder.execute("begin; insert into t values (1000, 'long')")
        repair(captured, [{"id": 1}, {"id": 1000}])
        holder.execute("commit")
    captured.assert_equal()
    assert [event.op for event in events_of_key(captured.events("public.t"), {"id": 1})] == ["r", "r"]
    assert [event.op for event in events_of_key(captured.events("public.t"), {"id": 1000})] == ["d", "tombstone", "c"]


@pytest.mark.soak
def test_what_keeps_a_repair_from_beginning_keeps_nothing_else(database: Database, capture: StartCapture) -> None:
    database.execute(*_TABLE, "create table u (id int primary key)")
    captured = capture("public.t", "public.u")
    captured.stop()
    role = database.role()
    database.execute(f"grant select on u to {role}")
    captured.configure(dsn=make_conninfo(database.dsn, user=role))
    captured.start()
    ask(captured, [{"id": 1}])
    captured.wait_for("a repair waits: PostgreSQL refused: permission denied")
    database.execute("insert into u values (1)")
    captured.settle()
    assert [event.op for event in captured.events("public.u")] == ["c"]
    database.execute(f"grant select on t to {role}")
    captured.wait_for(_DONE)
    assert sum("a repair waits" in line for line in captured.said) == 1
    assert [event.op for event in events_of_key(captured.events("public.t"), {"id": 1})] == ["r", "r"]
    assert not any("starting over" in line for line in captured.said)


@pytest.mark.soak
def test_rows_that_a_policy_hides_are_not_taken_for_deleted(database: Database, capture: StartCapture) -> None:
    database.execute(*_TABLE)
    captured = capture("public.t")
    captured.stop()
    role = database.role()
    database.execute(f"grant select on t to {role}", "alter table t enable row level security")
    captured.configure(dsn=make_conninfo(database.dsn, user=role))
    captured.start()
    ask(captured, [{"id": 1}])
    captured.wait_for("a repair waits: PostgreSQL refused: query would be affected by row-level security policy")
    assert [event.op for event in captured.events("public.t")] == ["r"] * 50
    database.execute(f"alter role {role} bypassrls")
    captured.wait_for(_DONE)
    assert [event.op for event in events_of_key(captured.events("public.t"), {"id": 1})] == ["r", "r"]


@pytest.mark.soak
def test_a_table_that_was_rewritten_is_copied_whole(database: Database, capture: StartCapture) -> None:
    database.execute(*_TABLE)
    captured = capture("public.t")
    captured.stop()
    captured.configure(heartbeat_interval_s=3600.0)  # nobody looks before the repair does
    captured.start()
    database.execute("alter table t alter a type int using length(a)")
    ask(captured, [{"id": 1}])
    captured.wait_for("copying public.t at")
    captured.assert_equal()


_LARGE = (
    "create function noise(length int, seed int) returns text language sql immutable return"
    " (select left(string_agg(md5(seed::text || n), ''), length) from generate_series(0, length / 32) n)",
    "create table t (id int primary key, n int, words text, raw bytea)",
    "alter table t alter words set storage external",
    "insert into t select n, 0, noise(9000, n), decode(noise(8000, n), 'hex') from generate_series(1, 6) n",
)


def _spoil(captured: Captured, key: bytes) -> None:
    """Make the store hold a wrong large value of a row, while capture is stopped."""
    config = captured.config
    topic = captured.topic("public.t")
    ids = TopicAdmin(captured.client).topic_ids([topic])
    store = ToastStore(
        config.as_pipeline().values_directory / config.slot,
        identity=f"{config.pipeline.name} {config.slot} {sorted(ids.items())}",
        say=pytest.fail,
    )
    (column,) = (column for column in captured.schemas("public.t")[-1].table.columns if column.name == "words")
    stored = store.get(topic, key)
    assert stored is not None
    store.put(topic, key, {**stored, column.identity: b'"spoiled"'})
    store.commit(store.position())
    store.close()


def test_large_values_are_right_after_a_repair(database: Database, capture: StartCapture) -> None:
    database.execute(*_LARGE)
    captured = capture("public.t")
    database.execute("update t set n = n + 1", "update t set n = n + 1")
    captured.assert_equal()
    captured.stop()
    _spoil(captured, b'{"id":1}')
    captured.start()
    repair(captured, [{"id": 1}, {"id": 2}])
    database.execute("update t set n = n + 1")
    captured.assert_equal()
    assert not any(
        "events for the values" in line for line in captured.said
    )  # nothing of the other rows was read again


@pytest.mark.parametrize(
    "before", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["before the commit", "after it"]
)
@pytest.mark.parametrize("at", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_a_process_that_dies_in_a_repair_leaves_nothing_wrong(
    database: Database, capture: StartCapture, monkeypatch: pytest.MonkeyPatch, at: int, before: bool
) -> None:
    monkeypatch.setattr(chunk_session, "KEYS_AT_ONCE", 2)
    database.execute(*_LARGE)
    captured = capture("public.t")
    database.execute("update t set n = n + 1")
    captured.assert_equal()
    captured.stop()
    for number in range(1, 2 * at + 1):
        _spoil(captured, b'{"id":%d}' % number)
    captured.start(wrap_publisher=dying(lambda commit: commit.read == at, before=before))
    ask(captured, [{"id": number} for number in range(1, 9)])
    assert isinstance(captured.wait_error(), Killed)
    captured.start()
    # The store was made to forget a row's values before it was published.
    database.execute("update t set n = n + 1")
    captured.assert_equal()
    assert_in_order(captured.events("public.t"))


@pytest.mark.soak
def test_a_process_that_dies_after_the_copy_of_a_table_leaves_no_older_values(
    database: Database, capture: StartCapture
) -> None:
    database.execute(*_LARGE)
    captured = capture("public.t")
    database.execute("update t set n = n + 1")
    captured.assert_equal()
    captured.stop()
    _spoil(captured, b'{"id":1}')
    database.execute("alter table t alter n type bigint")
    captured.start(wrap_publisher=dying(lambda commit: commit.read == 1))
    assert isinstance(captured.wait_error(), Killed)
    captured.start()
    database.execute("update t set n = n + 1")
    captured.assert_equal()
    events = [event for event in captured.events("public.t") if event.op in "cru"]
    assert sum(event.op == "r" for event in events) >= 12
    assert not any(event.after["words"] == "spoiled" for event in events)
