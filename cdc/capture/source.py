"""What capture needs of a source. ``cdc.stream`` supplies it for PostgreSQL, the only one.

Another source would also need its own decoder in place of ``cdc.protocol.pgoutput``, a position that grows with each
commit in place of the LSN, and a copy of tables as of such a position (``snapshot``).
"""

from typing import Any, Protocol

from cdc.capture.questions import Question
from cdc.protocol.control_records import CaptureState
from cdc.protocol.walsender import Frame


class Stream(Protocol):
    """Frames of the replication protocol."""

    def receive(self) -> Frame | None:
        """The next frame that has arrived, or None. Never waits."""
        ...

    def wait(self, seconds: float) -> None:
        """Return when something arrived, or after ``seconds``."""
        ...

    def send(self, frame: bytes) -> None: ...


class Source(Protocol):
    """The surroundings of the stream: the database, the topics, and what is stored of them."""

    interval_s: float
    """How often it is inspected, and written to if nothing is committed."""

    def stopping(self) -> bool:
        """Whether the loop was asked to stop."""
        ...

    def answer(self, question: Question) -> Any:
        """The answer that the question describes; for NeedLiveKeys an iterator of keys. Its errors end the loop."""
        ...

    def is_resumed(self) -> bool:
        """Whether the stream is known to be the one that was published from."""
        ...

    def inspect(self, state: CaptureState) -> CaptureState:
        """Inspect the source; returns the state with the tables that must be copied again."""
        ...

    def heartbeat(self) -> None:
        """Write something, so that slot and watermark of an idle database advance."""
        ...

    def keep_alive(self) -> None:
        """Called now and then in any case: send status updates, and serve other connections."""
        ...
