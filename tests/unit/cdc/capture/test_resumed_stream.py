"""A stream that goes on must begin with the transaction that was published last."""

from typing import Any, Final

import pytest

from cdc.capture.resumed_stream import ResumedStream
from cdc.model.errors import PositionMismatch
from cdc.model.lsn import Lsn
from cdc.protocol.control_records import StreamedTransaction
from cdc.protocol.pgoutput import Begin, LogicalMessage
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
    expected = StreamedTransaction(FIRST, _xid(), COMMIT_TIME_US, only_local=False)
    stream = ResumedStream(_Frames(list(frames)), expected, begun=None, hint="")
    resumed = [(stream.receive(), stream.is_resumed) for _ in frames]
    assert [frame for frame, _ in resumed] == frames
    assert [was for _, was in resumed[:4]] == [False, False, True, True]


@pytest.mark.parametrize(
    ("lsn", "xid", "time_us"), [(-8, 0, 0), (8, 0, 0), (0, 1, 0), (0, 0, 1)], ids=["before", "after", "xid", "time"]
)
def test_another_transaction_there_is_another_servers_history(lsn: int, xid: int, time_us: int) -> None:
    expected = StreamedTransaction(FIRST + lsn, _xid() + xid, COMMIT_TIME_US + time_us, only_local=False)
    stream = ResumedStream(_Frames(_frames()), expected, begun=None, hint="run this")
    assert [stream.receive(), stream.receive() is not None] == [None, True]
    with pytest.raises(PositionMismatch, match="put back to an earlier moment and has gone on since") as caught:
        stream.receive()
    assert caught.value.hint == "run this"


_TWO: Final = History([insert(b"1", b"x")], [insert(b"2", b"x")]).messages(*relations())
_BEGINS: Final = [message for _, message in _TWO if isinstance(message, Begin)]
_SECOND: Final = len(_TWO) - 3


def _identity(begin: Begin, **changes: int) -> StreamedTransaction:
    identity = StreamedTransaction(begin.commit_lsn, begin.xid, begin.commit_time_us, only_local=False)
    return identity._replace(**changes)


@pytest.mark.parametrize("last", [_identity(_BEGINS[0]), None], ids=["after another", "the first of all"])
def test_the_transaction_of_which_the_beginning_was_published_comes_next(last: StreamedTransaction | None) -> None:
    sent = _TWO if last is not None else _TWO[_SECOND:]
    elsewhere = LogicalMessage(False, Lsn(_BEGINS[1].commit_lsn - 100), "anybody", b"")
    sent = [*sent[:-3], (0, elsewhere), *sent[-3:]]
    frames: list[bytes | None] = [data_frame(message, lsn) for lsn, message in sent]
    stream = ResumedStream(_Frames(list(frames)), last, begun=_identity(_BEGINS[1]), hint="")
    resumed = [(stream.receive(), stream.is_resumed) for _ in frames]
    assert [frame for frame, _ in resumed] == frames
    assert [was for _, was in resumed[-4:]] == [False, True, True, True]


@pytest.mark.parametrize("changes", [{"commit_lsn": FIRST + 0x2000}, {"commit_lsn": FIRST + 8}, {"xid": 1}])
def test_rows_of_a_transaction_that_never_committed_here_are_of_another_history(changes: dict[str, int]) -> None:
    """A server that was put back to a moment between the two has the last whole one still."""
    frames: list[bytes | None] = [data_frame(message, lsn) for lsn, message in _TWO]
    begun = _identity(_BEGINS[1], **changes)
    stream = ResumedStream(_Frames(frames), _identity(_BEGINS[0]), begun=begun, hint="run this")
    for _ in _TWO[:_SECOND]:
        stream.receive()
    with pytest.raises(PositionMismatch, match=f"transaction {begun.xid} was published in part") as caught:
        stream.receive()
    assert caught.value.hint == "run this"


def test_nothing_is_compared_where_nothing_is_known() -> None:
    stream = ResumedStream(_Frames(_frames()), None, begun=None, hint="")
    assert stream.is_resumed
