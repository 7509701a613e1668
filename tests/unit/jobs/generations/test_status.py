"""Who only looks is told whether a job applies to a generation, since when not, and why."""

from cdc.model.errors import LockstepError
from jobs.generations.batch_gate import BatchGate
from jobs.generations.lease import GenerationLease
from jobs.generations.status import JobState, JobStatus, clear_stop, job_status, save_stop
from sinks.memory import MemoryRecords, MemoryStore

MINUTE_MS = 60_000


def _lease(records: MemoryRecords, at_ms: int) -> GenerationLease:
    return GenerationLease(records, 1, BatchGate(), now_ms=lambda: at_ms)


def test_before_any_job_nobody_has_begun() -> None:
    status = job_status(MemoryRecords(MemoryStore()), 1, now_ms=MINUTE_MS)
    assert status == JobStatus(JobState.ABSENT)
    assert (status.sentence("cache") or "").startswith("cache: no job has begun to apply to it")


def test_a_job_that_gives_signs_of_life_runs() -> None:
    records = MemoryRecords(MemoryStore())
    _lease(records, MINUTE_MS).heartbeat()
    status = job_status(records, 1, now_ms=MINUTE_MS + 5_000)
    assert (status.state, status.needs_somebody, status.sentence("cache")) == (JobState.RUNNING, False, None)


def test_a_job_that_was_told_to_stop_is_absent_since_then() -> None:
    records = MemoryRecords(MemoryStore())
    lease = _lease(records, MINUTE_MS)
    lease.heartbeat()
    lease.end()
    status = job_status(records, 1, now_ms=2 * MINUTE_MS)
    assert (status.state, status.since_ms, status.needs_somebody) == (JobState.ABSENT, MINUTE_MS, False)


def test_a_job_that_was_killed_needs_somebody() -> None:
    records = MemoryRecords(MemoryStore())
    _lease(records, MINUTE_MS).heartbeat()
    status = job_status(records, 1, now_ms=2 * MINUTE_MS)
    assert (status.state, status.since_ms, status.needs_somebody) == (JobState.SILENT, MINUTE_MS, True)
    assert "1970-01-01 00:01:00 UTC" in (status.sentence("cache") or "")


def test_the_error_that_ended_a_job_is_told_until_one_is_at_work_again() -> None:
    records = MemoryRecords(MemoryStore())
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


def test_another_job_that_runs_beside_counts_more_than_one_that_has_stopped() -> None:
    records = MemoryRecords(MemoryStore())
    save_stop(records, 1, LockstepError("mine"), now_ms=MINUTE_MS)
    _lease(records, MINUTE_MS).heartbeat()
    assert job_status(records, 1, now_ms=MINUTE_MS).state is JobState.RUNNING


def test_a_job_of_an_earlier_version_which_tells_no_time_is_not_taken_for_a_dead_one() -> None:
    records = MemoryRecords(MemoryStore())
    records.save("g1.heartbeat", '{"jobs":{"x":{"beats":1,"paused_for":null}}}')
    assert job_status(records, 1, now_ms=MINUTE_MS) == JobStatus(JobState.RUNNING)
    records.save("g1.heartbeat", '{"jobs":{}}')  # it was told to stop
    status = job_status(records, 1, now_ms=MINUTE_MS)
    assert status == JobStatus(JobState.ABSENT)
    assert "1970" not in (status.sentence("cache") or "")
