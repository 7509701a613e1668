"""Transactions in parts, beside each other and beside small ones, come whole, in the order of their commits."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.errors import MalformedMessage
from cdc.model.lsn import Lsn
from cdc.model.table import ReplicaIdentity
from cdc.protocol.pgoutput import (
    Begin,
    Commit,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    Truncate,
)
from cdc.stream.transaction_spool import SpoolSpace
from cdc.stream.whole_transactions import WholeTransactions
from tests.wal import COMMIT_TIME_US, data_frame, keepalive_frame, part_frame

_RELATION = Relation(7, "s", "t", ReplicaIdentity.DEFAULT, ())


class _Frames:
    """A stream of frames that are here already."""

    def __init__(self, frames: list[bytes]) -> None:
        self._frames = iter(frames)

    def receive(self) -> bytes | None:
        return next(self._frames, None)

    def wait(self, seconds: float) -> None: ...

    def send(self, frame: bytes) -> None: ...


@dataclass
class _Transaction:
    """What a server knows of a transaction: its changes, of which subtransaction each is, and those it has sent."""

    xid: int
    changes: list[tuple[int, Message, int]] = field(default_factory=list)
    sent: set[int] = field(default_factory=set)
    """The subtransactions of which something was sent."""
    unsent: int = 0
    knows_relation: bool = False
    described_in: int | None = None
    """The subtransaction that has described the relation last, unless it was rolled back."""


@dataclass
class _Server:
    """Sends frames as a walsender does, and keeps what a reader of whole transactions would get."""

    frames: list[bytes] = field(default_factory=list)
    whole: list[bytes] = field(default_factory=list)
    lsn: int = 1000
    next_xid: int = 100
    running: list[_Transaction] = field(default_factory=list)

    def change(self, data: st.DataObject, transaction: _Transaction, subxid: int) -> None:
        self.lsn += 8
        content = data.draw(st.binary(max_size=300))
        message: Message = data.draw(
            st.sampled_from(
                [
                    Insert(7, (content,)),
                    Truncate((7,), cascade=False, restart_identity=False),
                    LogicalMessage(True, Lsn(self.lsn), "p", content),
                ]
            )
        )
        transaction.changes.append((subxid, message, self.lsn))

    def send_part(self, transaction: _Transaction) -> None:
        is_first = not transaction.sent
        transaction.sent.add(transaction.xid)
        self.frames.append(data_frame(StreamStart(transaction.xid, is_first), self.lsn))
        changes, transaction.changes = transaction.changes, transaction.changes[: transaction.unsent]
        for subxid, message, lsn in changes[transaction.unsent :]:
            if not transaction.knows_relation and not isinstance(message, LogicalMessage):
                self.describe(transaction, subxid, lsn)
            self.send_one(transaction, subxid, message, lsn)
        transaction.unsent = len(transaction.changes)
        self.frames += [keepalive_frame(self.lsn), data_frame(StreamStop(), self.lsn)]

    def describe(self, transaction: _Transaction, subxid: int, lsn: int) -> None:
        """A subtransaction that describes the relation as it has done before tells a reader nothing."""
        self.send_one(transaction, subxid, _RELATION, lsn)
        if transaction.described_in == subxid:
            transaction.changes.pop()
        transaction.knows_relation, transaction.described_in = True, subxid

    def send_one(self, transaction: _Transaction, subxid: int, message: Message, lsn: int) -> None:
        transaction.sent.add(subxid)
        transaction.changes.append((subxid, message, lsn))
        self.frames.append(part_frame(message, subxid, lsn))

    def roll_back(self, transaction: _Transaction, subxid: int) -> None:
        unsent = [change for change in transaction.changes[transaction.unsent :] if change[0] != subxid]
        sent = [change for change in transaction.changes[: transaction.unsent] if change[0] != subxid]
        transaction.changes, transaction.unsent = sent + unsent, len(sent)
        if transaction.described_in == subxid:
            transaction.described_in = None
        if subxid in transaction.sent:
            self.frames.append(data_frame(StreamAbort(transaction.xid, subxid), self.lsn))
            transaction.knows_relation = False

    def end(self, transaction: _Transaction, *, commits: bool) -> None:
        self.running.remove(transaction)
        self.lsn += 16
        if not transaction.sent:
            if commits:
                self.send_whole(transaction.xid, [(m, lsn) for _, m, lsn in transaction.changes], in_frames=True)
        elif not commits:
            self.frames.append(data_frame(StreamAbort(transaction.xid, transaction.xid), self.lsn))
        else:
            self.send_part(transaction)
            end = StreamCommit(transaction.xid, Lsn(self.lsn - 8), Lsn(self.lsn), COMMIT_TIME_US)
            self.frames.append(data_frame(end, self.lsn))
            self.send_whole(transaction.xid, [(m, lsn) for _, m, lsn in transaction.changes], in_frames=False)

    def send_whole(self, xid: int, changes: list[tuple[Message, int]], *, in_frames: bool) -> None:
        commit_lsn, end_lsn = Lsn(self.lsn - 8), Lsn(self.lsn)
        frames = [
            data_frame(Begin(commit_lsn, COMMIT_TIME_US, xid), self.lsn),
            *([data_frame(_RELATION, self.lsn)] if in_frames else []),
            *(data_frame(message, lsn) for message, lsn in changes),
            data_frame(Commit(commit_lsn, end_lsn, COMMIT_TIME_US), self.lsn),
        ]
        self.whole += frames
        if in_frames:
            self.frames += frames


@st.composite
def _histories(draw: st.DrawFn) -> _Server:
    server, data = _Server(), draw(st.data())
    subtransactions: dict[int, list[int]] = {}
    for _ in range(draw(st.integers(1, 40))):
        step = draw(st.sampled_from(["change", "change", "part", "savepoint", "roll back", "begin", "commit", "abort"]))
        if step == "begin" or not server.running:
            server.next_xid += 1
            server.running.append(_Transaction(server.next_xid))
            subtransactions[server.next_xid] = [server.next_xid]
            continue
        transaction = draw(st.sampled_from(server.running))
        stack = subtransactions[transaction.xid]
        if step == "change":
            server.change(data, transaction, stack[-1])
        elif step == "part":
            server.send_part(transaction)
        elif step == "savepoint":
            server.next_xid += 1
            stack.append(server.next_xid)
        elif step == "roll back" and len(stack) > 1:
            server.roll_back(transaction, stack.pop())
        elif step in ("commit", "abort"):
            server.end(transaction, commits=step == "commit")
    return server


def _received(frames: list[bytes], directory: Path) -> Iterator[bytes]:
    source = _Frames(frames)
    stream = WholeTransactions(source, SpoolSpace(directory, bytes_max=1 << 30))
    while True:
        frame = stream.receive()
        if frame is None:
            stream.close()
            return
        if frame[0] == ord("w"):
            yield bytes(frame)


@given(_histories(), st.booleans())
def test_parts_become_whole_transactions(server: _Server, in_files: bool) -> None:
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        if in_files:
            patch.setattr("cdc.stream.transaction_spool._BUFFER_BYTES", 1)
        assert list(_received(server.frames, Path(name))) == server.whole
        assert not list(Path(name).iterdir())


@given(_histories(), st.data())
def test_a_message_in_a_part_that_is_cut_is_malformed_or_comes_as_it_is(server: _Server, data: st.DataObject) -> None:
    parts = [frame for frame in server.frames if frame[0] == ord("w")]
    if not parts:
        return
    cut_at = data.draw(st.integers(0, len(parts) - 1))
    cut = parts[cut_at][: data.draw(st.integers(1, len(parts[cut_at]) - 1))]
    with TemporaryDirectory() as name:
        try:
            received = list(_received([*parts[:cut_at], cut], Path(name)))
        except MalformedMessage:
            return
        # Rows aren't looked into before the commit; others are given to whoever decodes them.
        assert received[:-1] == server.whole[: max(0, len(received) - 1)]
