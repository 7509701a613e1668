"""Copies for which the stream has to stop, so that they need a slot of their own for a moment."""

import pytest

from cdc.model.table import TableName
from cdc.postgres.repair_messages import request_repair
from tests.captured import StartCapture
from tests.databases import until
from tests.own_server import OwnServer

pytestmark = pytest.mark.live


def test_a_copy_waits_for_a_free_slot_and_the_stream_does_not(own: OwnServer, capture: StartCapture) -> None:
    database = own.database
    database.execute(
        "create table t (id int primary key deferrable)",
        "alter table t replica identity full",
        "insert into t select generate_series(1, 5)",
    )
    captured = capture("public.t", of=database)
    database.execute(
        "select pg_create_physical_replication_slot('held' || n) from generate_series("
        "(select count(*) + 1 from pg_replication_slots), current_setting('max_replication_slots')::int) n"
    )
    request_repair(database.connection, TableName("public", "t"), None, slot=captured.config.slot)
    captured.wait_for("warning: a copy waits")
    assert any("all replication slots are in use" in line for line in captured.said)
    database.execute("insert into t values (6)")
    until(lambda: b'{"id":6}' in captured.rows("public.t") or captured.error)
    assert captured.error is None, captured.said
    database.execute(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name like 'held%'"
    )
    captured.assert_equal()
