"""Who only looks is told whether a job applies to a generation, since when not, and why."""

import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import orjson
import pytest

from cdc.model.errors import LockstepError, Unavailable
from jobs.generations.lease import Clock, GenerationLease, LastBeat, heartbeat_name
from jobs.generations.read_so_far import ReadSoFar
from jobs.generations.record import Phase, Record, save_record
from jobs.generations.starting import STARTING_NAME, showing_start, starting_record
from jobs.generations.status import (
    JobState,
    JobStatus,
    clear_stop,
    clear_takeover,
    job_status,
    job_statuses,
    save_stop,
    save_takeover,
)
from sinks.contract import OpenedSink
from sinks.memory import MemorySink, MemoryStore, open_memory
from tests.builders import table
from tests.databases import until
from tests.generations import AskedRecords, Time

MINUTE_MS = 60_000


def _lease(records: MemorySink, at_ms: int) -> GenerationLease:
    return GenerationLease(replace(open_memory(MemoryStore()), records=records), 1, clock=Clock(now_ms=lambda: at_ms))


def test_a_job_that_gives_signs_of_life_runs() -> None:
    records = MemorySink(MemoryStore())
    _lease(records, MINUTE_MS).heartbeat()
    status = job_status(records, 1, now_ms=MINUTE_MS + 5_000)
    assert (status.state, status.needs_somebody, status.sentence("cache")) == (JobState.RUNNING, False, None)


def test_jobs_that_run_are_asked_about_at_once() -> None:
    """A page asks once a second, and each request costs it and the store time."""
    records = AskedRecords(MemoryStore())
    _lease(records, MINUTE_MS).heartbeat()
    records.requests.clear()
    statuses = job_statuses(records, [1], now_ms=MINUTE_MS)
    assert [status.state for status in statuses.values()] == [JobState.RUNNING]
    assert records.requests == [["g1.heartbeat", "g1.held_tables", "record.1", "starting"]]


def test_a_driver_that_starts_is_seen_before_it_has_a_job() -> None:
    """Whatever became of the last job, but for an error that may end this one too."""
    records = MemorySink(MemoryStore())
    records.save(STARTING_NAME, starting_record("a", 1, since_ms=MINUTE_MS - 9_000, at_ms=MINUTE_MS))
    status = job_status(records, 1, now_ms=MINUTE_MS + 5_000)
    assert (status.state, status.since_ms, status.needs_somebody) == (JobState.STARTING, MINUTE_MS - 9_000, False)
    assert job_status(records, 1, now_ms=2 * MINUTE_MS).state is JobState.ABSENT, "it was killed"
    save_stop(records, 1, LockstepError("no room"), now_ms=MINUTE_MS)
    assert job_status(records, 1, now_ms=MINUTE_MS + 5_000).state is JobState.STOPPED


def test_a_driver_with_another_clock_is_seen_by_whoever_looks_twice() -> None:
    records, still = MemorySink(MemoryStore()), dict[int, LastBeat]()

    def look(at_ms: int) -> JobState:
        records.save(STARTING_NAME, starting_record("a", at_ms, since_ms=0, at_ms=at_ms))
        return job_statuses(records, [1], now_ms=60 * MINUTE_MS, still=still)[1].state

    assert [look(at_ms) for at_ms in (0, 2_000, 4_000, 4_000)] == [
        JobState.ABSENT,
        JobState.STARTING,
        JobState.STARTING,
        JobState.ABSENT,
    ]


def test_a_driver_shows_that_it_starts_until_its_job_is_at_work() -> None:
    store, opened = MemoryStore(), threading.Event()

    def open_sink() -> OpenedSink:
        if not opened.is_set():
            opened.set()
            raise Unavailable("it doesn't answer yet")
        return open_memory(store)

    records = MemorySink(store)
    with showing_start({"cache": open_sink}) as signs:
        until(lambda: records.load(STARTING_NAME))
        signs.end("cache")
        until(lambda: records.load(STARTING_NAME) is None)


def test_a_job_that_was_told_to_stop_is_absent_though_an_older_ones_goodbye_was_lost() -> None:
    """The older one's came while the newer one wrote what it had read before."""
    records = MemorySink(MemoryStore())
    older, newer = _claimed(records), _claimed(records)
    before = records.load(heartbeat_name(1))
    older.end()
    records.save(heartbeat_name(1), before)
    newer.end()
    status = job_status(records, 1, now_ms=MINUTE_MS)
    assert (status.state, status.since_ms, status.needs_somebody) == (JobState.ABSENT, MINUTE_MS, False)
    _claimed(records)
    assert job_status(records, 1, now_ms=MINUTE_MS).state is JobState.RUNNING


def test_a_job_that_was_killed_needs_somebody() -> None:
    records = MemorySink(MemoryStore())
    _lease(records, MINUTE_MS).heartbeat()
    status = job_status(records, 1, now_ms=2 * MINUTE_MS, clock=Time().clock())
    assert (status.state, status.since_ms, status.needs_somebody) == (JobState.SILENT, MINUTE_MS, True)
    assert "1970-01-01 00:01:00 UTC" in (status.sentence("cache") or "")


@pytest.mark.parametrize(
    ("phase", "command"),
    [
        (Phase.READY, "`lockstep run` or `lockstep apply` starts it"),
        (Phase.BUILDING, "`lockstep rebuild cache` goes on with it"),
        (Phase.RETIRED, "`lockstep generations cache --drop 1` drops it for good"),
    ],
)
def test_it_is_told_which_command_goes_on_with_a_generation_of_its_phase(phase: Phase, command: str) -> None:
    """`apply` lets those be that a rebuild has in hand, also once that was killed."""
    records = MemorySink(MemoryStore())
    save_record(records, 1, Record("shop", {}, phase=phase))

    def told() -> str:
        return job_statuses(records, [1], now_ms=MINUTE_MS, sink="cache")[1].sentence("generation 1 of cache") or ""

    assert told().endswith(f": {command}")
    save_stop(records, 1, LockstepError("no room"), now_ms=MINUTE_MS)
    again = " again" if phase is Phase.READY else ""
    assert told().endswith(f"then {command}{again}")


def test_the_error_that_ended_a_job_is_told_until_one_is_at_work_again() -> None:
    records = MemorySink(MemoryStore())
    lease = _lease(records, MINUTE_MS)
    lease.heartbeat()
    lease.end()
    error = LockstepError("column public.t.a has the name 'b' now", hint="mend rename")
    save_stop(records, 1, error, now_ms=MINUTE_MS)
    save_stop(records, 1, error, now_ms=3 * MINUTE_MS)  # started again, and ended by the same: since the first time
    status = job_status(records, 1, now_ms=4 * MINUTE_MS)
    assert status == JobStatus(JobState.STOPPED, MINUTE_MS, "column public.t.a has the name 'b' now", "mend rename")
    assert status.needs_somebody
    assert (status.sentence("cache") or "").splitlines() == [
        "cache stopped at 1970-01-01 00:01:00 UTC: column public.t.a has the name 'b' now",
        "    mend rename",
        "    then `lockstep run` or `lockstep apply` starts it again",
    ]
    save_stop(records, 1, LockstepError("another"), now_ms=5 * MINUTE_MS)
    assert job_status(records, 1, now_ms=6 * MINUTE_MS).since_ms == 5 * MINUTE_MS
    clear_stop(records, 1)
    assert job_status(records, 1, now_ms=6 * MINUTE_MS).state is JobState.ABSENT


def test_a_job_whose_clock_is_another_one_runs_as_long_as_its_heartbeat_moves() -> None:
    for at_ms in (MINUTE_MS, 3 * MINUTE_MS):
        records = MemorySink(MemoryStore())
        beats = itertools.count(1)

        def beat(records: MemorySink = records, at_ms: int = at_ms, beats: Iterator[int] = beats) -> None:
            records.save("g1.heartbeat", _beats(next(beats), at_ms))

        beat()
        status = job_status(records, 1, now_ms=2 * MINUTE_MS, clock=Time(beat).clock())
        assert status == JobStatus(JobState.RUNNING)
        status = job_status(records, 1, now_ms=2 * MINUTE_MS, clock=Time().clock())
        assert status == JobStatus(JobState.SILENT, at_ms)


def test_the_error_of_a_second_job_is_not_kept_while_the_first_one_goes_on() -> None:
    records = MemorySink(MemoryStore())
    now = Time()
    lease = GenerationLease(
        replace(open_memory(MemoryStore()), records=records), 1, clock=Clock(lambda: now.now, now_ms=lambda: MINUTE_MS)
    )
    lease.heartbeat()
    now.every = lease.heartbeat
    save_stop(records, 1, LockstepError("mine"), now_ms=MINUTE_MS, clock=now.clock())
    lease.end()
    assert job_status(records, 1, now_ms=MINUTE_MS).state is JobState.ABSENT
    # One that was killed doesn't count.
    lease.heartbeat()
    now.every = lambda: None
    save_stop(records, 1, LockstepError("mine"), now_ms=MINUTE_MS, clock=now.clock())
    assert job_status(records, 1, now_ms=2 * MINUTE_MS, clock=now.clock()).state is JobState.STOPPED


def _claimed(records: MemorySink) -> GenerationLease:
    lease = _lease(records, MINUTE_MS)
    lease.claim(lambda: 0)
    return lease


def test_a_job_that_a_newer_one_has_ended_needs_somebody_once_that_one_is_gone() -> None:
    records = MemorySink(MemoryStore())
    older, newer = _claimed(records), _claimed(records)
    older.end()
    save_takeover(records, 1, now_ms=2 * MINUTE_MS)
    clear_stop(records, 1)  # the newer one gets to work, maybe later than the older one has noticed
    assert job_status(records, 1, now_ms=MINUTE_MS).state is JobState.RUNNING
    killed = job_status(records, 1, now_ms=3 * MINUTE_MS, clock=Time().clock())
    assert (killed.state, killed.since_ms) == (JobState.SILENT, MINUTE_MS)
    newer.end()
    stopped = job_status(records, 1, now_ms=3 * MINUTE_MS)
    assert (stopped.state, stopped.since_ms) == (JobState.STOPPED, 2 * MINUTE_MS)
    assert "a newer job had taken its place" in (stopped.sentence("cache") or "")
    next_one = _claimed(records)
    clear_stop(records, 1)
    next_one.end()
    assert job_status(records, 1, now_ms=MINUTE_MS).state is JobState.ABSENT


def test_a_job_that_is_told_to_stop_after_a_newer_one_had_ended_it_needs_nobody() -> None:
    records = MemorySink(MemoryStore())
    _claimed(records).end()
    save_takeover(records, 1, now_ms=MINUTE_MS)
    clear_takeover(records, 1)
    assert job_status(records, 1, now_ms=MINUTE_MS).state is JobState.ABSENT


def test_what_ended_the_newer_job_counts_more_than_that_it_had_ended_another() -> None:
    for ended_first in (True, False):
        records = MemorySink(MemoryStore())
        _claimed(records).end()
        if ended_first:
            save_takeover(records, 1, now_ms=MINUTE_MS)
        save_stop(records, 1, LockstepError("refused"), now_ms=MINUTE_MS)
        if not ended_first:
            save_takeover(records, 1, now_ms=MINUTE_MS)
        clear_takeover(records, 1)
        assert job_status(records, 1, now_ms=MINUTE_MS).reason == "refused"


def _beats(beats: int, at_ms: int) -> str:
    """The heartbeat record of a job."""
    jobs = {"x": {"beats": beats, "paused_for": None}}
    facts = {"jobs": jobs, "at_ms": at_ms, "claim": None, "once": False, "is_over": False, "read": None}
    return orjson.dumps(facts).decode()


def test_a_job_tells_with_its_sign_of_life_what_it_has_read() -> None:
    store = MemoryStore()
    opened = open_memory(store)
    opened.sink.prepare([table()])
    lease = GenerationLease(opened, 1)
    lease.tells(lambda: ReadSoFar(7, 1, 5, 50))
    lease.claim(opened.sink.claim)
    now_ms = time.time_ns() // 1_000_000
    assert job_statuses(opened.records, [1], now_ms=now_ms)[1].read == ReadSoFar(7, 1, 5, 50)
    lease.end()
    assert job_statuses(opened.records, [1], now_ms=now_ms)[1].read is None
