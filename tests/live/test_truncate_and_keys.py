"""TRUNCATE, keys that change places, keys that aren't the primary key, tables without one."""

from dataclasses import replace

import pytest

from cdc.capture.batch_size import BatchSize
from cdc.model.table import TableName
from cdc.postgres.catalogue import keys_can_swap
from monitor.tail import FromStart, follow
from snapshot.request import request_copies
from tests.captured import Captured, StartCapture
from tests.databases import Database
from tests.dying_publisher import Killed, dying

pytestmark = pytest.mark.live


_TABLES = (
    "create table t (id int primary key, a text)",
    "create table u (id int primary key, t_id int references t, a text)",
    "create table other (id serial primary key)",
    "insert into t select n, 'x' from generate_series(1, 300) n",
    "insert into u select n, n, 'y' from generate_series(1, 200) n",
)


@pytest.mark.parametrize(
    "before", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["before the commit", "after it"]
)
@pytest.mark.parametrize("at", [pytest.param(at, marks=() if at == 4 else pytest.mark.soak) for at in range(1, 9)])
def test_a_truncate_goes_on_where_it_was_interrupted(
    database: Database, capture: StartCapture, at: int, before: bool
) -> None:
    database.execute(*_TABLES)
    captured = capture("public.t", "public.u", batch=BatchSize(100, 1 << 20))
    captured.stop()
    database.execute(
        "begin; insert into t values (1000, 'a'); truncate t cascade; insert into t values (1, 'b'); commit"
    )
    captured.start(wrap_publisher=dying(lambda commit: commit.number == at, before=before))
    assert isinstance(captured.wait_error(), Killed)
    captured.start()
    captured.assert_equal()
    # Interrupted work isn't repeated: a key is deleted once.
    deleted = [event.key for event in captured.events("public.t") if event.op == "d"]
    assert len(deleted) == len(set(deleted))


_DEFERRABLE = "alter table t drop constraint t_pkey, add primary key (id) deferrable"
_IMMEDIATE = "alter table t drop constraint t_pkey, add primary key (id)"
_SWAP = "update t set id = 3 - id where id in (1, 2)"
_SWAPPED_WHILE_NOBODY_LOOKS = {
    "one transaction": (f"begin; {_DEFERRABLE}; {_SWAP}; {_IMMEDIATE}; commit",),
    "one transaction that also writes before": (
        f"begin; update t set a = 'touched'; {_DEFERRABLE}; {_SWAP}; set constraints all deferred;"
        " insert into t values (3, 'guest'); delete from t where a = 'guest'; commit",
        _IMMEDIATE,
    ),
    "several": (_DEFERRABLE, _SWAP, "update t set id = id + 1", _IMMEDIATE, "update t set a = a || '!'"),
    "a full identity only for it": (
        f"begin; alter table t replica identity full; {_DEFERRABLE}; {_SWAP}; {_IMMEDIATE};"
        " alter table t replica identity default; commit",
    ),
}


@pytest.fixture
def with_immediate_key(database: Database, capture: StartCapture) -> Captured:
    database.execute(
        "create table t (id int primary key, a text)",
        "alter table t replica identity full",
        "insert into t select n, 'r' || n from generate_series(1, 6) n",
    )
    return capture("public.t", start=False)


@pytest.mark.parametrize("shape", ["", ", add more int default 1"], ids=["nothing else", "a column too"])
@pytest.mark.soak
def test_a_key_becomes_deferrable_while_capture_runs(with_immediate_key: Captured, shape: str) -> None:
    captured = with_immediate_key
    captured.configure(heartbeat_interval_s=600)  # nothing is copied again meanwhile
    captured.start()
    captured.database.execute("update t set a = 'one' where id = 1", f"{_DEFERRABLE}{shape}", _SWAP)
    captured.assert_equal()
    captured.database.execute("update t set id = id + 1", "begin; truncate t; insert into t values (1, 'x'); commit")
    captured.assert_equal()


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
@pytest.mark.parametrize("name", _SWAPPED_WHILE_NOBODY_LOOKS)
@pytest.mark.soak
def test_a_key_that_was_deferrable_for_a_moment(with_immediate_key: Captured, name: str, running: bool) -> None:
    captured = with_immediate_key
    captured.start()
    if not running:
        captured.stop()
    captured.database.execute(*_SWAPPED_WHILE_NOBODY_LOOKS[name])
    if not running:
        captured.start()
    captured.wait_quiet()
    captured.assert_equal()
    said = len(captured.said)
    captured.wait_quiet()
    assert captured.said[said:] == []


_KEY_CONSTRAINTS = {
    "": False,
    ", alter a set not null, add unique (a) deferrable": False,
    ", drop constraint t_pkey, add primary key (id) deferrable": True,
    ", drop constraint t_pkey, add primary key (id) deferrable, add unique (id)": False,
    ", drop constraint t_pkey, add primary key (id) deferrable, add unique (id, a)": True,
}


@pytest.mark.parametrize(("constraints", "can_swap"), _KEY_CONSTRAINTS.items())
def test_only_how_its_own_key_is_checked_lets_rows_change_places(
    database: Database, constraints: str, can_swap: bool
) -> None:
    database.execute("create table t (id int primary key, a text)", f"alter table t replica identity full{constraints}")
    shape = database.shape(TableName("public", "t"))
    assert keys_can_swap(database.connection, shape) is can_swap
    assert keys_can_swap(database.connection, replace(shape, key=())) is False  # append-only
    assert keys_can_swap(database.connection, replace(shape, oid=0)) is False  # gone by now


@pytest.mark.parametrize("identity", ["full", "using index t_code_region_idx"])
def test_a_configured_key_over_a_unique_index(database: Database, capture: StartCapture, identity: str) -> None:
    database.execute(
        "create table t (id int primary key, code text not null, region text not null, a text)",
        "create unique index t_code_region_idx on t (code, region)",
        f"alter table t replica identity {identity}",
        "insert into t select n, 'c' || n, 'eu', 'x' from generate_series(1, 9) n",
    )
    source = "[source.options.'public.t']\nkey = ['region', 'code']"
    captured = capture("public.t", source=source)
    database.execute("update t set code = 'new' where id = 1", "update t set a = 'y'", "delete from t where id = 3")
    database.execute("update t set id = id + 100")
    captured.assert_equal()
    assert b'{"region":"eu","code":"new"}' in captured.rows("public.t")


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("insert into t values (3, null, 'a-secret'), (4, null, 'a-secret')", marks=pytest.mark.soak),
        pytest.param("update t set code = null, a = 'a-secret'", marks=pytest.mark.soak),
        "begin; alter table t add more text; update t set code = null, a = 'a-secret' where id = 2; commit",
    ],
    ids=lambda statement: statement[:20],
)
def test_a_row_without_its_configured_key_stops_capture_before_it_is_published(
    database: Database, capture: StartCapture, statement: str
) -> None:
    database.execute(
        "create table t (id int primary key, code text not null unique, a text)",
        "alter table t replica identity full",
        "insert into t values (1, 'c1', 'x'), (2, 'c2', 'y')",
    )
    source = "[source.options.'public.t']\nkey = ['code']"
    captured = capture("public.t", source=source)
    database.execute("alter table t alter code drop not null", "insert into t values (9, 'c9', 'z')")
    captured.settle()
    database.execute(statement)
    text = str(captured.wait_error())
    assert "a row of public.t is null in code, which is in its key" in text
    assert "a-secret" not in text
    assert captured.rows("public.t").keys() == {b'{"code":"c1"}', b'{"code":"c2"}', b'{"code":"c9"}'}
    # The message's way out: another key distinguishes the rows.
    captured.configure(options={})
    captured.start()
    captured.assert_equal()


def test_an_append_only_table_keeps_every_event(database: Database, capture: StartCapture) -> None:
    database.execute("create table log (at int, what text)", "insert into log values (1, 'a'), (1, 'a')")
    source = "[source.options.'public.log']\nappend_only = true"
    captured = capture("public.log", source=source)
    database.execute("insert into log values (2, 'b'), (2, 'b')", "truncate log", "insert into log values (3, 'c')")
    captured.settle()
    events = captured.events("public.log")
    assert [(event.op, event.parsed["after"] and event.after["at"]) for event in events] == [
        ("r", 1), ("r", 1), ("c", 2), ("c", 2), ("t", None), ("c", 3),
    ]  # fmt: skip
    assert {event.partition for event in events} == {events[0].partition}
    pipeline, count = captured.config.as_pipeline(), len(events)
    followed = follow(pipeline, "public.log", start=FromStart(), count=count, as_json=False, stopping=lambda: False)
    lines = [line.text for line in followed]
    assert [line.split()[1:] for line in lines[3:]] == [
        ["insert", "{}", '{"at":2,"what":"b"}'], ["truncate", "{}"], ["insert", "{}", '{"at":3,"what":"c"}'],
    ]  # fmt: skip


def test_the_copy_of_an_append_only_table_in_the_stream_begins_by_emptying_it(
    database: Database, capture: StartCapture
) -> None:
    database.execute("create table log (at int, what text)", "insert into log values (1, 'a')")
    source = "[source.options.'public.log']\nappend_only = true"
    captured = capture("public.log", source=source)
    database.execute("insert into log values (2, 'b')")
    captured.settle()
    request_copies(captured.config.as_pipeline(), ["public.log"])
    captured.wait_for("copying public.log at")
    captured.settle()
    events = captured.events("public.log")
    assert [(event.op, event.parsed["after"] and event.after["at"]) for event in events] == [
        ("r", 1), ("c", 2), ("t", None), ("r", 1), ("r", 2),
    ]  # fmt: skip
    # With the copy's tag, it removes everything before it and nothing after it.
    assert events[1].tag < events[2].tag == events[3].tag == events[4].tag


_PRIMARY_AGAIN = "drop constraint t_pkey, add primary key (id)"


@pytest.mark.parametrize(
    ("name", "change", "back", "says"),
    [
        ("public.t", "drop constraint t_pkey", "add primary key (id)", "has no primary key any more"),
        (
            "public.t",
            "drop constraint t_pkey, add primary key (other)",
            _PRIMARY_AGAIN,
            "key columns of public.t: other",
        ),
        ("public.log", "add primary key (at)", "drop constraint log_pkey", "append_only, and it has a primary key"),
    ],
)
@pytest.mark.soak
def test_no_table_is_copied_with_another_kind_of_key(
    database: Database, capture: StartCapture, name: str, change: str, back: str, says: str
) -> None:
    """The stream shows a changed key only with the table's next row."""
    database.execute(
        "create table t (id int primary key, other int not null default 0)",
        "insert into t values (1)",
        "create table log (at int, what text)",
        "insert into log values (1, 'a')",
        "create publication narrow for table t (id), log",
    )
    source = "publication = 'narrow'\n[source.options.'public.log']\nappend_only = true"
    captured = capture("public.t", "public.log", source=source)
    captured.settle()
    before = captured.events(name)
    database.execute(f"alter table {name} {change}")
    request_copies(captured.config.as_pipeline(), [name])
    assert says in str(captured.wait_error())
    assert captured.events(name) == before
    database.execute(f"alter table {name} {back}")
    captured.start()
    captured.wait_for(f"copying {name}")
    captured.assert_equal("public.t")
    assert {event.key for event in captured.events("public.log")} == {b"{}"}
