"""What waits on disk comes back as it was, in its order."""

import tempfile
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest

from cdc.model.errors import LockstepError
from jobs.executor.waiting_records import WaitingRecords


def test_a_full_disk_is_told_with_the_place_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> IO[bytes]:
        return Path("/dev/full").open("wb", buffering=0)

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    waiting = WaitingRecords()
    with pytest.raises(LockstepError, match="No space left") as raised:
        waiting.add(pa.table({"key": [b"a" * 100_000]}))
    assert "TMPDIR" in (raised.value.hint or "")
