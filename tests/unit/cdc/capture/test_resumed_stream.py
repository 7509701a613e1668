"""A stream that goes on must begin with the transaction that was published last."""

from typing import Any

import pytest

from cdc.capture.resumed_stream import ResumedStream
from cdc.model.errors import PositionMismatch
from cdc.protocol.control_records import LastTransaction
from tests.history import relations
from tests.wal import COMMIT_TIME_US, HANDOFF, History, data_frame, insert, keepalive_frame

FIRST = HANDOFF + 0x1000


class _Frames:
    def __init__(self, frames: list[bytes | None]) -> None:
        self._frames = frames

    def receive(self) -> bytes | None:
        return self._frames.pop(0)

    def wait(self, seconds: float) -> None: ...

    def send(self, frame: bytes) -> None: ...


def _frames() -> list[Any]:
    return [
        None,
        keepalive_frame(HANDOFF + 8),
        *(data_frame(message, lsn) for lsn, message in History([insert(b"1", b"x")]).messages(*relations())),
    ]


def _xid() -> int:
    begin = History([insert(b"1", b"x")]).messages(*relations())[0][1]
    return begin.xid  # type: ignore[union-attr]


def test_the_transaction_that_was_published_last_comes_first_and_all_goes_on() -> None:
    frames = _frames()
    expected = LastTransaction(FIRST, _xid(), COMMIT_TIME_US, only_local=False)
    stream = ResumedStream(_Frames(list(frames)), expected, hint="")
    resumed = [(stream.receive(), stream.is_resumed) for _ in frames]
    assert [frame for frame, _ in resumed] == frames
    assert [was for _, was in resumed[:4]] == [False, False, True, True]


@pytest.mark.parametrize(
    ("lsn", "xid", "time_us"), [(-8, 0, 0), (8, 0, 0), (0, 1, 0), (0, 0, 1)], ids=["before", "after", "xid", "time"]
)
def test_another_transaction_there_is_another_servers_history(lsn: int, xid: int, time_us: int) -> None:
    expected = LastTransaction(FIRST + lsn, _xid() + xid, COMMIT_TIME_US + time_us, only_local=False)
    stream = ResumedStream(_Frames(_frames()), expected, hint="run this")
    assert [stream.receive(), stream.receive() is not None] == [None, True]
    with pytest.raises(PositionMismatch, match="put back to an earlier moment and has gone on since") as caught:
        stream.receive()
    assert caught.value.hint == "run this"


def test_nothing_is_compared_where_nothing_is_known() -> None:
    stream = ResumedStream(_Frames(_frames()), None, hint="")
    assert stream.is_resumed
