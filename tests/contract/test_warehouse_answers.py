"""What a real PostgreSQL answers where the warehouse sink depends on it."""

import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from migrations.warehouse import upgrade
from sinks.access import Login
from sinks.warehouse_sink import WarehouseSettings, WarehouseSink
from tests.builders import batch, column, delete, table, upsert

pytestmark = pytest.mark.live


@pytest.fixture
def database(endpoints: Any) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def name() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def settings(endpoints: Any) -> WarehouseSettings:
    return WarehouseSettings(url=SecretStr(endpoints.warehouse_url), lock_timeout_s=0.3)


@pytest.fixture
def sink(settings: WarehouseSettings, name: str) -> Iterator[WarehouseSink]:
    sink = WarehouseSink(name, settings, 1)
    sink.prepare([table()])
    yield sink
    sink.close()


def test_the_view_shows_live_rows_of_the_live_generation(
    database: Any, sink: WarehouseSink, settings: WarehouseSettings, name: str
) -> None:
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1), upsert({"id": 2, "note": "b"}, 1), delete({"id": 3}, 1)))
    sink.apply(batch(delete({"id": 2}, 2)))
    assert database.execute(f"select * from {name}.orders").fetchall() == [(1, "a")]
    second = WarehouseSink(name, settings, 2)
    second.prepare([replace(table(), columns=(column("note"), column("id", "int8"), column("extra")))])
    second.switch()
    second.close()
    assert database.execute(f"select * from {name}.orders").fetchall() == []


def test_a_new_column_keeps_the_views_grants(database: Any, sink: WarehouseSink, name: str) -> None:
    database.execute(f"grant select on {name}.orders to public")
    sink.prepare([replace(table(), columns=(*table().columns, column("extra")))])
    query = "select has_table_privilege('pg_monitor', %s, 'select')"
    assert database.execute(query, (f"{name}.orders",)).fetchone() == (True,)


def test_offsets_are_stored_with_the_rows_and_never_go_back(database: Any, sink: WarehouseSink, name: str) -> None:
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 2), next_offsets={("t", 0): 20, ("t", 1): 3}))
    sink.apply(batch(upsert({"id": 1, "note": "old"}, 1), next_offsets={("t", 0): 10}))
    query = "select partition, next_offset from lockstep.applied_offset where view_schema = %s order by 1"
    assert database.execute(query, (name,)).fetchall() == [(0, 20), (1, 3)]


def test_a_batch_that_fails_leaves_nothing_behind(database: Any, sink: WarehouseSink, name: str) -> None:
    broken = replace(table(), name=TableName("public", "zzz"))
    sink.prepare([broken])
    sink.apply(batch(upsert({"id": 0, "note": "z"}, 1, of=broken)))
    database.execute(f"drop table {name}_g1.zzz cascade")
    with pytest.raises(LockstepError, match="42P01"):
        sink.apply(batch(upsert({"id": 1, "note": "a"}, 1), upsert({"id": 1, "note": "z"}, 1, of=broken)))
    assert database.execute(f"select count(*) from {name}.orders").fetchone() == (0,)


def test_a_new_writer_waits_for_the_old_ones_batch_but_not_for_ever(
    database: Any, sink: WarehouseSink, endpoints: Any, name: str
) -> None:
    assert sink.claim() == 1
    with psycopg.connect(endpoints.warehouse_dsn) as old:
        old.execute("select 1 from lockstep.writer where view_schema = %s for share", (name,))
        with pytest.raises(Unavailable):
            sink.claim()
    assert sink.claim() == 2


def test_a_lock_on_a_row_is_waited_for_by_the_caller(sink: WarehouseSink, endpoints: Any, name: str) -> None:
    sink.apply(batch(upsert({"id": 1, "note": "a"}, 1)))
    with psycopg.connect(endpoints.warehouse_dsn) as other:
        other.execute(f"select 1 from {name}_g1.orders where id = 1 for update")
        with pytest.raises(Unavailable):
            sink.apply(batch(upsert({"id": 1, "note": "b"}, 2)))
    assert sink.apply(batch(upsert({"id": 1, "note": "b"}, 2))).applied == 1


def test_tables_that_would_share_a_name_are_refused(settings: WarehouseSettings, name: str) -> None:
    sink = WarehouseSink(name, settings, 1)
    tables = [replace(table(), name=TableName(*parts)) for parts in (("public", "sales__orders"), ("sales", "orders"))]
    with pytest.raises(LockstepError, match="would both be called 'sales__orders'"):
        sink.prepare(tables)
    sink.close()


def test_a_missing_right_stops_the_job(database: Any, endpoints: Any, name: str) -> None:
    database.execute(f"create role {name} login")
    settings = WarehouseSettings(url=SecretStr(endpoints.warehouse_url), login=Login(user=name))
    sink = WarehouseSink(name, settings, 1)
    try:
        with pytest.raises(LockstepError, match="42501"):
            sink.prepare([table()])
    finally:
        sink.close()
        database.execute(f"drop role {name}")


def test_a_wrong_database_stops_the_job_and_shows_no_password(endpoints: Any, name: str) -> None:
    url = endpoints.warehouse_url.rpartition("/")[0] + "/nowhere"
    login = Login(password=SecretStr("secret-word"))
    sink = WarehouseSink(name, WarehouseSettings(url=SecretStr(url), login=login), 1)
    with pytest.raises(LockstepError, match="does not exist") as raised:
        sink.live_generation()
    assert not isinstance(raised.value, Unavailable)
    assert "secret-word" not in str(raised.value)


def test_two_jobs_that_prepare_at_once_agree(settings: WarehouseSettings, name: str) -> None:
    patient = settings.model_copy(update={"lock_timeout_s": 30.0})
    failures: list[BaseException] = []

    def prepare() -> None:
        sink = WarehouseSink(name, patient, 1)
        try:
            sink.prepare([table()])
        except BaseException as error:
            failures.append(error)
        finally:
            sink.close()

    threads = [threading.Thread(target=prepare) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_failed_migration_leaves_nothing_behind_and_the_next_one_succeeds(endpoints: Any, database: Any) -> None:
    from sqlalchemy import create_engine, text

    scratch = f"m{uuid.uuid4().hex[:12]}"
    database.execute(f"create database {scratch}")
    engine = create_engine(endpoints.warehouse_url.rpartition("/")[0] + f"/{scratch}")
    try:
        with engine.begin() as connection:
            upgrade(connection)
            connection.rollback()
        with engine.begin() as connection:
            assert connection.scalar(text("select to_regnamespace('lockstep') is null"))
        for _ in range(2):
            with engine.begin() as connection:
                upgrade(connection)
                assert connection.scalar(text("select version_num from lockstep.schema_version")) == "0001"
    finally:
        engine.dispose()
        database.execute(f"drop database {scratch}")
