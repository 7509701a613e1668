"""Records that somebody else wrote to our topics."""

import orjson
import pytest

from cdc.kafka.newest_records import NewestRecord
from cdc.postgres.preflight.finding import Severity
from lockstep.doctor.kafka import foreign_record_findings

TAG = "0001" + "0" * 15 + "8" + "00000001"


def record(
    value: bytes | None, *, key: bytes | None = b"{}", headers: dict[str, bytes | None] | None = None
) -> NewestRecord:
    return NewestRecord("shop.public.t", 1, 42, key, value, headers or {})


EVENT = orjson.dumps({"op": "c", "tag": TAG, "before": None, "after": {"id": 1}, "source": {}, "ts_ms": 1})


@pytest.mark.parametrize(
    "ours", [record(EVENT), record(None, headers={"tag": TAG.encode()})], ids=["event", "tombstone"]
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
