"""The records of the control topics read back as they were written."""

from dataclasses import replace

import orjson
import pytest

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from cdc.protocol.control_records import (
    FORMAT,
    CaptureState,
    LastTransaction,
    ProgressRecord,
    SchemaRecord,
    ShapeChange,
    SnapshotPhase,
    TopicIdentity,
)
from tests.builders import column, table
from tests.history import state


def test_a_state_reads_back_as_it_was_written() -> None:
    topics = {"shop.public.orders": TopicIdentity("Uo3yZ2JnQ8G1vB7fV0s4hA", 6)}
    written = replace(state(), phase=SnapshotPhase.COPYING, copied={TableName('S "1"', "é"): 3}, topics=topics)
    assert CaptureState.from_bytes(written.to_bytes()) == written


def test_another_batch_moves_the_position_and_nothing_else() -> None:
    before = state()
    last = LastTransaction(0x2000, 700, 5000, only_local=False)
    moved = {"commit_lsn": 0x2000, "seq": 7, "end_lsn": 0x2030, "commit_time_ms": 5, "last_transaction": last}
    after = before.published(**moved)
    assert after == replace(before, **moved)
    assert CaptureState.from_bytes(after.to_bytes()) == after
    assert (before.resume_lsn, after.resume_lsn) == (before.end_lsn, 0x2000)


RECORDS = {
    "__state": state(),
    "__progress": ProgressRecord(1, 1000, {"shop.public.orders": (4,)}),
    "__schema": SchemaRecord(table(), 1),
}


@pytest.mark.parametrize("topic", RECORDS)
@pytest.mark.parametrize("unknown", [{}, {"format": FORMAT - 1}, {"format": FORMAT + 1}, {"format": str(FORMAT)}])
def test_a_record_of_an_unknown_format_is_refused_with_the_way_out(topic: str, unknown: dict[str, object]) -> None:
    record = RECORDS[topic]
    fields = orjson.loads(record.to_bytes())
    assert fields.pop("format") == FORMAT
    with pytest.raises(LockstepError, match=f"{topic} was written by another version") as caught:
        type(record).from_bytes(orjson.dumps(fields | unknown))
    assert "pipeline of another name" in (caught.value.hint or "")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null"])
def test_a_control_record_that_is_no_json_object_is_refused(content: bytes) -> None:
    with pytest.raises(LockstepError, match="__state"):
        CaptureState.from_bytes(content)


def test_a_progress_record_reads_back_as_it_was_written() -> None:
    written = ProgressRecord(0x16_B374D848, 1000, {"shop.public.orders": (4, 0, 17)})
    assert ProgressRecord.from_bytes(written.to_bytes()) == written


def test_a_schema_record_reads_back_as_it_was_written() -> None:
    written = SchemaRecord(table(column("id", "int8"), column("tags", is_array=True)), 0x1000)
    assert SchemaRecord.from_bytes(written.to_bytes()) == written


def test_schema_records_of_two_shapes_have_two_keys() -> None:
    record, other = SchemaRecord(table(), 1), SchemaRecord(table(column("id", "int8")), 1)
    assert record.key() != other.key()


def test_schema_records_of_a_shape_that_a_table_has_again_have_two_keys() -> None:
    records = [SchemaRecord(table(), 1), SchemaRecord(table(), 2), SchemaRecord(table(), 2, from_seq=3)]
    assert len({record.key() for record in records}) == len(records)
    assert [SchemaRecord.from_bytes(record.to_bytes()).key() for record in records] == [r.key() for r in records]


def test_a_schema_record_tells_how_the_shape_came_about() -> None:
    change = ShapeChange({"new": "old"}, {"added": [1, None, "x"]}, "its key is another one")
    written = SchemaRecord(table(), 7, change)
    assert SchemaRecord.from_bytes(written.to_bytes()) == written


def test_a_schema_record_without_a_change_reads_as_one_that_has_none() -> None:
    written = orjson.loads(SchemaRecord(table(), 7).to_bytes())
    for name in ("renamed", "defaults", "rewritten", "from_seq"):
        del written[name]
    assert SchemaRecord.from_bytes(orjson.dumps(written)) == SchemaRecord(table(), 7)


def test_a_table_that_is_to_be_copied_again_leaves_the_ledger() -> None:
    assert state().to_be_copied({table().name}).copied == {}
    assert state().to_be_copied({TableName("other", "one")}) == state()


def test_a_shape_of_another_epoch_takes_nobodys_place() -> None:
    orders = table()
    keys = {SchemaRecord(orders, 8, from_seq=1, from_epoch=epoch).key() for epoch in (0, 1, 2)}
    assert len(keys) == 3
    name = orders.name
    assert SchemaRecord(orders, 8).key() == orjson.dumps([name.schema, name.name, orders.schema_id, 8, 0])
