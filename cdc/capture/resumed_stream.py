"""A stream that must begin with the transactions that were published last."""

from collections.abc import Callable

from cdc.capture.source import Stream
from cdc.model.errors import PositionMismatch
from cdc.model.lsn import format_lsn
from cdc.protocol.control_records import StreamedTransaction
from cdc.protocol.pgoutput import Begin, decode
from cdc.protocol.walsender import WAL_DATA_OFFSET, XLOG_DATA, Frame

_BEGIN = ord("B")


class ResumedStream:
    """Compares the first transactions with those of the state, and passes the stream through from then on.

    This detects a server that was restored to an earlier moment and has since written beyond our position: what it has
    below that position isn't what was published. ``last`` is the last whole transaction, which comes first. ``begun``,
    published in part, is the next one. None: there is nothing to compare. ``hint`` says what to do.
    """

    receive: Callable[[], Frame | None]

    def __init__(
        self, stream: Stream, last: StreamedTransaction | None, *, begun: StreamedTransaction | None, hint: str
    ) -> None:
        self._stream = stream
        self._last = last
        self._begun = begun
        self._hint = hint
        self.wait = stream.wait
        self.send = stream.send
        self._expect_next()

    @property
    def is_resumed(self) -> bool:
        """Whether the stream is known to be the one that was published from."""
        return self._last is None and self._begun is None

    def _expect_next(self) -> None:
        if self._last is not None:
            self.receive = self._receive_last
        elif self._begun is not None:
            self.receive = self._receive_begun
        else:
            self.receive = self._stream.receive  # rows needn't pay for the comparison

    def _receive_last(self) -> Frame | None:
        """The stream was requested from this transaction, so it comes first."""
        frame = self._stream.receive()
        if frame is not None and frame[0] == XLOG_DATA:
            assert self._last is not None
            self._compare(frame, self._last, "was published")
            self._last = None
            self._expect_next()
        return frame

    def _receive_begun(self) -> Frame | None:
        """The remainder of the previous transaction, and messages outside of transactions, come before it."""
        frame = self._stream.receive()
        if frame is not None and frame[0] == XLOG_DATA and frame[WAL_DATA_OFFSET] == _BEGIN:
            assert self._begun is not None
            self._compare(frame, self._begun, "was published in part")
            self._begun = None
            self._expect_next()
        return frame

    def _compare(self, frame: Frame, expected: StreamedTransaction, what_was_done: str) -> None:
        """Raises PositionMismatch if the frame doesn't begin the expected transaction."""
        message = decode(bytes(frame), WAL_DATA_OFFSET)
        if isinstance(message, Begin):
            begun = (message.commit_lsn, message.xid, message.commit_time_us)
            if begun == (expected.commit_lsn, expected.xid, expected.commit_time_us):
                return
        raise PositionMismatch(
            f"the source's WAL isn't the WAL that capture published from: transaction {expected.xid} {what_was_done}"
            f" and isn't there; it committed at {format_lsn(expected.commit_lsn)}. The source was put back to an"
            " earlier moment and has gone on since",
            hint=self._hint,
        )
