"""cdc.capture.batch: when a batch is full or overdue, and in which order a commit does what."""

from collections.abc import Sequence

from cdc.capture.batch import Batch, Committed, commit_pace
from cdc.capture.batch_size import BatchSize
from cdc.capture.confirmation import Confirmation
from cdc.capture.questions import Event
from cdc.capture.settings import CaptureSettings
from cdc.model.lsn import Lsn
from cdc.pace import Pace
from cdc.toast.memory import MemoryStore
from tests import history
from tests.edges import Journal, MemoryPublisher, ScriptedStream, Time
from tests.wal import HANDOFF


class JournalMemory(MemoryStore):
    """Says in the journal when it is told of a commit."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def commit(self, position: tuple[int, int] | None, bounds: object = None) -> None:
        self._journal.append(("remembered", 0 if position is None else position[0]))


class Opened:
    """A batch between the two edges, with an assembler at the handoff."""

    def __init__(
        self, *, fail_at: int | None = None, pace: Pace | None = None, rows: int = 20_000, size: int = 1 << 24
    ) -> None:
        self.time = Time()
        self.journal = Journal()
        self.publisher = MemoryPublisher(self.journal, fail_at=fail_at)
        self.reports: list[Committed] = []
        self.assembler = history.assembler()
        clock = self.time.clock()
        stream = ScriptedStream(self.time, self.journal)
        self.batch = Batch(
            publisher=self.publisher,
            confirmation=Confirmation(stream, clock, interval_s=10.0, confirmed=Lsn(0)),
            state=history.state(),
            size=BatchSize(rows, size),
            clock=clock,
            report=self.reports.append,
            memory=JournalMemory(self.journal),
            pace=pace or commit_pace(CaptureSettings(commit_interval_ms=50)),
        )


def events(count: int, value: bytes | None = b"x") -> Sequence[Event]:
    return [("shop.public.orders", b"%d" % number, value, None) for number in range(count)]


def test_the_age_of_a_batch_is_that_of_its_first_event() -> None:
    opened = Opened()
    opened.time.pass_by(10)
    assert not opened.batch.is_overdue()
    opened.batch.add(events(1))
    opened.time.pass_by(0.4)
    opened.batch.add(events(1))
    assert not opened.batch.is_overdue()
    opened.time.pass_by(0.2)
    assert opened.batch.is_overdue()


def test_a_commit_goes_to_kafka_then_to_the_memory_then_to_postgresql() -> None:
    opened = Opened()
    opened.batch.add(events(2))
    opened.batch.commit(opened.assembler)
    assert opened.journal == [("committed", HANDOFF), ("remembered", HANDOFF), ("confirmed", HANDOFF)]
    assert [committed.events for committed in opened.reports] == [2]


def test_only_what_was_sent_is_pending() -> None:
    opened = Opened()
    opened.batch.commit_pending(opened.assembler)
    assert opened.publisher.batches == []
    opened.batch.add(events(1))
    opened.batch.commit_pending(opened.assembler)
    assert [len(batch) for batch in opened.publisher.batches] == [1]
