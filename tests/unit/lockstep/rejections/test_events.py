"""Dead letters become events again, in the shapes that the sink is prepared for."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from cdc.model.event import JsonValue, Position
from cdc.model.table import Table, TableName
from cdc.protocol.control_records import SchemaRecord, ShapeChange
from jobs.dead_letters.record import DeadLetter
from jobs.executor.append_only import event_key
from jobs.executor.computed_row import RowComputer
from jobs.generations.prepared import Prepared
from jobs.query.row_plan import row_plan
from lockstep.rejections.events import RetryEvents, evaluated, prepared_histories, retry_events, stored
from lockstep.rejections.output import Tables
from sinks.table_settings import Computed, Expressions
from tests.builders import column, table
from tests.events import key_bytes, value_bytes

TOPIC = "shop.public.orders"
ORDERS = table()
TABLES = {TOPIC: ORDERS.name}
WIDER = table(*ORDERS.columns, column("more"))
REKEYED = table(*WIDER.columns, key=("note",))
RECORDS = [SchemaRecord(ORDERS, 0), SchemaRecord(WIDER, 8, ShapeChange(defaults={"more": "5"}))]
LSN = 64
TAG = f"0001{LSN:016x}00000001"


def dead_letter() -> DeadLetter:
    key = key_bytes(ORDERS, {"id": 1, "note": "n"})
    return DeadLetter("search", 1, Position(TOPIC, 0, 3), key, TAG, "no", 5, b"", 9)


def put(of: Table = ORDERS) -> tuple[DeadLetter, bytes | None]:
    row: Mapping[str, JsonValue] = {"id": 1, "note": "n", "more": "m"}
    return dead_letter(), value_bytes(of, "u", row, lsn=LSN, seq=1)


def made(
    kept: tuple[DeadLetter, bytes | None],
    prepared: Prepared,
    records: list[SchemaRecord] = RECORDS,
    tables: Tables = TABLES,
) -> RetryEvents:
    return retry_events([kept], tables, prepared_histories(records, prepared))


def test_an_event_of_a_shape_that_the_sink_isnt_prepared_for_stays() -> None:
    for records in (RECORDS[:1], RECORDS):
        result = made(put(WIDER), {ORDERS.name: ORDERS.schema_id}, records)
        assert (result.events, result.void) == ([], 0)
        assert ["shape" in refused.reason for refused in result.refused] == [True]


def test_an_event_that_a_copy_has_replaced_is_void() -> None:
    # With another key, all rows came again.
    records = [*RECORDS, SchemaRecord(REKEYED, 16, ShapeChange(rewritten="another key"))]
    result = made(put(), {ORDERS.name: REKEYED.schema_id}, records)
    assert (result.events, result.refused, result.void) == ([], [], 1)


def test_an_event_of_a_table_that_isnt_prepared_stays() -> None:
    for prepared, tables in (
        ({}, TABLES),
        ({ORDERS.name: "of another log"}, TABLES),
        ({ORDERS.name: ORDERS.schema_id}, {}),  # It isn't captured any more.
    ):
        result = made(put(), prepared, tables=tables)
        assert (result.events, result.void, len(result.refused)) == ([], 0, 1)


def test_what_is_no_event_stays_and_the_others_are_made() -> None:
    bad = (replace(dead_letter(), record_key=b"bad"), b'{"op":"u"}')
    result = retry_events([bad, put()], TABLES, prepared_histories(RECORDS, {ORDERS.name: ORDERS.schema_id}))
    assert (len(result.events), [refused.record_key for refused in result.refused]) == (1, [b"bad"])


LOG = table(column("note"), name=TableName("public", "log"), key=())


def logged(op: str, row: Mapping[str, JsonValue]) -> tuple[DeadLetter, bytes | None]:
    key = event_key(TAG, 3)
    letter = DeadLetter("dwh", 1, Position("shop.public.log", 0, 3), key, TAG, "no", 5, b"", 9)
    return letter, value_bytes(LOG, op, row, lsn=LSN, seq=1)


@pytest.mark.parametrize(("op", "operation"), [("c", "insert"), ("u", "update"), ("d", "delete")])
def test_an_event_of_an_append_only_table_is_the_row_that_the_job_would_have_made(op: str, operation: str) -> None:
    found = prepared_histories([SchemaRecord(LOG, 0)], {LOG.name: LOG.schema_id})
    events = retry_events([logged(op, {"note": "n"})], {"shop.public.log": LOG.name}, found)
    [(_, event)] = stored(events, {LOG.name}).events
    assert (event.key, event.row) == ({"_event": TAG}, {"_event": TAG, "_operation": operation, "note": "n"})


def test_an_event_of_an_append_only_table_that_does_not_meet_the_condition_is_void() -> None:
    found = prepared_histories([SchemaRecord(LOG, 0)], {LOG.name: LOG.schema_id})
    events = retry_events([logged("c", {"note": "n"})], {"shop.public.log": LOG.name}, found)
    [(letter, event)] = events.events
    left_out = replace(events, events=[(letter, replace(event, row=None))])
    assert (stored(left_out, {LOG.name}).events, stored(left_out, {LOG.name}).void) == ([], 1)


def test_expressions_are_evaluated_again_and_what_still_fails_stays_open() -> None:
    plan = row_plan(ORDERS, Expressions({"half": Computed(sql="10 / (id - 1)", type="int4")}, "note = 'n'"))
    rows: list[Mapping[str, JsonValue]] = [{"id": 1, "note": "n"}, {"id": 3, "note": "n"}, {"id": 1, "note": "m"}]
    letters = [(dead_letter(), value_bytes(ORDERS, "u", row, lsn=LSN, seq=1)) for row in rows]
    found = prepared_histories(RECORDS, {ORDERS.name: ORDERS.schema_id})
    events = retry_events([*letters, (dead_letter(), None)], TABLES, found)
    result = evaluated(events, computers={ORDERS.name: RowComputer(plan)})
    assert [event.row for _, event in result.events] == [{"id": 3, "note": "n", "half": 5}, None, None]
    assert [each.reason for each in result.refused] == [
        "expression: computed column 'half' can't be evaluated for this row: division by zero"
    ]
