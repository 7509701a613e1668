"""Records that somebody else wrote to our topics."""

import orjson
import pytest

from cdc.kafka.control_topics import StoredRecord, record_at
from cdc.kafka.newest_records import NewestRecord
from cdc.model.finding import Severity
from cdc.protocol.control_records import ProgressRecord, SchemaRecord
from lockstep.doctor.kafka import foreign_control_record_findings, foreign_record_findings
from tests.builders import table
from tests.history import state

TAG = "0001" + "0" * 15 + "8" + "00000001"


def record(
    value: bytes | None, *, key: bytes | None = b"{}", headers: dict[str, bytes | None] | None = None
) -> NewestRecord:
    return NewestRecord("shop.public.t", 1, 42, key, value, headers or {})


EVENT = orjson.dumps({"op": "c", "tag": TAG, "before": None, "after": {"id": 1}, "source": {}, "ts_ms": 1})


@pytest.mark.parametrize(
    "ours",
    [record(EVENT), record(EVENT.replace(b'"c"', b'"x"')), record(None, headers={"tag": TAG.encode()})],
    ids=["event", "a row that is left out", "tombstone"],
)
def test_records_of_ours_are_known(ours: NewestRecord) -> None:
    assert foreign_record_findings([ours]) == []


@pytest.mark.parametrize(
    "foreign",
    [
        record(b"hello"),
        record(b"[1]"),
        record(b"7"),
        record(EVENT.replace(TAG.encode(), b"1234")),
        record(EVENT.replace(b'"tag"', b'"lsn"')),
        record(EVENT, key=None),
        record(None),
        record(None, headers={"tag": None}),
        record(None, headers={"tag": b"\xff"}),
    ],
    ids=["text", "array", "number", "odd tag", "no tag", "no key", "bare tombstone", "empty header", "odd header"],
)
def test_records_of_others_are_found(foreign: NewestRecord) -> None:
    (finding,) = foreign_record_findings([foreign, record(EVENT)])
    assert (finding.severity, finding.what) == (
        Severity.ERROR,
        "holds a record that isn't an event (partition 1, offset 42)",
    )


OURS = {
    "shop.__state": {b"s": state().to_bytes()},
    "shop.__schema": {SchemaRecord(table(), 1).key(): SchemaRecord(table(), 1).to_bytes()},
}
PROGRESS = ProgressRecord(1, 1000, {"shop.public.t": (4,)})


def control_findings(
    compacted: dict[str, dict[bytes, bytes]], progress: bytes | None = PROGRESS.to_bytes()
) -> list[str]:
    records = {
        topic: {key: StoredRecord(value, record_at(topic, 5)) for key, value in values.items()}
        for topic, values in compacted.items()
    }
    newest = NewestRecord("shop.__progress", 0, 7, None, progress, {})
    return [finding.what for finding in foreign_control_record_findings("shop", records, [newest, record(b"hello")])]


def test_control_records_of_another_version_are_reported_by_those_who_need_them() -> None:
    assert control_findings({"shop.__state": {b"s": b'{"format":1}'}}) == []


@pytest.mark.parametrize("topic", OURS)
def test_control_records_of_others_are_found(topic: str) -> None:
    (what,) = control_findings({topic: {**OURS[topic], b"mine": b"hello", b"me": b"7"}})
    assert f"offset 5 of topic {topic}" in what


def test_a_progress_record_of_others_is_found() -> None:
    (what,) = control_findings(OURS, progress=None)
    assert "offset 7 of topic shop.__progress" in what
