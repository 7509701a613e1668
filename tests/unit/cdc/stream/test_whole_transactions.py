"""Parts of transactions: what is told of relations, of what makes no sense, and when somebody else gets a turn."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.model.errors import LockstepError, MalformedMessage, NotInParts
from cdc.model.lsn import Lsn
from cdc.model.table import ReplicaIdentity
from cdc.protocol.pgoutput import (
    Begin,
    Commit,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    Truncate,
    decode,
)
from cdc.protocol.walsender import WAL_DATA_OFFSET
from cdc.stream.transaction_spool import SpoolSpace
from cdc.stream.whole_transactions import WholeTransactions
from tests.wal import COMMIT_TIME_US, data_frame, part_frame

_XID, _SUBXID, _OTHER = 700, 701, 800
_OLD = Relation(7, "s", "t", ReplicaIdentity.DEFAULT, ())
_NEW = replace(_OLD, replica_identity=ReplicaIdentity.FULL)
_ROW = Insert(7, (b"1",))
_COMMIT = StreamCommit(_XID, Lsn(50), Lsn(60), COMMIT_TIME_US)
_BEGUN = Begin(Lsn(50), COMMIT_TIME_US, _XID)
_COMMITTED = Commit(Lsn(50), Lsn(60), COMMIT_TIME_US)
_BESIDE = (Begin(Lsn(40), COMMIT_TIME_US, _OTHER), _NEW, _ROW, Commit(Lsn(40), Lsn(45), COMMIT_TIME_US))


class _Frames:
    def __init__(self, frames: Sequence[bytes]) -> None:
        self._frames = iter(frames)
        self.waited: list[float] = []

    def receive(self) -> bytes | None:
        return next(self._frames, None)

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)

    def send(self, frame: bytes) -> None: ...


def _part(*messages: Message, is_first: bool = True, subxid: int = _XID) -> list[bytes]:
    return [
        data_frame(StreamStart(_XID, is_first)),
        *(part_frame(message, subxid, 8) for message in messages),
        data_frame(StreamStop()),
    ]


def _whole(messages: Sequence[Message]) -> list[bytes]:
    return [data_frame(message) for message in messages]


def _received(frames: Sequence[bytes], directory: Path, **options: Sequence[str]) -> Iterator[Message]:
    stream = WholeTransactions(_Frames(frames), SpoolSpace(directory, bytes_max=1 << 30), **options)
    while (frame := stream.receive()) is not None:
        yield decode(bytes(frame[WAL_DATA_OFFSET:]))


def test_a_shape_that_came_meanwhile_holds_again_after_an_older_one(tmp_path: Path) -> None:
    frames = [*_part(_OLD, _ROW), *_whole(_BESIDE), data_frame(_COMMIT)]
    assert list(_received(frames, tmp_path)) == [*_BESIDE, _BEGUN, _OLD, _ROW, _COMMITTED, _NEW]


def test_a_shape_that_came_last_in_parts_holds_from_their_commit_on(tmp_path: Path) -> None:
    frames = [*_whole(_BESIDE), *_part(_OLD, _ROW), data_frame(_COMMIT), *_part(_NEW, _ROW), data_frame(_COMMIT)]
    told = [_BEGUN, _OLD, _ROW, _COMMITTED, _BEGUN, _NEW, _ROW, _COMMITTED]
    assert list(_received(frames, tmp_path)) == [*_BESIDE, *told]


def test_the_same_shape_is_told_once_in_a_transaction(tmp_path: Path) -> None:
    parts = [*_part(_OLD, _ROW), *_part(_OLD, _ROW, is_first=False), *_part(_NEW, _ROW, is_first=False)]
    frames = [*parts, *_part(_OLD, _ROW, is_first=False), data_frame(_COMMIT)]
    expected = [_BEGUN, _OLD, _ROW, _ROW, _NEW, _ROW, _OLD, _ROW, _COMMITTED]
    assert list(_received(frames, tmp_path)) == expected


def test_a_shape_of_a_subtransaction_that_is_rolled_back_goes_with_it(tmp_path: Path) -> None:
    rolled_back = [*_part(_OLD, _ROW, subxid=_SUBXID), data_frame(StreamAbort(_XID, _SUBXID))]
    frames = [*rolled_back, *_part(_OLD, _ROW, is_first=False), data_frame(_COMMIT)]
    assert list(_received(frames, tmp_path)) == [_BEGUN, _OLD, _ROW, _COMMITTED]
    with pytest.raises(LockstepError, match="with a relation that it didn't describe there"):
        list(_received([*rolled_back, *_part(_ROW, is_first=False)], tmp_path))


@pytest.mark.parametrize("message", [_ROW, Truncate((7,), cascade=False, restart_identity=False)], ids=type)
def test_a_relation_that_wasnt_described_in_the_parts_stops_the_stream(message: Message, tmp_path: Path) -> None:
    with pytest.raises(LockstepError, match="transaction 700 with a relation that it didn't describe there"):
        list(_received([*_whole(_BESIDE), *_part(message)], tmp_path))


def test_an_origin_comes_where_it_was(tmp_path: Path) -> None:
    origin = Origin(Lsn(3), "elsewhere")
    expected = [_BEGUN, origin, _OLD, _ROW, _COMMITTED]
    assert list(_received([*_part(origin, _OLD, _ROW), data_frame(_COMMIT)], tmp_path)) == expected


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([data_frame(_COMMIT)], "commits transaction 700, of which it sent nothing"),
        (_part(is_first=False), "parts of transaction 700 that don't fit together"),
        ([*_part(), *_part()], "parts of transaction 700 that don't fit together"),
    ],
)
def test_parts_that_make_no_sense_stop_the_stream(frames: list[bytes], words: str, tmp_path: Path) -> None:
    with pytest.raises(LockstepError, match=words):
        list(_received(frames, tmp_path))


@pytest.mark.parametrize("message", _BESIDE[:1], ids=type)
def test_what_cant_be_in_a_part_is_malformed(message: Message, tmp_path: Path) -> None:
    with pytest.raises(MalformedMessage, match="unknown message type 0x42 in a part"):
        list(_received(_part(message), tmp_path))


def test_the_end_of_a_subtransaction_of_which_nothing_came_means_nothing(tmp_path: Path) -> None:
    frames = [data_frame(StreamAbort(_OTHER, _SUBXID)), *_whole(_BESIDE)]
    assert list(_received(frames, tmp_path)) == list(_BESIDE)


def test_a_message_that_may_be_rolled_back_has_the_transaction_read_whole(tmp_path: Path) -> None:
    message = LogicalMessage(True, Lsn(9), "ours", b"")
    frames = [*_part(message), data_frame(StreamAbort(_XID, _SUBXID)), data_frame(_COMMIT)]
    with pytest.raises(NotInParts, match="transaction 700 has a logical message and rolled back a savepoint"):
        list(_received(frames, tmp_path, messages=["ours"]))
    assert list(_received(frames, tmp_path, messages=["others"])) == [_BEGUN, message, _COMMITTED]
    later = [*_part(), data_frame(StreamAbort(_XID, _SUBXID)), *_part(message, is_first=False), data_frame(_COMMIT)]
    assert list(_received(later, tmp_path, messages=["ours"])) == [_BEGUN, message, _COMMITTED]


def test_whoever_reads_gets_a_turn_among_many_rows_of_parts(tmp_path: Path) -> None:
    source = _Frames([*_part(_OLD, *[_ROW] * 2000), data_frame(_COMMIT)])
    stream = WholeTransactions(source, SpoolSpace(tmp_path, bytes_max=1 << 30))
    assert stream.receive() is None
    stream.wait(0.1)
    assert source.waited == []  # there may be more
    frames = 0
    while stream.receive() is not None or not source.waited:
        frames += 1
        stream.wait(0.1)
    assert frames > 2000
    stream.close()
