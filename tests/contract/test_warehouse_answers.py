"""What a real PostgreSQL answers where the warehouse sink depends on it."""

import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr
from sqlalchemy import Connection, Engine, create_engine, event, text

from cdc.model.errors import DataLost, LockstepError, Unavailable
from cdc.model.event import Events
from cdc.model.table import Column, Table, TableName
from migrations.warehouse import upgrade
from sinks.access import Login
from sinks.contract import Batch, TableVersions
from sinks.warehouse.bookkeeping_format import HEAD
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.tables import WarehouseTables
from stack.stack import Stack
from tests.builders import batch, column, delete, progress, table, upsert
from tests.contract.beside import WarehouseParts, generations_of
from tests.databases import create_login, password_of, url_of
from tests.services import temporary_directory
from tests.threads import at_once, beside

pytestmark = pytest.mark.live


@pytest.fixture
def settings(endpoints: Any) -> WarehouseSettings:
    return WarehouseSettings(url=SecretStr(endpoints.warehouse_url), lock_timeout_s=0.3)


@pytest.fixture
def sink(settings: WarehouseSettings, name: str) -> Iterator[WarehouseParts]:
    sink = WarehouseParts(WarehouseTables(name, settings, 1))
    sink.prepare([table()])
    yield sink
    sink.close()


def test_the_view_shows_live_rows_of_the_live_generation(
    warehouse: Any, sink: WarehouseParts, settings: WarehouseSettings, name: str
) -> None:
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1), upsert({"id": 2, "note": "b"}, 1), delete({"id": 3}, 1)))
    sink.apply(batch(delete({"id": 2}, 2)))
    assert warehouse.execute(f"select * from {name}.orders").fetchall() == [(1, "a")]
    second = WarehouseParts(WarehouseTables(name, settings, 2))
    second.prepare([replace(table(), columns=(column("note"), column("id", "int8"), column("extra")))])
    generations_of(second).switch()
    second.close()
    assert warehouse.execute(f"select * from {name}.orders").fetchall() == []


def test_two_texts_of_one_key_are_one_row(settings: WarehouseSettings, name: str) -> None:
    """A key was text before it was a uuid: the copy deletes the old text and writes the row under the new one."""
    text = "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"
    keyed = table(column("id", "uuid"), column("note"))
    with closing(WarehouseParts(WarehouseTables(name, settings, 1))) as sink:
        sink.prepare([keyed])
        row = upsert({"id": text.lower(), "note": "a"}, 1, of=keyed)
        sink.apply(batch(delete({"id": text}, 1, of=keyed), row))
        assert [(stored.key["id"], stored.row["note"]) for stored in sink.scan(keyed)] == [(text.lower(), "a")]


OTHER = table(name=TableName("public", "other"))


@pytest.fixture
def asked() -> Iterator[list[str]]:
    """The statements sent to servers from now on; a pipeline counts as one."""
    statements: list[str] = []

    def ask(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", ask)
    yield statements
    event.remove(Engine, "before_cursor_execute", ask)


@pytest.fixture
def second(settings: WarehouseSettings, name: str, sink: WarehouseParts) -> Iterator[WarehouseParts]:
    """A second generation whose views have other columns."""
    second = WarehouseParts(WarehouseTables(name, settings, 2))
    second.prepare([replace(table(), columns=(column("note"), column("id", "int8"), column("extra")))])
    yield second
    second.close()


@pytest.mark.soak
def test_a_switch_to_other_columns_keeps_grants_and_options(
    warehouse: Any, second: WarehouseParts, sink: WarehouseParts, name: str
) -> None:
    roles = [f"{name}_{letter}" for letter in "abc"]
    for role in roles:
        warehouse.execute(f"create role {role}")
    try:
        warehouse.execute(f"grant select on {name}.orders to {roles[0]} with grant option")
        warehouse.execute(f"grant select (note) on {name}.orders to {roles[1]}")
        warehouse.execute(f"alter view {name}.orders set (security_barrier = true)")
        for target in (second, sink):
            generations_of(target).switch()
            query = (
                "select has_table_privilege(%s, %s, 'select with grant option'),"
                " has_any_column_privilege(%s, %s, 'select')"
            )
            asked = (roles[0], f"{name}.orders", roles[1], f"{name}.orders")
            assert warehouse.execute(query, asked).fetchone() == (True, True)
            query = (
                "select has_column_privilege(%s, %s, 'note', 'select'), has_column_privilege(%s, %s, 'id', 'select'),"
                " has_any_column_privilege(%s, %s, 'select')"
            )
            asked = (roles[1], f"{name}.orders", roles[1], f"{name}.orders", roles[2], f"{name}.orders")
            assert warehouse.execute(query, asked).fetchone() == (True, False, False)
            query = "select reloptions from pg_class where oid = %s::regclass"
            assert warehouse.execute(query, (f"{name}.orders",)).fetchone() == (["security_barrier=true"],)
    finally:
        warehouse.execute(f"drop view {name}.orders")
        for role in roles:
            warehouse.execute(f"drop role {role}")


# The sink gives way much sooner than a deadlock is looked for, unless other tests keep it from running.
@pytest.mark.alone
def test_readers_of_several_views_in_one_transaction_are_never_ended(
    endpoints: Any, settings: WarehouseSettings, name: str
) -> None:
    """They take their locks in the other order, which makes deadlocks."""
    shapes = [replace(table(), name=TableName("public", letter)) for letter in "abc"]
    sinks = [WarehouseParts(WarehouseTables(name, settings, generation)) for generation in (1, 2)]
    for sink in sinks:
        sink.prepare(shapes)
        sink.apply(batch(*(upsert({"id": 1, "note": "n"}, 1, of=shape) for shape in shapes)))
    reads = [0, 0]

    def read(index: int, over: threading.Event) -> None:
        with psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as connection:
            connection.execute("set deadlock_timeout = '100ms'")
            while not over.is_set():
                with connection.transaction():
                    for view in "cba":
                        assert connection.execute(f"select note from {name}.{view}").fetchall() == [("n",)]
                        time.sleep(0.01)
                reads[index] += 1

    with beside(partial(read, 0), partial(read, 1)):
        for turn in range(20):
            while True:
                try:
                    generations_of(sinks[(turn + 1) % 2]).switch()
                    break
                except Unavailable:
                    time.sleep(0.05)
    for sink in sinks:
        sink.close()
    assert min(reads) > 5


def test_a_long_query_keeps_the_switch_waiting_and_is_not_ended(
    endpoints: Any, warehouse: Any, second: WarehouseParts, name: str
) -> None:
    with psycopg.connect(endpoints.warehouse_dsn) as report:
        report.execute(f"select * from {name}.orders")
        with pytest.raises(Unavailable):
            generations_of(second).switch()
        assert generations_of(second).live() == 1
        report.execute(f"select * from {name}.orders")
    generations_of(second).switch()
    assert generations_of(second).live() == 2


@pytest.mark.parametrize(
    "instead",
    [
        "create view {name}.orders as select 1 as id",
        pytest.param("create view {name}.orders as select * from information_schema.tables", marks=pytest.mark.soak),
        pytest.param(
            "create view {name}.orders as select id from {name}_g1.orders union select 1 from lockstep.sink",
            marks=pytest.mark.soak,
        ),
        "create table {name}.orders (id int8, note text)",
        pytest.param(
            "create materialized view {name}.orders as select * from {name}_g1.orders", marks=pytest.mark.soak
        ),
    ],
)
def test_a_view_that_was_replaced_is_left_alone(
    warehouse: Any, second: WarehouseParts, sink: WarehouseParts, name: str, instead: str
) -> None:
    kind = "materialized view" if "materialized" in instead else instead.split()[1]
    warehouse.execute(f"drop view {name}.orders")
    warehouse.execute(instead.format(name=name))
    before = warehouse.execute("select %s::regclass::oid", (f"{name}.orders",)).fetchone()
    for act in (
        generations_of(second).switch,
        generations_of(second).live,
        generations_of(sink).switch,
        lambda: sink.prepare([table()]),
    ):
        with pytest.raises(LockstepError, match=r"orders, is (no view|a view of something else) now") as raised:
            act()
        assert raised.value.hint is not None
    assert warehouse.execute("select %s::regclass::oid", (f"{name}.orders",)).fetchone() == before
    warehouse.execute(f"drop {kind} {name}.orders")
    assert generations_of(second).live() == 1
    generations_of(second).switch()
    assert generations_of(second).live() == 2


def test_a_view_that_was_moved_to_another_generation_is_noticed(
    warehouse: Any, second: WarehouseParts, sink: WarehouseParts, name: str
) -> None:
    warehouse.execute(f"drop view {name}.orders")
    warehouse.execute(f"create view {name}.orders as select * from {name}_g2.orders")
    with pytest.raises(LockstepError, match="reads generation 2, generation 1 was made live"):
        generations_of(sink).live()
    generations_of(sink).switch()
    assert generations_of(sink).live() == 1


def _keys(warehouse: Any, name: str) -> int:
    query = "select count(*) from pg_constraint where connamespace = %s::regnamespace and contype = 'p'"
    return int(warehouse.execute(query, (f"{name}_g2",)).fetchone()[0])


def test_in_bulk_there_is_no_key_and_no_switch(
    warehouse: Any, sink: WarehouseParts, settings: WarehouseSettings, name: str
) -> None:
    second = WarehouseParts(WarehouseTables(name, settings, 2))
    second.prepare([table()], go_live=False)
    assert _keys(warehouse, name) == 1
    generations_of(second).begin_bulk()
    second.prepare([table(), replace(table(), name=TableName("public", "items"))])
    assert _keys(warehouse, name) == 0
    second.apply(batch(upsert({"id": 1, "note": "a"}, 1), next_offsets={("t", 0): 20}))
    second.apply(batch(upsert({"id": 1, "note": "b"}, 2), next_offsets={("t", 0): 21}))
    assert warehouse.execute(f"select count(*) from {name}_g2.orders").fetchone() == (2,)
    with pytest.raises(LockstepError, match="still being loaded in bulk"):
        generations_of(second).switch()
    assert generations_of(sink).live() == 1
    generations_of(second).end_bulk()
    assert _keys(warehouse, name) == 2
    assert warehouse.execute(f"select id, note from {name}_g2.orders").fetchall() == [(1, "b")]
    query = "select next_offset from lockstep.applied_offset where view_schema = %s and generation = 2"
    assert warehouse.execute(query, (name,)).fetchall() == [(21,)]
    generations_of(second).switch()
    assert generations_of(sink).live() == 2
    second.close()


def test_the_first_generation_goes_live_after_its_bulk_only(settings: WarehouseSettings, name: str) -> None:
    sink = WarehouseParts(WarehouseTables(name, settings, 1))
    sink.prepare([table()], go_live=False)
    generations_of(sink).begin_bulk()
    sink.prepare([table()])
    assert generations_of(sink).live() is None
    generations_of(sink).end_bulk()
    sink.prepare([table()])
    assert generations_of(sink).live() == 1
    sink.close()


@pytest.mark.soak
def test_a_key_that_no_index_takes_is_rejected_in_bulk_as_ever(settings: WarehouseSettings, name: str) -> None:
    keyed = table(column("k"), column("note"), key=("k",))
    refused = []
    for generation in (1, 2):
        sink = WarehouseParts(WarehouseTables(name, settings, generation))
        sink.prepare([keyed], go_live=False)
        if generation == 2:
            generations_of(sink).begin_bulk()
        incompressible = "".join(str(uuid.UUID(int=number * 2**90 + number**3)) for number in range(1, 500))
        keys = ["short", "x" * 400, "x" * 100_000, incompressible, incompressible[:2000]]
        outcome = sink.apply(batch(*(upsert({"k": key, "note": "n"}, 1, of=keyed) for key in keys)))
        generations_of(sink).end_bulk()
        assert outcome.applied == len({stored.key["k"] for stored in sink.scan(keyed)})
        refused.append([len(str(rejection.event.key["k"])) for rejection in outcome.rejections])
        assert all(rejection.reason.startswith("54000") for rejection in outcome.rejections)
        sink.close()
    assert refused[0] == refused[1] == [len(incompressible)]


@pytest.mark.soak
def test_rows_are_not_tried_one_by_one_once_too_many_are_refused(
    settings: WarehouseSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a column of the wrong type: there would be two attempts for each row before anybody heard of it."""
    monkeypatch.setattr("sinks.warehouse.postgres.writing.REFUSED_FEW", 10)
    numbered = table(column("id", "int8"), column("n", "int4"))
    sink = WarehouseParts(WarehouseTables(name, settings.model_copy(update={"max_open_rejections": 3}), 1))
    sink.prepare([numbered])
    fence = sink.claim()

    def rows(count: int) -> Batch:
        refused = [upsert({"id": number, "n": 2**40}, 1, of=numbered) for number in range(count)]
        return batch(*refused, upsert({"id": 1_000, "n": 1}, 1, of=numbered), fence=fence)

    with pytest.raises(LockstepError, match="refuses more than 10 rows of one batch") as raised:
        sink.apply(rows(500))
    assert "22003" in raised.value.message
    assert list(sink.scan(numbered)) == []
    outcome = sink.apply(rows(10))
    assert (outcome.applied, len(outcome.rejections)) == (1, 10)
    sink.close()


def test_offsets_are_stored_with_the_rows_and_never_go_back(warehouse: Any, sink: WarehouseParts, name: str) -> None:
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 2), next_offsets={("t", 0): 20, ("t", 1): 3}))
    sink.apply(batch(upsert({"id": 1, "note": "old"}, 1), next_offsets={("t", 0): 10}))
    query = "select partition, next_offset from lockstep.applied_offset where view_schema = %s order by 1"
    assert warehouse.execute(query, (name,)).fetchall() == [(0, 20), (1, 3)]


def test_a_batch_that_fails_writes_nothing(warehouse: Any, sink: WarehouseParts, name: str) -> None:
    broken = replace(table(), name=TableName("public", "zzz"))
    sink.prepare([broken])
    sink.apply(batch(upsert({"id": 0, "note": "z"}, 1, of=broken)))
    warehouse.execute(f"drop table {name}_g1.zzz cascade")
    with pytest.raises(LockstepError, match="42P01"):
        sink.apply(batch(upsert({"id": 1, "note": "a"}, 1), upsert({"id": 1, "note": "z"}, 1, of=broken)))
    assert warehouse.execute(f"select count(*) from {name}.orders").fetchone() == (0,)


_TRIGGERS = {
    "keeps out": "begin if new.id = 2 then return null; end if; return new; end",
    "keeps as it was": "begin if new.id = 2 and tg_op = 'UPDATE' then return old; end if; return new; end",
    "changes": "begin if new.id = 2 then new.note = 'another'; end if; return new; end",
    "deletes": "begin if new.id = 2 then new._deleted = true; end if; return new; end",
    "changes nothing": "begin if new.id = 2 then raise notice 'seen'; end if; return new; end",
}


@pytest.mark.parametrize("what", _TRIGGERS)
def test_a_row_that_a_trigger_keeps_out_or_changes_is_rejected_and_its_neighbours_are_applied(
    warehouse: Any, sink: WarehouseParts, name: str, what: str
) -> None:
    sink.apply(batch(upsert({"id": 2, "note": "before"}, 1)))
    warehouse.execute(
        f"create function {name}_g1.meddles() returns trigger language plpgsql as $$ {_TRIGGERS[what]} $$;"
        f"create trigger meddles before insert or update on {name}_g1.orders for each row"
        f" execute function {name}_g1.meddles()"
    )
    events = batch(*(upsert({"id": number, "note": "after"}, 2) for number in range(5)))
    bad = [] if what == "changes nothing" else [2]
    for applied in (5 - len(bad), 0):  # it may come again
        outcome = sink.apply(events)
        assert [rejection.event.key["id"] for rejection in outcome.rejections] == bad
        assert all("a trigger of yours" in rejection.reason for rejection in outcome.rejections)
        assert outcome.applied == applied
    notes = {row.key["id"]: row.row["note"] for row in sink.scan(table())}
    assert notes == {number: "before" if number in bad else "after" for number in range(5)}
    warehouse.execute(f"drop function {name}_g1.meddles cascade")
    again = sink.apply(events)
    assert (again.applied, again.rejections) == (len(bad), [])


def test_a_version_that_a_trigger_keeps_out_of_a_history_is_missing_there_and_said_so(
    warehouse: Any, settings: WarehouseSettings, name: str
) -> None:
    kept = WarehouseTables(name, settings.model_copy(update={"history": True}), 1)
    with closing(WarehouseParts(kept)) as sink:
        sink.prepare([table()])
        warehouse.execute(
            f"create function {name}_g1.meddles() returns trigger language plpgsql as $$ begin return null; end $$;"
            f"create trigger meddles before insert on {name}_g1.orders_history for each row"
            f" execute function {name}_g1.meddles()"
        )
        events = batch(upsert({"id": 1, "note": "a"}, 1))
        sink.apply(replace(events, versions=[TableVersions(Events.of(events.events).tables[0], "c", [0])]))
        assert len(list(sink.scan(table()))) == 1
    refused = warehouse.execute(
        "select count(*) from lockstep.refused_version where view_schema = %s", (name,)
    ).fetchone()
    assert refused == (1,)


def test_a_new_writer_waits_for_the_old_ones_batch_but_not_for_ever(
    warehouse: Any, sink: WarehouseParts, endpoints: Any, name: str
) -> None:
    assert sink.claim() == 1
    with psycopg.connect(endpoints.warehouse_dsn) as old:
        old.execute("select 1 from lockstep.writer where view_schema = %s for share", (name,))
        with pytest.raises(Unavailable):
            sink.claim()
    assert sink.claim() == 2


def test_a_lock_on_a_row_is_waited_for_by_the_caller(sink: WarehouseParts, endpoints: Any, name: str) -> None:
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    with psycopg.connect(endpoints.warehouse_dsn) as other:
        other.execute(f"select 1 from {name}_g1.orders where id = 1 for update")
        with pytest.raises(Unavailable):
            sink.apply(batch(upsert({"id": 1, "note": "b"}, 2)))
    assert sink.apply(batch(upsert({"id": 1, "note": "b"}, 2))).applied == 1


def test_tables_that_would_share_a_name_are_refused(settings: WarehouseSettings, name: str) -> None:
    sink = WarehouseParts(WarehouseTables(name, settings, 1))
    tables = [replace(table(), name=TableName(*parts)) for parts in (("public", "sales__orders"), ("sales", "orders"))]
    with pytest.raises(LockstepError, match="would both have the name 'sales__orders'"):
        sink.prepare(tables)
    sink.close()


def test_a_missing_right_stops_the_job(warehouse: Any, endpoints: Any, name: str) -> None:
    create_login(warehouse, name, endpoints.warehouse_dsn)
    settings = WarehouseSettings(url=SecretStr(endpoints.warehouse_url), login=Login(user=name))
    sink = WarehouseParts(WarehouseTables(name, settings, 1))
    try:
        with pytest.raises(LockstepError, match="42501"):
            sink.prepare([table()])
    finally:
        sink.close()
        warehouse.execute(f"drop role {name}")


def _scratch_of(name: str) -> str:
    return f"{name}_scratch"


@pytest.fixture
def limited(warehouse: Any, endpoints: Any, name: str) -> Iterator[WarehouseParts]:
    """The sink of a user with exactly the rights that a sink needs."""
    scratch = _scratch_of(name)
    create_login(warehouse, name, endpoints.warehouse_dsn)
    warehouse.execute(f"create database {scratch} owner {name}")
    url = url_of(endpoints.warehouse_url, scratch)
    sink = WarehouseParts(WarehouseTables(name, WarehouseSettings(url=SecretStr(url), login=Login(user=name)), 1))
    sink.prepare([table()])
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    try:
        yield sink
    finally:
        sink.close()
        warehouse.execute(f"drop database {scratch} with (force)")
        warehouse.execute(f"drop role {name}")


def _as_owner(endpoints: Any, name: str, *statements: str) -> list[Any]:
    """Run statements in the limited user's database; returns the rows of the last one."""
    with psycopg.connect(endpoints.warehouse_dsn, dbname=_scratch_of(name), autocommit=True) as owner:
        for statement in statements:
            cursor = owner.execute(statement)
        return cursor.fetchall() if cursor.description else []


@pytest.mark.parametrize(
    ("take", "give", "state", "hint"),
    [
        (
            "revoke insert on {name}_g1.orders from {name}",
            "grant insert on {name}_g1.orders to {name}",
            "42501",
            "grant",
        ),
        ("revoke usage on schema {name}_g1 from {name}", "grant usage on schema {name}_g1 to {name}", "42501", "grant"),
        (
            "alter role {name} set default_transaction_read_only = on",
            "alter role {name} reset default_transaction_read_only",
            "25006",
            "read-only",
        ),
        (
            "alter table {name}_g1.orders rename note to other",
            "alter table {name}_g1.orders rename other to note",
            "42703",
            "by hand",
        ),
        ("alter role {name} nologin", "alter role {name} login", "not permitted to log in", "LOGIN"),
    ],
    ids=["a table's right", "a schema's right", "read-only", "a column", "login"],
)
def test_what_was_taken_stops_the_job_and_nothing_is_lost(
    endpoints: Any, limited: WarehouseParts, name: str, take: str, give: str, state: str, hint: str
) -> None:
    limited.close()  # a role's defaults are read when it connects
    _as_owner(endpoints, name, take.format(name=name))
    for _ in range(2):
        with pytest.raises(LockstepError, match=state) as raised:
            limited.apply(batch(upsert({"id": 2, "note": "secret-word"}, 2), next_offsets={("t", 0): 7}))
        assert not isinstance(raised.value, Unavailable)
        assert hint in (raised.value.hint or "")
        assert "secret-word" not in str(raised.value)
    offsets = "select next_offset from lockstep.applied_offset"
    assert _as_owner(endpoints, name, offsets) == []
    _as_owner(endpoints, name, give.format(name=name))
    limited.close()
    assert limited.apply(batch(upsert({"id": 2, "note": "b"}, 2), next_offsets={("t", 0): 7})).applied == 1
    assert _as_owner(endpoints, name, offsets) == [(7,)]


def test_what_passes_by_itself_is_waited_for(endpoints: Any, limited: WarehouseParts, name: str) -> None:
    limited.close()
    _as_owner(endpoints, name, f"alter role {name} connection limit 0")
    rows = [upsert({"id": number, "note": "n" * 100}, 2) for number in range(5000)]
    with pytest.raises(Unavailable):
        limited.apply(batch(*rows))
    _as_owner(endpoints, name, f"alter role {name} connection limit -1")
    assert limited.apply(batch(*rows)).applied == 5000


def test_rows_are_applied_where_the_migrations_are_not(
    settings: WarehouseSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like the executors of a cluster, which have our code and no migrations."""
    with closing(WarehouseParts(WarehouseTables(name, settings, 1))) as prepared:
        prepared.prepare([table()])
        fence = prepared.claim()
    for module in [module for module in sys.modules if module.split(".")[0] == "migrations"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "migrations", None)
    with closing(WarehouseParts(WarehouseTables(name, settings, 1))) as applying:
        assert applying.apply(Batch([upsert({"id": 1, "note": "a"}, 2)], fence=fence)).applied == 1


@pytest.mark.soak
def test_settings_of_the_role_neither_end_a_merge_nor_let_it_be_lost(
    endpoints: Any, limited: WarehouseParts, name: str
) -> None:
    limited.close()
    _as_owner(
        endpoints,
        name,
        f"alter role {name} set statement_timeout = '1min'",
        f"alter role {name} set idle_session_timeout = '1s'",
        f"alter role {name} set default_transaction_isolation = 'serializable'",
        f"alter role {name} set synchronous_commit = off",
    )
    with limited.tables.connection.transaction() as connection:
        assert isinstance(connection, Connection)
        assert connection.exec_driver_sql("show statement_timeout").scalar() == "0"
        assert connection.exec_driver_sql("show synchronous_commit").scalar() == "on"
        assert connection.exec_driver_sql("show idle_session_timeout").scalar() == "0"
        assert connection.exec_driver_sql("show transaction_isolation").scalar() == "read committed"


def test_a_warehouse_that_fails_over_under_a_batch_is_begun_again(name: str) -> None:
    """Some of the batch's tasks may have written to the server before, and their writes may be gone."""
    with temporary_directory() as directory:
        stack = Stack(directory, light=True, durable=False)
        try:
            endpoints = stack.up(["warehouse"])
            url = endpoints.warehouse_url
            sink = WarehouseParts(WarehouseTables(name, WarehouseSettings(url=SecretStr(url)), 1))
            sink.prepare([table()])
            generations = generations_of(sink)
            generations.save_progress(progress(1))
            with psycopg.connect(endpoints.warehouse_dsn) as connection:
                files = Path(connection.execute("show data_directory").fetchall()[0][0])
            stack.stop("warehouse")
            stack.start("warehouse")
            sink.close()
            generations.save_progress(progress(2))
            stack.stop("warehouse")
            (files / "standby.signal").touch(mode=0o666)
            stack.start("warehouse")
            sink.close()
            with closing(psycopg.connect(endpoints.warehouse_dsn, autocommit=True)) as standby:
                standby.execute("select pg_promote()")
            for _ in range(2):
                with pytest.raises(DataLost, match="failed over"):
                    generations.save_progress(progress(3))
            assert generations.load_progress() == progress(2)
            generations.save_progress(progress(3))
            sink.close()
        finally:
            stack.remove()


def test_a_wrong_database_stops_the_job_and_shows_no_password(endpoints: Any, name: str) -> None:
    url = url_of(endpoints.warehouse_url, "nowhere")
    password = password_of(endpoints.warehouse_dsn) or "secret-word"
    login = Login(password=SecretStr(password))
    sink = WarehouseParts(WarehouseTables(name, WarehouseSettings(url=SecretStr(url), login=login), 1))
    with pytest.raises(LockstepError, match="does not exist") as raised:
        generations_of(sink).live()
    assert not isinstance(raised.value, Unavailable)
    assert password not in str(raised.value)


def test_two_jobs_that_prepare_at_once_agree(settings: WarehouseSettings, name: str) -> None:
    patient = settings.model_copy(update={"lock_timeout_s": 30.0})

    def prepare() -> None:
        with closing(WarehouseParts(WarehouseTables(name, patient, 1))) as sink:
            sink.prepare([table()])

    at_once(*[prepare] * 4)


def test_a_failed_migration_changes_nothing_and_the_next_one_succeeds(endpoints: Any, warehouse: Any) -> None:

    scratch = f"m{uuid.uuid4().hex[:12]}"
    warehouse.execute(f"create database {scratch}")
    engine = create_engine(url_of(endpoints.warehouse_url, scratch))
    try:
        with engine.begin() as connection:
            upgrade(connection)
            connection.rollback()
        with engine.begin() as connection:
            assert connection.scalar(text("select to_regnamespace('lockstep') is null"))
        for _ in range(2):
            with engine.begin() as connection:
                upgrade(connection)
                assert connection.scalar(text("select version_num from lockstep.schema_version")) == f"{HEAD:04}"
    finally:
        engine.dispose()
        warehouse.execute(f"drop database {scratch}")


def _numbered(*columns: Column) -> Table:
    return replace(table(), columns=columns, oid=7)


NUMBERED = tuple(replace(column, number=number) for number, column in enumerate((*table().columns, column("extra")), 1))


@pytest.fixture
def following(settings: WarehouseSettings, name: str) -> Iterator[WarehouseParts]:
    sink = WarehouseParts(WarehouseTables(name, settings.model_copy(update={"schema_changes": "follow"}), 1))
    sink.prepare([_numbered(*NUMBERED)])
    yield sink
    sink.close()


@pytest.mark.parametrize("in_bulk", [False, True], ids=["", "in bulk"])
def test_columns_are_renamed_and_dropped_where_that_is_wanted(
    warehouse: Any, settings: WarehouseSettings, name: str, in_bulk: bool
) -> None:
    sink = WarehouseParts(WarehouseTables(name, settings.model_copy(update={"schema_changes": "follow"}), 1))
    identity, note, _ = NUMBERED
    sink.prepare([_numbered(*NUMBERED)], go_live=not in_bulk)
    if in_bulk:
        generations_of(sink).begin_bulk()
    sink.apply(batch(upsert({"id": 1, "note": "a", "extra": "gone"}, 1)))
    file = f"select pg_relation_filenode('{name}_g1.orders')"
    before = warehouse.execute(file).fetchone()
    later = _numbered(identity, replace(note, name="remark"), replace(column("grade", "int4"), number=4))
    sink.prepare([later], go_live=not in_bulk, added={later.name: {"grade": 5}})
    assert warehouse.execute(file).fetchone() == before, "no row is written again"
    sink.apply(batch(upsert({"id": 2, "remark": "b", "grade": None}, 2), delete({"id": 3}, 2)))
    generations_of(sink).end_bulk()
    sink.prepare([later])
    assert {tuple(stored.row.values()) for stored in sink.scan(later)} == {(1, "a", 5), (2, "b", None)}
    shown = warehouse.execute(f"select * from {name}.orders order by id")
    assert [column.name for column in shown.description] == ["id", "remark", "grade"]
    assert shown.fetchall() == [(1, "a", 5), (2, "b", None)]
    default = "select column_default from information_schema.columns where table_schema = %s and column_name = 'grade'"
    assert warehouse.execute(default, (f"{name}_g1",)).fetchone() == (None,)
    sink.close()


def test_a_column_that_something_hangs_on_is_not_dropped_and_nothing_else_is_changed(
    warehouse: Any, following: WarehouseParts, name: str
) -> None:
    identity, note, _ = NUMBERED
    warehouse.execute(f"create view {name}.of_others as select id, extra from {name}.orders")
    with pytest.raises(LockstepError, match="refuses"):
        following.prepare([_numbered(identity, replace(note, name="remark"))])
    following.apply(batch(upsert({"id": 1, "note": "a", "extra": "x"}, 1)))
    assert warehouse.execute(f"select id, note, extra from {name}.orders").fetchall() == [(1, "a", "x")]


def test_views_are_looked_at_again_once_one_was_changed(
    warehouse: Any, sink: WarehouseParts, settings: WarehouseSettings, name: str, asked: list[str]
) -> None:
    generations = generations_of(sink)

    def looks() -> int:
        asked.clear()
        assert generations.live() == 1
        return len([statement for statement in asked if "pg_depend" in statement])

    assert [looks(), looks()] == [1, 0]
    sink.prepare([table(), OTHER])
    assert [looks(), looks()] == [1, 0]
    warehouse.execute(f"drop view {name}.other")
    assert [looks(), looks()] == [1, 0]
    second = WarehouseParts(WarehouseTables(name, settings, 2))
    second.prepare([table()])
    second.close()
    assert looks() == 1
    warehouse.execute(f"create or replace view {name}.orders as select * from {name}_g2.orders")
    with pytest.raises(LockstepError, match="reads generation 2"):
        generations.live()
    with pytest.raises(LockstepError, match="reads generation 2"):
        generations.live()
