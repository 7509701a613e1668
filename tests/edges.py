"""The two edges of capture in memory: a scripted stream, a publisher that records, and a clock that they move."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from cdc.capture.batch import Batch, Committed, commit_pace
from cdc.capture.batch_size import STREAM_BATCH, BatchSize
from cdc.capture.confirmation import Clock, Confirmation
from cdc.capture.loop import CaptureLoop, Pause
from cdc.capture.questions import Event
from cdc.capture.settings import CaptureSettings
from cdc.model.errors import Unavailable
from cdc.model.event import Headers
from cdc.model.lsn import Lsn
from cdc.model.table import Table
from cdc.pace import Pace
from cdc.protocol.control_records import CaptureState, SchemaRecord
from cdc.protocol.walsender import Frame
from tests import history

STATUS_INTERVAL_S = 10.0

Burst = Sequence[Frame | Callable[[], object]]
"""Frames that arrive together; calls happen between two of them."""


class Journal(list[tuple[str, int]]):
    """What happened to both edges, in order: ``("committed", end LSN)`` and ``("confirmed", LSN)``."""

    def of(self, what: str) -> list[int]:
        return [lsn for kind, lsn in self if kind == what]


class Time:
    def __init__(self) -> None:
        """Any instant will do."""
        self.now_s = 5000.0

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds

    def clock(self) -> Clock:
        return Clock(lambda: self.now_s, lambda: int(self.now_s * 1e6))


class ScriptedStream:
    """Sends bursts. The next one arrives when the reader has waited twice in a row for nothing."""

    def __init__(self, time: Time, journal: Journal, *bursts: Burst) -> None:
        """``exhausted`` is True once the reader waits for a burst after the last."""
        self._time = time
        self._journal = journal
        self._bursts = [list(burst) for burst in bursts]
        self._waits = 0
        self.received: list[int] = []
        self.exhausted = not bursts

    def receive(self) -> Frame | None:
        while self._bursts and self._bursts[0]:
            item = self._bursts[0].pop(0)
            if isinstance(item, bytes | memoryview):
                self._waits = 0
                return item
            item()
        return None

    def wait(self, seconds: float) -> None:
        self._time.pass_by(seconds)
        self._waits += 1
        if self._waits >= 2 and self._bursts:
            self._waits = 0
            self._bursts.pop(0)
            self.exhausted = not self._bursts

    def send(self, frame: bytes) -> None:
        kind, received, flushed, applied, _, _ = struct.unpack("!cQQQqB", frame)
        assert kind == b"r"
        assert flushed <= applied <= received
        self.received.append(received)
        self._journal.append(("confirmed", flushed))
        if applied > flushed:
            self._journal.append(("complete", applied))


def slowest_pace() -> Pace:
    """The pace after a while with an exhausted broker. Some quick commits bring it back."""
    pace = commit_pace(CaptureSettings())
    for _ in range(10):
        pace.took(60.0)
    return pace


class MemoryPublisher:
    """Stores what was committed. Commit ``fail_at``, from 0, fails; it may be ``durable`` all the same."""

    def __init__(self, journal: Journal, *, fail_at: int | None = None, durable: bool = False) -> None:
        self._journal = journal
        self._fail_at = fail_at
        self._durable = durable
        self._open: list[Event] = []
        self._open_beside: dict[bytes, bytes | None] = {}
        self.beside: list[dict[bytes, bytes | None]] = []
        """What was committed beside the state, by commit."""
        self.batches: list[list[Event]] = []
        self.states: list[CaptureState] = []
        self.shapes: list[SchemaRecord] = []
        self.served = 0
        self.owes = False

    def send(self, topic: str, key: bytes, value: bytes | None, extra: bytes | Headers | None = None) -> None:
        self._open.append((topic, key, value, extra))

    def send_rows(self, topic: str, rows: Sequence[tuple[bytes, bytes]]) -> None:
        for key, value in rows:
            self.send(topic, key, value)

    def send_beside_state(self, key: bytes, value: bytes | None) -> None:
        self._open_beside[key] = value

    @property
    def beside_state(self) -> dict[bytes, bytes | None]:
        """The newest of each key."""
        return {key: value for records in self.beside for key, value in records.items()}

    def commit(
        self,
        state: CaptureState,
        schemas: Sequence[SchemaRecord] = (),
        *,
        covering: Sequence[str] = (),
        progress: bool = True,
        interval_s: float | None = None,
    ) -> None:
        fails = self._fail_at == len(self.batches)
        if fails and not self._durable:
            raise Unavailable("the broker is gone")
        self.batches.append(self._open)
        self.states.append(state)
        self.shapes += schemas
        self.beside.append(self._open_beside)
        self._open_beside = {}
        self._open = []
        if fails:
            raise Unavailable("the broker is gone, but it had committed")
        self._journal.append(("committed", state.end_lsn))

    def owes_progress(self) -> bool:
        return self.owes

    def serve(self) -> None:
        self.served += 1

    @property
    def events(self) -> list[Event]:
        return [event for batch in self.batches for event in batch]


class Surroundings(history.Answers):
    """The source and the topics around the stream."""

    def __init__(
        self,
        capture: "Capture",
        inspect: Callable[[CaptureState], CaptureState],
        *,
        is_resumed: bool,
        interval_s: float,
        **answers: Any,
    ) -> None:
        super().__init__(**answers)
        self._capture = capture
        self._inspect = inspect
        self._is_resumed = is_resumed
        self.interval_s = interval_s
        self.stopping: Callable[[], bool] = lambda: capture.stream.exhausted

    def is_resumed(self) -> bool:
        return self._is_resumed

    def inspect(self, state: CaptureState) -> CaptureState:
        return self._inspect(state)

    def heartbeat(self) -> None:
        self._capture.heartbeats.append(self._capture.time.now_s)

    def keep_alive(self) -> None:
        self._capture.confirmation.send_status_if_due()


class Capture:
    def __init__(
        self,
        *bursts: Burst,
        shapes: Sequence[Table] = (),
        state: CaptureState | None = None,
        fail_at: int | None = None,
        durable: bool = False,
        time: Time | None = None,
        pace: Pace | None = None,
        heartbeat_interval_s: float = 1e9,
        inspect: Callable[[CaptureState], CaptureState] = lambda state: state,
        is_resumed: bool = True,
        answers: Mapping[str, Any] = MappingProxyType({}),
        parts: Mapping[str, Any] = MappingProxyType({}),
        batch_rows: int = STREAM_BATCH.rows,
        batch_bytes: int = STREAM_BATCH.bytes,
    ) -> None:
        """It begins at a state and is told to stop once the last burst was read."""
        self.time = time or Time()
        self.journal = Journal()
        self.stream = ScriptedStream(self.time, self.journal, *bursts)
        self.publisher = MemoryPublisher(self.journal, fail_at=fail_at, durable=durable)
        self.heartbeats: list[float] = []
        self.reports: list[Committed] = []
        self.state = state or history.state()
        if shapes:
            self.state = replace(self.state, copied={shape.name: 1 for shape in shapes})
        clock = self.time.clock()
        self.confirmation = Confirmation(
            self.stream, clock, interval_s=STATUS_INTERVAL_S, confirmed=Lsn(self.state.resume_lsn)
        )
        self._batch = Batch(
            publisher=self.publisher,
            confirmation=self.confirmation,
            state=self.state,
            size=BatchSize(batch_rows, batch_bytes),
            clock=clock,
            report=self.reports.append,
            pace=pace or commit_pace(CaptureSettings()),
        )
        self.assembler = history.assembler(*shapes, at=self.state, **parts)
        self.surroundings = Surroundings(
            self, inspect, is_resumed=is_resumed, interval_s=heartbeat_interval_s, **answers
        )
        self.pause: Pause | None = None

    def run(self, *, stopping: Callable[[], bool] | None = None, until: int | None = None) -> "Capture":
        """Run until the script ends, or ``stopping``, or the loop pauses."""
        if stopping is not None:
            self.surroundings.stopping = stopping
        self.loop = CaptureLoop(
            self.stream, self._batch, self.assembler, self.surroundings, self.confirmation, self.time.clock()
        )
        self.pause = self.loop.run(until=None if until is None else Lsn(until), may_copy=self._lacks_copies)
        return self

    def _lacks_copies(self, state: CaptureState) -> bool:
        return any(name not in state.copied for name in self.assembler.relations.tables)

    def positions(self) -> list[tuple[int, int, int]]:
        """(commit LSN, seq, end LSN) of every committed state."""
        return [(state.commit_lsn, state.seq, state.end_lsn) for state in self.publisher.states]
