"""A stream that has to begin with the transaction that was published last."""

from collections.abc import Callable

from cdc.capture.loop import Stream
from cdc.model.errors import PositionMismatch
from cdc.model.lsn import format_lsn
from cdc.protocol.control_records import LastTransaction
from cdc.protocol.pgoutput import Begin, decode
from cdc.protocol.walsender import WAL_DATA_OFFSET, XLOG_DATA


class ResumedStream:
    """Compares the first transaction with ``expected``, and is the stream itself from then on.

    A server that was put back to an earlier moment, and has written beyond our position since, is known by it: what
    lies below that position isn't what was published. With None there is nothing to compare. ``hint`` says what to do.
    """

    receive: Callable[[], bytes | None]

    def __init__(self, stream: Stream, expected: LastTransaction | None, *, hint: str) -> None:
        self._stream = stream
        self._expected = expected
        self._hint = hint
        self.wait = stream.wait
        self.send = stream.send
        self.receive = stream.receive if expected is None else self._first

    @property
    def is_resumed(self) -> bool:
        """Whether the stream is known to be the one that was published from."""
        return self._expected is None

    def _first(self) -> bytes | None:
        frame = self._stream.receive()
        if frame is not None and frame[0] == XLOG_DATA:
            self._compare(frame)
            self._expected = None
            self.receive = self._stream.receive  # no row pays for this
        return frame

    def _compare(self, frame: bytes) -> None:
        """Raises PositionMismatch when the frame doesn't begin the expected transaction."""
        expected = self._expected
        assert expected is not None
        message = decode(frame, WAL_DATA_OFFSET)
        if isinstance(message, Begin):
            begun = (message.commit_lsn, message.xid, message.commit_time_us)
            if begun == (expected.commit_lsn, expected.xid, expected.commit_time_us):
                return
        raise PositionMismatch(
            f"the source's WAL isn't the one that was published from: transaction {expected.xid} was published, which"
            f" committed at {format_lsn(expected.commit_lsn)}, and isn't there. The source was put back to an earlier"
            " moment and has gone on since",
            hint=self._hint,
        )
