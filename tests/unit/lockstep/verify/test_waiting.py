"""Waiting for a sink: as long as it moves, and no longer than that."""

import pytest

from cdc.model.errors import LockstepError
from cdc.model.lsn import Lsn
from lockstep.verify.waiting import Applied, SyncPoint, Waiting, settled_time
from sinks.contract import Progress
from views.retention import NotedTime


def test_a_sink_that_nothing_is_applied_to_says_so():
    now = [0.0]
    said = []

    class Stuck:
        def load_progress(self):
            return Progress({}, 0x16_B374D848, 0, int(now[0]), {})  # alive, but it doesn't move

    def sleep(seconds):
        now[0] += seconds

    waiting = Waiting(lambda: False, monotonic=lambda: now[0], sleep=sleep)
    applied = Applied(Stuck(), name="cache", generation=3, waiting=waiting, stall_s=30.0, say=said.append)

    with pytest.raises(LockstepError, match=r"'cache' \(generation 3\) hasn't moved for 30 s.*16/B374D849") as caught:
        applied.wait(SyncPoint(lsn=Lsn(0x16_B374D849)))

    assert "lockstep apply cache" in (caught.value.hint or "")
    assert len(said) == 1
    assert 30 <= now[0] < 32


def test_a_sink_that_never_had_a_job_says_so():
    now = [0.0]

    class Empty:
        def load_progress(self):
            return None

    def sleep(seconds):
        now[0] += seconds

    waiting = Waiting(lambda: False, monotonic=lambda: now[0], sleep=sleep)
    applied = Applied(Empty(), name="cache", generation=1, waiting=waiting, stall_s=1.0, say=lambda _: None)

    with pytest.raises(LockstepError, match="no job has ever applied to it"):
        applied.wait(SyncPoint(offsets={("t", 0): 5}))


def test_it_waits_as_long_as_the_sink_moves():
    now = [0.0]

    class Slow:
        def load_progress(self):
            return Progress({("t", 0): int(now[0])}, 0, 0, 0, {})

    waiting = Waiting(lambda: False, monotonic=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))
    applied = Applied(Slow(), name="cache", generation=1, waiting=waiting, stall_s=2.0, say=lambda _: None)
    applied.wait(SyncPoint(offsets={("t", 0): 50}))

    assert 50 <= now[0] < 51


def test_a_sink_whose_job_lives_gets_longer_and_not_for_ever():
    """A slow machine prepares a job or applies a large batch for minutes; a job that hangs lives too."""
    now = [0.0]

    class Preparing:
        def load_progress(self):
            return Progress({("t", 0): 5 if now[0] > 100 else 0}, 0, 0, 0, {})

    waiting = Waiting(lambda: False, monotonic=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))

    def applied(lives_s):
        return Applied(
            Preparing(),
            name="cache",
            generation=1,
            waiting=waiting,
            stall_s=30.0,
            say=lambda _: None,
            sign_of_life=lambda: min(int(now[0] / 2), lives_s),
        )

    applied(1000).wait(SyncPoint(offsets={("t", 0): 5}))
    assert 100 <= now[0] < 101

    now[0] = 0.0
    with pytest.raises(LockstepError, match="hasn't moved for 30 s"):
        applied(0).wait(SyncPoint(offsets={("t", 0): 5}))

    now[0] = 0.0
    with pytest.raises(LockstepError, match="hasn't moved for 300 s"):
        applied(1000).wait(SyncPoint(offsets={("t", 0): 6}))


def test_waiting_ends_when_it_is_told_to_stop():
    waiting = Waiting(lambda: True, sleep=lambda _: None)

    with pytest.raises(LockstepError, match="stopped"):
        waiting.sleep(60.0)


@pytest.mark.parametrize(
    ("epoch", "lsn", "applied"), [(0, 900, False), (1, 100, False), (1, 300, True)], ids=["before", "less", "reached"]
)
def test_a_watermark_of_an_epoch_before_says_nothing(epoch: int, lsn: int, applied: bool) -> None:
    progress = Progress({}, lsn, 0, 0, {}, epoch=epoch)
    assert SyncPoint(lsn=Lsn(200), epoch=1).is_applied(progress) == applied


def test_a_recovery_in_the_middle_ends_the_wait() -> None:
    with pytest.raises(LockstepError, match="was recovered in the meantime"):
        SyncPoint(lsn=Lsn(200)).is_applied(Progress({}, 300, 0, 0, {}, epoch=1))


def test_the_time_of_a_view_is_known_once_all_of_its_rows_are_as_of_one():
    now = [0.0]
    waiting = Waiting(lambda: False, monotonic=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))

    def load():
        return NotedTime(60_000, 60_000) if now[0] > 3 else NotedTime(0, 60_000)

    assert settled_time(load, name="hits", generation=1, waiting=waiting, stall_s=5.0) == NotedTime(60_000, 60_000)
    with pytest.raises(LockstepError, match=r"'hits' \(generation 2\) hasn't taken away all rows") as caught:
        settled_time(lambda: NotedTime(0, 1), name="hits", generation=2, waiting=waiting, stall_s=5.0)
    assert "lockstep apply hits" in (caught.value.hint or "")
