"""What waits on disk comes back as it was, in its order."""

import tempfile
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest

from cdc.model.errors import LockstepError
from jobs.executor import waiting_records
from jobs.executor.waiting_records import WaitingRecords


def test_records_come_back_in_their_order_and_only_until_they_are_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_records, "ROWS", 2)
    waiting = WaitingRecords()
    assert list(waiting.tables()) == []
    waiting.add(pa.table({"key": [b"a", b"b", b"c"]}))
    waiting.add(pa.table({"key": [b"d"]}))
    assert waiting.rows == 4
    tables = list(waiting.tables())
    assert [table.column("key").to_pylist() for table in tables] == [[b"a", b"b"], [b"c"], [b"d"]]
    waiting.clear()
    assert (waiting.rows, list(waiting.tables())) == (0, [])
    waiting.add(pa.table({"key": [b"e"]}))
    assert [table.column("key").to_pylist() for table in waiting.tables()] == [[b"e"]]
    waiting.clear()


def test_a_full_disk_is_told_with_the_place_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> IO[bytes]:
        return Path("/dev/full").open("wb", buffering=0)

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    waiting = WaitingRecords()
    with pytest.raises(LockstepError, match="No space left") as raised:
        waiting.add(pa.table({"key": [b"a" * 100_000]}))
    assert "TMPDIR" in (raised.value.hint or "")
