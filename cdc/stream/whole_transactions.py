"""A stream of whole transactions, made of one in which large ones come in parts while they run.

PostgreSQL sends the parts as it decodes them (protocol version 2), and between them what others commit. A part waits in
a spool. After the commit all of them are given out as protocol version 1 has them: begin, changes, commit, at the same
place among the other transactions. So nothing that follows the stream knows of parts.
"""

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from cdc.capture.loop import Stream, message_of
from cdc.model.errors import LockstepError, MalformedMessage, NotInParts
from cdc.protocol.pgoutput import LogicalMessage, StreamAbort, StreamCommit, StreamStart, Truncate, decode
from cdc.protocol.walsender import WAL_DATA_OFFSET, XLOG_DATA, Frame, wal_start
from cdc.stream.transaction_spool import SpoolSpace, TransactionSpool

_FRAMES_MAX: Final = 1024
"""So many frames go to spools before whoever reads the stream may see to something else."""

_INSIDE: Final = WAL_DATA_OFFSET + 1
"""Where a message in a part has the id of its subtransaction, which other messages don't have."""

_AFTER: Final = _INSIDE + 4
_SUBXID_AND_RELATION: Final = struct.Struct("!II")
"""What a row in a part begins with after its kind."""

_BEGIN: Final = struct.Struct("!cQqI")
_COMMIT: Final = struct.Struct("!cBQQq")
_PARTS: Final = b"ScA"
_STOP, _ORIGIN, _RELATION, _TYPE, _TRUNCATE, _MESSAGE = b"EORYTM"
_ROWS: Final = b"IUD"


@dataclass(frozen=True, slots=True)
class _Description:
    """A Relation message, and the how many-th of the stream it was. ``subxid`` has sent it, 0 outside of parts."""

    number: int
    subxid: int
    frame: bytes

    @property
    def message(self) -> bytes:
        return self.frame[WAL_DATA_OFFSET:]


@dataclass(slots=True)
class _Running:
    """A transaction of which parts were sent. ``relations`` are those that its next rows may be of."""

    xid: int
    spool: TransactionSpool
    rolled_back: set[int] = field(default_factory=set)
    relations: dict[int, _Description] = field(default_factory=dict)
    has_message: bool = False


class WholeTransactions:
    """A stream without parts. What was sent of transactions that haven't committed is lost when it is closed.

    ``receive`` raises MalformedMessage, and LockstepError for parts that make no sense. It raises NotInParts where a
    transaction has to be read whole: its spool can't be written, or it has a logical message with one of the prefixes
    ``messages`` and then rolls back a savepoint. PostgreSQL doesn't tell in which subtransaction a message was.
    """

    def __init__(self, stream: Stream, space: SpoolSpace, *, messages: Collection[str] = ()) -> None:
        self._stream = stream
        self._receive = stream.receive
        self._space = space
        self._messages = frozenset(messages)
        self._running: dict[int, _Running] = {}
        self._part: _Running | None = None
        """Whose part is being sent."""
        self._committed: Iterator[Frame] | None = None
        """The frames of a transaction that is being given out."""
        self._outside: dict[int, _Description] = {}
        """How the server last described a relation to those that aren't sent in parts."""
        self._descriptions = 0
        self._has_more = False
        self.send = stream.send

    def receive(self) -> Frame | None:
        """The next frame that is here already, or None; also after many frames that went to spools. Never waits."""
        if self._committed is not None:
            frame = next(self._committed, None)
            if frame is not None:
                return frame
            self._committed = None
        frame = self._receive()
        # Rows of transactions that aren't sent in parts are most of what comes, and pay for nothing else.
        if self._part is None and (frame is None or (len(frame) > WAL_DATA_OFFSET and frame[WAL_DATA_OFFSET] in _ROWS)):
            self._has_more = False
            return frame
        return self._sorted(frame)

    def _sorted(self, frame: Frame | None) -> Frame | None:
        """Keep frames of parts, from this one on, until there is one to be given out."""
        self._has_more = False
        left = _FRAMES_MAX
        while frame is not None and frame[0] == XLOG_DATA and len(frame) > WAL_DATA_OFFSET:
            kind = frame[WAL_DATA_OFFSET]
            if self._part is not None:
                self._keep(self._part, frame, kind)
            elif kind in _PARTS:
                self._committed = self._control(frame)
                if self._committed is not None:
                    return next(self._committed)
            else:
                if kind == _RELATION:
                    message = bytes(frame)
                    self._outside[_relation_of(message, _INSIDE)] = self._described(0, message)
                return frame
            left -= 1
            if not left:
                self._has_more = True
                return None
            frame = self._receive()
        return frame

    def wait(self, seconds: float) -> None:
        """Return when something arrived, or after ``seconds``; at once when more may be here."""
        if not self._has_more:
            self._stream.wait(seconds)

    def close(self) -> None:
        """Forget what was sent of transactions that haven't committed."""
        self._committed = self._part = None
        for running in self._running.values():
            running.spool.close()
        self._running.clear()

    def _described(self, subxid: int, frame: bytes) -> _Description:
        self._descriptions += 1
        return _Description(self._descriptions, subxid, frame)

    def _control(self, arrived: Frame) -> Iterator[Frame] | None:
        """Begin a part, or end a transaction; the frames of one that committed."""
        frame = bytes(arrived)
        message = message_of(frame, wal_start(frame))
        if isinstance(message, StreamStart):
            running = self._running.get(message.xid)
            if (running is None) != message.is_first:
                raise LockstepError(f"the stream has parts of transaction {message.xid} that don't fit together")
            if running is None:
                running = self._running[message.xid] = _Running(message.xid, TransactionSpool(self._space))
            self._part = running
        elif isinstance(message, StreamAbort):
            self._roll_back(message)
        else:
            assert isinstance(message, StreamCommit)
            running = self._running.get(message.xid)
            if running is None:
                raise LockstepError(f"the stream commits transaction {message.xid}, of which it sent nothing")
            return self._whole(running, message, frame[:WAL_DATA_OFFSET])
        return None

    def _roll_back(self, abort: StreamAbort) -> None:
        running = self._running.get(abort.xid)
        if running is None:
            return  # nothing of it was sent
        if abort.subxid == abort.xid:
            self._running.pop(abort.xid).spool.close()
            return
        if running.has_message:
            raise NotInParts(
                f"transaction {abort.xid} has a logical message and rolled back a savepoint, and its parts don't tell"
                " whether the message is rolled back too, so it has to be read whole"
            )
        running.rolled_back.add(abort.subxid)
        # The server describes relations anew after it. ``_keep`` relies on that, and checks it.
        described = running.relations.items()
        running.relations = {relation: it for relation, it in described if it.subxid != abort.subxid}

    def _keep(self, running: _Running, frame: Frame, kind: int) -> None:
        if kind == _STOP:
            message_of(bytes(frame), wal_start(frame))
            self._part = None
            return
        if kind == _ORIGIN:  # the only message that has no transaction's id
            running.spool.append(running.xid, frame, b"")
            return
        try:
            subxid, relation = _SUBXID_AND_RELATION.unpack_from(frame, _INSIDE)
        except struct.error:
            raise _malformed("a message in a part ends too early", frame) from None
        if kind in _ROWS:
            self._require_described(running, relation)
        elif kind == _RELATION:
            described = self._described(subxid, bytes(frame[:_INSIDE]) + bytes(frame[_AFTER:]))
            known = running.relations.get(relation)
            running.relations[relation] = described
            if known is not None and known.subxid == subxid and known.message == described.message:
                return  # each one has the catalogue asked, and a part may describe all that the one before did
        elif kind == _TRUNCATE:
            truncate = decode(bytes(frame[WAL_DATA_OFFSET:_INSIDE]) + bytes(frame[_AFTER:]))
            assert isinstance(truncate, Truncate)
            for truncated in truncate.relation_ids:
                self._require_described(running, truncated)
        elif kind == _MESSAGE:
            message = decode(bytes(frame[WAL_DATA_OFFSET:_INSIDE]) + bytes(frame[_AFTER:]))
            assert isinstance(message, LogicalMessage)
            running.has_message |= message.prefix in self._messages
        elif kind != _TYPE:
            raise _malformed(f"unknown message type {kind:#04x} in a part", frame)
        running.spool.append(subxid, frame[:_INSIDE], frame[_AFTER:])

    def _require_described(self, running: _Running, relation: int) -> None:
        if relation not in running.relations:
            raise LockstepError(
                f"the stream has a part of transaction {running.xid} with a relation that it didn't describe there"
            )

    def _whole(self, running: _Running, commit: StreamCommit, head: bytes) -> Iterator[Frame]:
        """A transaction from begin to commit. Afterwards relations are what the server takes them for."""
        begin = head + _BEGIN.pack(b"B", commit.commit_lsn, commit.commit_time_us, commit.xid)
        # Chained and not yielded: no code of ours runs between two rows.
        return chain((begin,), running.spool.frames(without=running.rolled_back), self._end(running, commit, head))

    def _end(self, running: _Running, commit: StreamCommit, head: bytes) -> Iterator[Frame]:
        yield head + _COMMIT.pack(b"C", 0, commit.commit_lsn, commit.end_lsn, commit.commit_time_us)
        self._running.pop(commit.xid).spool.close()
        for relation, described in running.relations.items():
            outside = self._outside.get(relation)
            if outside is None or outside.number < described.number:
                self._outside[relation] = described
            elif outside.message != described.message:
                yield outside.frame  # a newer shape that the server has sent before, and won't send again


def _relation_of(frame: bytes, position: int) -> int:
    if len(frame) < position + 4:
        raise _malformed("relation id expected", frame)
    return int.from_bytes(frame[position : position + 4], "big")


def _malformed(reason: str, frame: Frame) -> MalformedMessage:
    return MalformedMessage(reason, position=0, message=bytes(frame[WAL_DATA_OFFSET:]), lsn=wal_start(frame))
