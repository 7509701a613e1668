"""What is stored, when, and that nothing is counted or taken back twice."""

import threading
from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast

import pytest

from cdc.model.errors import Fenced, PositionMismatch, Unavailable
from cdc.model.table import TableName
from cdc.protocol.control_records import ProgressRecord
from jobs.generations.held_tables import HeldState, HeldTable
from jobs.generations.read_so_far import ReadSoFar
from jobs.query.progress import RENEWAL_MS, ProgressKeeper
from sinks.contract import Generations, Progress
from sinks.memory import MemoryStore, open_memory
from tests.builders import table
from tests.keepers import keeper_of, log_of

TOPIC = "shop.public.orders"
HOUR_MS = 3_600_000


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


def destination() -> Generations:
    opened = open_memory(MemoryStore())
    opened.sink.prepare([table()])
    opened.sink.claim()
    return opened.generations


def keeper(
    stored: Progress | None = None,
    clock: Clock | None = None,
    *,
    lacks_columns: bool = False,
    log_epoch: int = 0,
) -> tuple[ProgressKeeper, Generations]:
    generations = destination()
    kept = keeper_of(
        generations,
        log_of(TOPIC, retention_ms=HOUR_MS),
        stored,
        now_ms=clock or Clock(),
        lacks_columns=lacks_columns,
        log_epoch=log_epoch,
    )
    return kept, generations


def record(lsn: int, *ends: int) -> ProgressRecord:
    return ProgressRecord(lsn, lsn, {TOPIC: ends})


def test_while_rows_from_before_lack_a_column_the_watermark_stays_and_batches_count() -> None:
    kept, generations = keeper(Progress({(TOPIC, 0): 5}, 100, 7, 0, {}), lacks_columns=True)
    assert kept.learn([record(200, 9)]) is None
    stored = kept.batch_applied({(TOPIC, 0): 9}, rejected=0)
    assert (stored.next_offsets, stored.watermark_lsn, stored.commit_time_ms) == ({(TOPIC, 0): 9}, 100, 7)
    kept.release_watermark()
    released = kept.learn([])
    assert released is not None
    assert (released.watermark_lsn, released.commit_time_ms) == (200, 200)
    assert generations.load_progress() == released
    assert kept.learn([]) is None


def test_a_watermark_that_is_held_is_not_taken_for_one_of_a_new_epoch() -> None:
    kept, _ = keeper(Progress({(TOPIC, 0): 5}, 100, 7, 0, {}), lacks_columns=True)
    kept.learn([replace(record(0, 5), epoch=1, uncopied=(TOPIC,))])
    held = kept.batch_applied({(TOPIC, 0): 9}, rejected=0)
    assert (held.epoch, held.watermark_lsn) == (0, 100)
    kept.release_watermark()
    released = kept.learn([])
    assert released is not None
    assert (released.epoch, released.watermark_lsn) == (1, 0)


def test_a_new_epoch_is_known_before_anything_of_it_is_applied() -> None:
    kept, generations = keeper()
    kept.learn([replace(record(100, 5), epoch=1)])
    assert generations.load_progress() is None
    kept.batch_applied({(TOPIC, 0): 5}, rejected=0)
    kept.learn([replace(record(50, 9), epoch=2)])
    stored = generations.load_progress()
    assert stored is not None
    assert (stored.epoch, stored.log_epoch) == (1, 2)


@pytest.mark.parametrize("stored", [None, Progress({(TOPIC, 0): 2}, 0, 0, 0, {TOPIC: "id"})])
def test_the_epoch_of_the_start_is_stored_with_the_first_batch(stored: Progress | None) -> None:
    """What it reads is beyond where the epoch began: a start after a kill must not take that for a log put back."""
    kept, generations = keeper(stored, log_epoch=1)
    kept.batch_applied({(TOPIC, 0): 5}, rejected=0)
    after = generations.load_progress()
    assert after is not None
    assert (after.epoch, after.log_epoch) == (0, 1)


def test_a_batch_that_comes_again_counts_its_rejections_once() -> None:
    kept, _ = keeper(Progress({(TOPIC, 0): 5}, 0, 0, 0, {}, 3))
    assert kept.batch_applied({(TOPIC, 0): 5}, rejected=3).rejected == 3
    assert kept.batch_applied({(TOPIC, 0): 6}, rejected=1).rejected == 4


def test_a_sink_has_been_here_when_the_log_was_last_looked_at() -> None:
    """A process that hung for days may learn of what it had heard before that."""
    clock = Clock()
    kept, _ = keeper(clock=clock)
    looked_at_ms = clock.now_ms
    clock.now_ms += RENEWAL_MS
    kept.learn([record(100, 5)], known_at_ms=looked_at_ms)
    assert kept.batch_applied({(TOPIC, 0): 5}, rejected=0).updated_at_ms == looked_at_ms
    kept.learn([], known_at_ms=looked_at_ms)
    assert kept.complete_at_ms == looked_at_ms
    kept.learn([], known_at_ms=clock.now_ms + 1)  # the clock was set back
    assert kept.complete_at_ms == clock.now_ms


def test_a_sink_that_is_behind_does_not_look_as_if_it_had_been_here() -> None:
    clock = Clock()
    kept, _ = keeper(Progress({(TOPIC, 0): 5}, 50, 0, 7, {}), clock)
    # It was away, and has not read what was written meanwhile: neither a batch nor time makes it complete.
    kept.learn([record(100, 20)])
    assert kept.batch_applied({(TOPIC, 0): 10}, rejected=0).updated_at_ms == 7
    clock.now_ms += RENEWAL_MS
    renewed = kept.learn([record(200, 25)])
    assert renewed is not None
    assert renewed.updated_at_ms == 7
    # Now all is there but what was learned of a moment ago.
    assert kept.batch_applied({(TOPIC, 0): 20}, rejected=0).updated_at_ms == clock.now_ms
    clock.now_ms += 1
    kept.batch_applied({(TOPIC, 0): 25}, rejected=0)
    kept.learn([])
    assert kept.batch_applied({(TOPIC, 0): 26}, rejected=0).updated_at_ms == clock.now_ms


def test_only_what_batches_told_of_counts_as_reached() -> None:
    kept, _ = keeper(Progress({(TOPIC, 0): 5, (TOPIC, 1): 7}, 100, 0, 0, {TOPIC: "id"}))
    assert kept.reached == {}
    kept.batch_applied({(TOPIC, 0): 3}, rejected=0)
    kept.batch_applied({(TOPIC, 0): 2}, rejected=0)
    assert kept.reached == {(TOPIC, 0): 3}


def test_what_is_read_again_is_known_after_a_restart_until_it_has_caught_up() -> None:
    stored = Progress({(TOPIC, 0): 5, (TOPIC, 1): 7}, 100, 0, 0, {TOPIC: "id"}, reads_again={(TOPIC, 0): 1})
    kept, generations = keeper(stored)
    assert kept.positions == {(TOPIC, 0): 1, (TOPIC, 1): 7}
    for reached, again in ((3, {(TOPIC, 0): 3}), (2, {(TOPIC, 0): 3}), (5, {})):
        progress = kept.batch_applied({(TOPIC, 0): reached, (TOPIC, 1): 7}, rejected=1)
        assert (progress.reads_again, progress.next_offsets) == (again, stored.next_offsets)
        assert generations.load_progress() == progress
    assert kept.positions == stored.next_offsets
    assert progress.rejected == 0, "they were counted before"


def _with_gap(stored: Progress, clock: Clock) -> ProgressKeeper:
    return keeper_of(destination(), log_of(TOPIC, retention_ms=HOUR_MS), stored, now_ms=clock)


def test_what_comes_behind_a_gap_is_no_backlog_however_long_the_gap_stays() -> None:
    clock = Clock()
    stored = Progress({(TOPIC, 0): 5}, 100, 0, clock.now_ms, {TOPIC: "id"})
    kept = _with_gap(replace(stored, skipped={(TOPIC, 0): 8}), clock)
    for number in range(9, 13):
        kept.learn([record(100 * number, number)])
        reached = kept.batch_applied({(TOPIC, 0): number}, rejected=0)
        clock.now_ms += 3_000_000
        kept.learn([])
    assert (reached.updated_at_ms, reached.skipped) == (stored.updated_at_ms, {(TOPIC, 0): 12})
    # One that waits behind the gap for too long is as late as any other.
    late = _with_gap(reached, clock)
    late.learn([record(5000, 20)])
    clock.now_ms += 3_600_001
    with pytest.raises(PositionMismatch, match="hours behind"):
        late.batch_applied({(TOPIC, 0): 20}, rejected=0)
    # The gap itself can't be read after all by now.
    with pytest.raises(PositionMismatch, match="hours behind"):
        _with_gap(replace(reached, skipped={}), clock).batch_applied({(TOPIC, 0): 8}, rejected=0)


def test_a_batch_that_was_read_after_tombstones_may_be_gone_is_refused_again_and_again() -> None:
    """A store was down, the machine slept, or a backlog takes longer than that: nothing of it may look applied."""
    clock = Clock()
    kept, generations = keeper(Progress({(TOPIC, 0): 5}, 0, 0, clock.now_ms, {TOPIC: "id"}), clock)
    kept.learn([record(100, 9)])
    clock.now_ms += 3_600_000
    stored = kept.batch_applied({(TOPIC, 0): 6}, rejected=0)
    clock.now_ms += 1
    for _ in range(2):
        with pytest.raises(PositionMismatch, match="hours behind") as raised:
            kept.batch_applied({(TOPIC, 0): 9}, rejected=0)
    assert "lockstep rebuild search" in str(raised.value.hint)
    assert generations.load_progress() == stored


def test_a_job_in_whose_place_another_one_applies_stores_nothing() -> None:
    def check_claim() -> None:
        raise Fenced("another job has begun to apply")

    generations = destination()
    kept = keeper_of(generations, log_of(TOPIC), check_claim=check_claim)
    with pytest.raises(Fenced):
        kept.batch_applied({(TOPIC, 0): 5}, rejected=0)
    assert generations.load_progress() is None


def test_the_id_of_a_topic_stays_known_while_its_table_is_not_read() -> None:
    """It alone shows that the topic is another one when the table is read again."""
    ids = {TOPIC: "id", "items": "theirs", "never read": "unknown"}
    stored = Progress({(TOPIC, 0): 5, ("items", 0): 7}, 100, 7, 900_000, ids)
    kept = keeper_of(destination(), log_of(TOPIC, ids={TOPIC: "new"}), stored)
    assert kept.batch_applied({(TOPIC, 0): 9}, rejected=0).topic_ids == {TOPIC: "new", "items": "theirs"}


PAUSED = {"paused": HeldTable(HeldState.PAUSED, 5)}


def test_while_a_table_is_paused_the_watermark_stays_whatever_else_is_over() -> None:
    stored = Progress({(TOPIC, 0): 5, ("paused", 0): 7}, 100, 7, 900_000, {})
    kept = keeper_of(destination(), log_of(TOPIC), stored, held_tables=PAUSED, lacks_columns=True)
    kept.release_watermark()
    kept.learn([record(200, 9)])
    assert kept.batch_applied({(TOPIC, 0): 9}, rejected=0).watermark_lsn == 100


@pytest.mark.parametrize("lacks_columns", [False, True])
def test_while_a_table_is_paused_one_that_joins_is_told_to_be_there_once_it_is(lacks_columns: bool) -> None:
    """Who waits for a moment before the pause gets an answer, and isn't told that the other one is still to come."""
    stored = Progress({(TOPIC, 0): 5}, 100, 7, 900_000, {})
    log = log_of(TOPIC, "items", retention_ms=700_000)
    kept = keeper_of(destination(), log, stored, held_tables=PAUSED, lacks_columns=lacks_columns)
    kept.learn([ProgressRecord(200, 200, {TOPIC: (6,), "items": (3,)})])
    assert kept.batch_applied({(TOPIC, 0): 6}, rejected=0).joining == ("items", "paused")
    stored = kept.batch_applied({("items", 0): 3}, rejected=0)
    if lacks_columns:
        assert stored.joining == ("items", "paused"), "rows of it may lack a column that was added before"
        kept.release_watermark()
        released = kept.learn([])
        assert released is not None
        stored = released
    assert (stored.watermark_lsn, stored.joining) == (100, ("paused",))
    assert kept.learn([]) is None


def test_a_table_that_is_read_again_is_judged_by_when_it_left_until_it_has_all() -> None:
    clock = Clock()
    stored = Progress({(TOPIC, 0): 5, ("items", 0): 7}, 100, 7, 900_000, {}, left_at_ms={"items": 400_000})
    resumed = {"items": HeldTable(HeldState.RESUMING, 5)}
    log = log_of(TOPIC, "items", retention_ms=700_000)
    kept = keeper_of(destination(), log, stored, now_ms=clock, held_tables=resumed)
    assert kept.complete_at_ms == 400_000
    kept.learn([ProgressRecord(200, 200, {TOPIC: (9,), "items": (9,)})])
    clock.now_ms = 1_150_000
    with pytest.raises(PositionMismatch, match="items keeps tombstones"):
        kept.batch_applied({("items", 0): 8}, rejected=0)
    stored = kept.batch_applied({(TOPIC, 0): 9}, rejected=0)
    assert (stored.left_at_ms, kept.resuming) == ({"items": 400_000}, {"items"})
    clock.now_ms = 1_050_000
    kept.batch_applied({("items", 0): 9}, rejected=0)
    caught_up = kept.learn([])
    assert caught_up is not None
    assert (caught_up.left_at_ms, caught_up.watermark_lsn, kept.resuming) == ({}, 200, frozenset())


def test_a_topic_that_is_read_for_the_first_time_is_stored_before_anything_of_it() -> None:
    """Its first batch may never come to an end, and has written rows then. So that is no table that is new again."""
    clock, late = Clock(), ("late", 0)
    generations = destination()
    log = log_of(TOPIC, "late", retention_ms={TOPIC: 900_000, "late": 500_000})

    def started(stored: Progress | None) -> ProgressKeeper:
        return keeper_of(generations, log, stored, now_ms=clock)

    started(None).begin()
    assert generations.load_progress() is None, "that a generation has progress says that it was applied to"
    generations.save_progress(Progress({(TOPIC, 0): 5}, 100, 7, 900_000, {TOPIC: "id"}))
    started(generations.load_progress()).begin()
    begun = generations.load_progress()
    assert begun is not None
    assert (begun.next_offsets, begun.updated_at_ms) == ({(TOPIC, 0): 5, late: 0}, 900_000)
    assert (begun.left_at_ms, begun.joining) == ({"late": 1_000_000}, ("late",))
    clock.now_ms += 500_001
    again = started(begun)
    again.begin()
    with pytest.raises(PositionMismatch, match="topic late keeps tombstones"):
        again.batch_applied({late: 3}, rejected=0)
    clock.now_ms -= 1
    again = started(begun)
    again.learn([ProgressRecord(200, 200, {TOPIC: (9,), "late": (3,)})])
    assert again.batch_applied({late: 3}, rejected=0).left_at_ms == {"late": 1_000_000}
    whole = again.batch_applied({(TOPIC, 0): 9}, rejected=0)
    assert (whole.left_at_ms, whole.joining, whole.watermark_lsn) == ({}, (), 200)


def test_a_topic_that_was_never_read_is_judged_by_when_that_began() -> None:
    """However long the sink was away, or has waited for others: a delete of it can't be missing so far."""
    clock = Clock()
    log = log_of(TOPIC, "late", retention_ms=500_000)
    kept = keeper_of(destination(), log, Progress({(TOPIC, 0): 5}, 100, 7, 400_000, {}), now_ms=clock)
    kept.learn([ProgressRecord(200, 200, {TOPIC: (9,), "late": (9,)})])
    assert kept.batch_applied({("late", 0): 8}, rejected=0).joining == ("late",)
    with pytest.raises(PositionMismatch, match=f"topic {TOPIC} keeps tombstones"):
        kept.batch_applied({(TOPIC, 0): 9}, rejected=0)
    clock.now_ms += 500_001
    with pytest.raises(PositionMismatch, match="topic late keeps tombstones"):
        kept.batch_applied({("late", 0): 9}, rejected=0)


def test_other_tables_that_are_captured_are_told_of_though_the_watermark_stays() -> None:
    """Who waits for the sink must not take an older watermark for one of the tables of now."""
    kept, generations = keeper(Progress({(TOPIC, 0): 5}, 100, 7, 0, {}), lacks_columns=True)
    assert kept.learn([], selection="first") == generations.load_progress()
    assert kept.learn([record(200, 9)], selection="first") is None
    told = kept.learn([], selection="second")
    assert told is not None
    assert (told.selection, told.watermark_lsn) == ("second", 100)
    fresh, nothing = keeper()
    assert fresh.learn([], selection="first") is nothing.load_progress() is None, "nothing was ever applied"
    assert kept.learn([]) is None, "nobody knows of others"
    assert kept.batch_applied({(TOPIC, 0): 9}, rejected=0).selection == "second"


def test_the_destination_is_told_which_tables_it_has_all_of() -> None:
    told: list[Collection[TableName] | None] = []

    class Told:
        def save_progress(self, _: Progress, *, written: object, whole: Collection[TableName] | None) -> None:
            told.append(whole)

    orders, items = TableName("public", "orders"), TableName("public", "items")
    stored = Progress({(TOPIC, 0): 5, ("gone", 0): 5}, 100, 7, 1_000_000, {})
    kept = keeper_of(cast("Any", Told()), log_of(TOPIC, "items"), stored)
    kept.begin()
    kept.learn([ProgressRecord(200, 200, {TOPIC: (6,), "items": (3,)})])
    kept.batch_applied({(TOPIC, 0): 6}, rejected=0)
    kept.batch_applied({("items", 0): 3}, rejected=0)
    assert told == [{orders}, {orders}, {orders, items}]


@pytest.mark.parametrize(
    ("topics", "learned", "what"),
    [
        ([TOPIC], {"records": [record(200, 5)]}, {"watermark_lsn": 200}),
        ([TOPIC], {"records": [], "selection": "others"}, {"selection": "others"}),
        ([TOPIC], {"records": [replace(record(200, 9), epoch=1)]}, {"log_epoch": 1, "watermark_lsn": 100}),
        # The watermark that is stored says nothing of a table that joins. Readers hear of it before any batch.
        ([TOPIC, "items"], {"records": []}, {"joining": ("items",), "watermark_lsn": 100}),
    ],
)
def test_what_could_not_be_stored_is_stored_once_the_destination_answers(
    topics: list[str], learned: dict[str, Any], what: dict[str, object]
) -> None:
    away = [Unavailable("the server is away"), Unavailable("it still is")]

    def answer() -> None:
        if away:
            raise away.pop()

    generations = destination()
    stored = Progress({(TOPIC, 0): 5}, 100, 7, 0, {TOPIC: "id"})
    kept = keeper_of(generations, log_of(*topics), stored, check_claim=answer)
    with pytest.raises(Unavailable):
        kept.learn(**learned)
    with pytest.raises(Unavailable):
        kept.learn([])
    told = kept.learn([])
    assert told is not None
    assert {name: getattr(told, name) for name in what} == what
    assert generations.load_progress() == told
    assert kept.learn([]) is None


def test_what_was_read_is_told_while_the_destination_hangs() -> None:
    hangs, told = threading.Event(), list[ReadSoFar]()

    class Hanging:
        def save_progress(self, *_: object, **__: object) -> None:
            hangs.wait()

    kept = keeper_of(cast("Any", Hanging()), log_of(TOPIC), Progress({(TOPIC, 0): 5}, 100, 7, 0, {}))
    kept.learn([record(200, 9)])
    storing = threading.Thread(target=kept.batch_applied, args=({(TOPIC, 0): 6},), kwargs={"rejected": 0})
    storing.start()

    def read() -> None:
        kept.read_to({(TOPIC, 0): 9})
        assert kept.is_behind
        told.append(kept.read_so_far())

    reading = threading.Thread(target=read)
    reading.start()
    reading.join(10)
    hangs.set()
    storing.join()
    assert [(read.records, read.lsn) for read in told] == [(9, 200)]
    assert kept.batch_applied({(TOPIC, 0): 12}, rejected=0).watermark_lsn == 200
    assert kept.read_so_far().records == 12, "what was applied was read"
