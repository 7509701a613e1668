"""Of the jobs of one generation the newest is left, whatever hangs, dies, comes late or is put back in between."""

from dataclasses import replace
from operator import attrgetter

from hypothesis import given
from hypothesis import strategies as st

from cdc.model.errors import DataLost, Fenced
from jobs.generations.lease import HEARTBEAT_S, Claim, Clock, GenerationLease, claimed, newest_run
from sinks.memory import MemorySink, MemoryStore, open_memory
from tests.generations import prepared_store

RECORD = "g1.heartbeat"


class _Records(MemorySink):
    """Those of one job. While it hangs, what it writes waits in ``late``."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.hangs = False
        self.late: list[str | None] = []

    def save(self, name: str, text: str | None, *, fence: int = 0) -> None:
        if self.hangs:
            self.late.append(text)
        else:
            super().save(name, text, fence=fence)


class _Job:
    def __init__(self, store: MemoryStore, now_ms: int, *, fences: bool = False) -> None:
        self.now = 0.0
        self.records = _Records(store)
        opened = replace(open_memory(store), records=self.records)
        self.claim_sink = opened.sink.claim if fences else lambda: 0
        self.lease = GenerationLease(opened, 1, clock=Clock(lambda: self.now, now_ms=lambda: now_ms))
        self.lease.claim(self.claim_sink)
        self.claim = Claim(claimed(self.records, 1).number, newest_run(self.records, 1) or "")

    def goes_on(self) -> bool:
        self.now += HEARTBEAT_S
        try:
            self.lease.heartbeat()
        except Fenced:
            return False
        except DataLost:
            return self._begins_again()
        return True

    def _begins_again(self) -> bool:
        """As a job does whose destination was put back; one that has still to wait goes on too."""
        try:
            self.lease.begin()
            self.lease.claim(self.claim_sink)
        except Fenced:
            return False
        except DataLost:
            pass
        return True

    def wake(self) -> None:
        self.records.hangs = False
        for text in self.records.late:
            self.records.save(RECORD, text)
        self.records.late = []


STEPS = st.lists(
    st.tuples(st.sampled_from(["start", "beat", "hang", "wake", "kill", "put back", "end"]), st.integers(0, 5))
)


@given(STEPS, st.lists(st.integers(-50, 50), min_size=8, max_size=8))
def test_the_newest_of_the_jobs_is_left(steps: list[tuple[str, int]], skews_ms: list[int]) -> None:
    store, copy = MemoryStore(), {}
    jobs: list[_Job] = []
    greatest = Claim(0, "")
    for count, (step, which) in enumerate(steps):
        if step == "start" or not jobs:
            # Each machine has a clock of its own, and they don't agree.
            jobs.append(_Job(store, now_ms=1_000 + count + skews_ms[which]))
            greatest = max(greatest, jobs[-1].claim)
            continue
        job = jobs[which % len(jobs)]
        if step == "beat" and not job.goes_on():
            jobs.remove(job)
        elif step == "hang":
            job.records.hangs = True
        elif step == "wake":
            job.wake()
        elif step in ("kill", "end"):
            jobs.remove(job)
            if step == "end" and not job.records.hangs:
                job.lease.end()
        elif step == "put back":
            store.records, copy = dict(copy), dict(store.records)
    before = list(jobs)
    for job in jobs:
        job.wake()
    for _ in range(3):
        jobs = [job for job in jobs if job.goes_on()]
    newest = max(before, key=attrgetter("claim"), default=None)
    if newest is not None and newest.claim == greatest:
        assert jobs == [newest]
    else:  # who was told of a newer one may not go on: nobody can tell that it is dead
        assert jobs in ([], [newest])
    last = _Job(store, now_ms=2_000)
    assert not any(job.goes_on() for job in jobs)
    assert last.goes_on()


@given(STEPS)
def test_where_the_destination_fences_no_job_is_left_that_it_refuses(steps: list[tuple[str, int]]) -> None:
    store = prepared_store(1)
    jobs: list[_Job] = []
    copy: tuple[dict[str, str], int] = {}, 0
    for step, which in steps:
        if step == "start" or not jobs:
            jobs.append(_Job(store, now_ms=0, fences=True))
            continue
        job = jobs[which % len(jobs)]
        if step == "beat" and not job.goes_on():
            jobs.remove(job)
        elif step == "hang":
            job.records.hangs = True
        elif step == "wake":
            job.wake()
        elif step == "kill":
            jobs.remove(job)
        elif step == "put back":
            now = dict(store.records), store.generation(1).fence
            (store.records, store.generation(1).fence), copy = copy, now
    for job in jobs:
        job.wake()
    last = _Job(store, now_ms=0, fences=True)
    jobs.append(last)
    for _ in range(3):
        jobs = [job for job in jobs if job.goes_on()]
    assert len(jobs) == 1
    assert claimed(jobs[0].records, 1).number == store.generation(1).fence


@given(st.integers(0, 3), st.integers(1, 4), st.booleans())
def test_the_only_job_of_a_destination_that_was_put_back_begins_again(
    killed: int, queries: int, was_known: bool
) -> None:
    store = prepared_store(1)
    for _ in range(killed):
        _Job(store, now_ms=0, fences=True).goes_on()
    before = dict(store.records), store.generation(1).fence
    job = _Job(store, now_ms=0, fences=True)
    if was_known:
        before = dict(store.records), store.generation(1).fence
    for _ in range(queries):
        job.lease.claim(job.claim_sink)
    store.records, store.generation(1).fence = before
    assert all(job.goes_on() for _ in range(10))
    assert claimed(job.records, 1).number == store.generation(1).fence
