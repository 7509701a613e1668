"""What a view's task tells is kept with the generation, and counted once, whatever order it comes in."""

from typing import Any

from cdc.model.errors import Unavailable
from jobs.generations.view_state import load_view, view_record_name
from jobs.query.view_figures import SAVE_S, FiguresKeeper
from jobs.report import Report, ViewReport
from sinks.memory import MemoryStore, open_memory
from views.counters import Counters
from views.figures import Building, Doing, ViewFigures


class Lease:
    """As much of a job's lease as is used, on records in memory."""

    def __init__(self) -> None:
        self.records = open_memory(MemoryStore(), 1).records
        self.is_down = self.is_silent = False
        self.saved = 0

    def record(self, name: str) -> str | None:
        if self.is_silent:
            raise Unavailable("it is silent")
        return self.records.load(name)

    def save_record(self, name: str, text: str | None) -> None:
        if self.is_down:
            raise Unavailable("it is down")
        self.saved += 1
        self.records.save(name, text)


class Job:
    """One run of a job, whose clock is set."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.reports: list[ViewReport] = []
        self.now_s = 100.0
        given: Any = lease
        self.keeper = FiguresKeeper(
            given, "timeline", 1, self.reported, monotonic=lambda: self.now_s, now_ms=lambda: int(self.now_s * 1000)
        )

    def reported(self, report: Report) -> None:
        assert isinstance(report, ViewReport)
        self.reports.append(report)

    def tell(self, figures: ViewFigures, *, is_last: bool = False) -> None:
        self.now_s += SAVE_S
        self.keeper.take(figures, is_last=is_last)

    @property
    def done(self) -> list[int]:
        """The changes in of each report."""
        return [report.done.changes_in for report in self.reports]


def figures(changes_in: int, *, at_ms: int = 0, building: Building | None = None) -> ViewFigures:
    return ViewFigures(8, 10, 4096, Counters(changes_in, changes_in, 0, 0), building, at_ms or changes_in)


READING = Building(5_000, Doing.READING, 10, 100, 5.0)


def test_a_building_is_told_of_at_once_with_since_when() -> None:
    lease = Lease()
    job = Job(lease)
    job.tell(figures(0, at_ms=1, building=READING))
    told = load_view(lease.records, 1)
    assert told is not None
    assert (told.is_building, told.since_ms, told.figures.building) == (True, 5_000, READING)
    job.keeper.take(figures(1, at_ms=2))  # no time has gone by
    told = load_view(lease.records, 1)
    assert told is not None
    assert (told.is_building, told.since_ms) == (False, int(job.now_s * 1000))
    job.tell(figures(2, at_ms=3))
    assert load_view(lease.records, 1).since_ms == told.since_ms  # type: ignore[union-attr]


def test_figures_are_kept_every_few_seconds_and_at_the_end() -> None:
    lease = Lease()
    job = Job(lease)
    for number in range(1, 6):
        job.keeper.take(figures(number))
    assert lease.saved == 1
    job.keeper.take(figures(6), is_last=True)
    assert (lease.saved, load_view(lease.records, 1).figures) == (2, figures(6))  # type: ignore[union-attr]
    job.tell(figures(6, at_ms=99))  # nothing has changed
    assert lease.saved == 2


def test_words_that_are_heard_late_take_nothing_back() -> None:
    lease = Lease()
    job = Job(lease)
    job.tell(figures(5, at_ms=10), is_last=True)
    job.tell(figures(3, at_ms=9, building=READING))
    assert load_view(lease.records, 1).figures == figures(5, at_ms=10)  # type: ignore[union-attr]


def test_a_store_that_doesnt_answer_ends_nothing() -> None:
    lease = Lease()
    job = Job(lease)
    lease.is_down = True
    job.tell(figures(1))
    lease.is_down = False
    job.tell(figures(2))
    assert (job.done, lease.saved) == ([1, 1], 1)


def test_nothing_is_counted_before_it_is_known_what_an_earlier_run_has_counted() -> None:
    lease = Lease()
    Job(lease).tell(figures(10))
    later = Job(lease)
    lease.is_silent = True
    later.tell(figures(12))
    assert later.done == []
    lease.is_silent = False
    later.tell(figures(13))
    assert later.done == [3]


def test_a_record_has_its_generation_in_its_name() -> None:
    assert view_record_name(3) == "g3.view"
