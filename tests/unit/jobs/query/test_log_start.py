"""jobs.query.log_start and jobs.query.progress_at_start: from where a query goes on, and up to where that is true."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.model.errors import PositionMismatch
from cdc.model.table import TableName
from cdc.protocol.control_records import ProgressRecord
from jobs.generations.held_tables import HeldState, HeldTable, load_held_tables
from jobs.query.held_tables import NewlyHeld
from jobs.query.log_facts import LogFacts
from jobs.query.log_start import LogStart
from jobs.query.progress import ProgressKeeper
from jobs.query.progress_at_start import as_of_start, left_topics
from jobs.query.resume_check import TopicFacts
from jobs.query.sink_plan import SinkPlan
from jobs.query.sink_tables import SinkTables
from sinks.contract import OpenedSink, Progress
from sinks.memory import MemoryStore, open_memory
from sinks.redis.settings import RedisSettings
from tests.builders import table
from tests.generations import hold_tables
from tests.keepers import keeper_of, log_of

_NOTHING = cast("Any", None)
_B = TableName("public", "b")


def test_a_watermark_stays_where_a_table_joins_and_names_it_until_it_is_true_of_that_too() -> None:
    """A sink's watermark says that all of its tables are applied up to there."""
    stored = Progress({("p.public.a", 0): 5}, 100, 7, 0, {})

    def keeper(stored: Progress, *topics: str, uncopied: str = "") -> ProgressKeeper:
        opened = open_memory(MemoryStore())
        opened.sink.prepare([table()])
        opened.sink.claim()
        log = log_of(*topics, uncopied=uncopied)
        return keeper_of(opened.generations, log, stored, selection="after")

    a, b = ("p.public.a", 0), ("p.public.b", 0)
    alone = keeper(stored, "p.public.a").batch_applied({a: 5}, rejected=0)
    assert (alone.watermark_lsn, alone.joining, alone.selection) == (100, (), "after")
    waiting = keeper(stored, "p.public.a", uncopied="b").batch_applied({a: 5}, rejected=0)
    assert (waiting.watermark_lsn, waiting.joining) == (100, ("p.public.b",)), "its copy hasn't begun"
    begun = keeper(stored, "p.public.a", "p.public.b").batch_applied({a: 5, b: 1}, rejected=0)
    assert (begun.watermark_lsn, begun.commit_time_ms, begun.joining) == (100, 7, ("p.public.b",))
    again = keeper(begun, "p.public.a", "p.public.b")
    again.learn([ProgressRecord(100, 7, {a[0]: (5,), b[0]: (3,)})])
    assert again.batch_applied({b: 2}, rejected=0).joining == ("p.public.b",), "also after a restart in the middle"
    whole = again.batch_applied({b: 3}, rejected=0)
    assert (whole.watermark_lsn, whole.joining) == (100, ()), "also where nothing was committed meanwhile"
    left = keeper(begun, "p.public.a").batch_applied({a: 5}, rejected=0)
    assert (left.watermark_lsn, left.joining) == (100, ()), "it was true of the others all the time"


_HOUR_MS = 3_600_000


def _refused_in_its_first_batch(clock: list[int]) -> OpenedSink:
    """A sink that has table a for long, after a batch that has written rows of table b, and was refused.

    ``clock`` is the time, in milliseconds. An hour later the sink has gone on with a alone.
    """
    opened = open_memory(MemoryStore())
    opened.sink.prepare([table()])
    opened.sink.claim()
    at = ("p.public.a", 0)
    opened.generations.save_progress(Progress({at: 5}, 100, 7, clock[0] - _HOUR_MS, {at[0]: "id"}))
    stored = opened.generations.load_progress()
    keeper_of(opened.generations, _log("a", "b"), stored, now_ms=lambda: clock[0]).begin()
    clock[0] += _HOUR_MS
    stored, held_tables = opened.generations.load_progress(), {"p.public.b": HeldTable(HeldState.FAILED, clock[0])}
    alone = keeper_of(opened.generations, _log("a"), stored, now_ms=lambda: clock[0], held_tables=held_tables)
    alone.learn([ProgressRecord(200, 200, {at[0]: (6,), "p.public.b": (9,)})])
    alone.batch_applied({at: 6}, rejected=0)
    return opened


_PLAN = SinkPlan("s", RedisSettings(), 1, "p", _NOTHING, [TableName("public", "a"), _B], _NOTHING, once=False)


def _log(*names: str, b_is: str = "theirs") -> LogFacts:
    ids = {"a": "id", "b": b_is}
    facts = {f"p.public.{name}": TopicFacts(ids[name], 1, 24 * _HOUR_MS) for name in names}
    return LogFacts({}, [], facts, {f"p.public.{name}": TableName("public", name) for name in names})


@pytest.mark.parametrize(
    ("hours", "b_is", "refused"),
    [(22, "theirs", None), (24, "theirs", "deletes may be missing"), (1, "another", "was recreated")],
)
def test_rows_of_a_table_that_failed_in_its_first_batch_may_have_lost_their_deletes(
    hours: int, b_is: str, refused: str | None
) -> None:
    """The destination may have rows of it, though nothing counts as applied."""
    clock = [1_000 * _HOUR_MS]
    opened = _refused_in_its_first_batch(clock)
    clock[0] += hours * _HOUR_MS + 1
    stored = opened.generations.load_progress()
    assert stored is not None
    assert stored.joining == ("p.public.b",)
    tables = SinkTables(_PLAN, report=lambda _: None)
    lease = hold_tables(tables, opened, {_B: HeldTable(HeldState.RESUMING, 5)})
    log = _log("a", "b", b_is=b_is)
    cluster = cast("Any", SimpleNamespace(begin_offsets=lambda partitions: dict.fromkeys(partitions, 0)))
    ends = {("p.public.a", 0): 6, ("p.public.b", 0): 9}
    start = LogStart(tables, opened, lease, {}, cluster)
    if refused is None:
        start.check_resuming(log, stored, ends=ends, now_ms=clock[0])
        held_tables = {"p.public.b": tables.held.now[_B]}
        keeper = keeper_of(opened.generations, log, stored, now_ms=lambda: clock[0], held_tables=held_tables)
        clock[0] += _HOUR_MS
        with pytest.raises(PositionMismatch, match=r"topic p\.public\.b keeps tombstones"):
            keeper.batch_applied({("p.public.b", 0): 9}, rejected=0)
        return
    with pytest.raises(NewlyHeld):
        start.check_resuming(log, stored, ends=ends, now_ms=clock[0])
    held = load_held_tables(opened.records, 1)[_B]
    assert held.state is HeldState.FAILED
    assert refused in str(held.reason)


def test_a_table_that_is_read_for_the_first_time_is_no_table_that_had_left() -> None:
    """It is paused like any other: the watermark waits for it. One that had left holds nothing up."""
    opened = _refused_in_its_first_batch([1_000 * _HOUR_MS])
    stored = opened.generations.load_progress()
    assert stored is not None
    assert "p.public.b" in stored.left_at_ms
    assert left_topics(stored) == set()
    assert left_topics(replace(stored, joining=())) == {"p.public.b"}
    assert left_topics(replace(stored, joining=(), watermark_lsn=0)) == set()


def test_a_sink_that_was_away_is_not_behind_because_of_a_table_that_it_has_just_begun_to_read() -> None:
    at, late = ("p.public.a", 0), ("p.public.late", 0)
    stored = Progress({at: 5, late: 0}, 100, 7, 1_000, {}, left_at_ms={late[0]: 900})
    quiet = as_of_start(stored, {at: 5, late: 9}, 900_000)
    assert quiet is not None
    assert (quiet.updated_at_ms, quiet.left_at_ms) == (900_000, {late[0]: 900})


def test_the_watermark_waits_for_a_table_whose_copy_has_not_begun() -> None:
    """The sink reads nothing of it, and is said to have it once its copy is there."""
    opened = open_memory(MemoryStore())
    opened.sink.prepare([table()])
    opened.sink.claim()
    topic = "p.public.orders"
    keeper = keeper_of(opened.generations, log_of(topic, uncopied="late"))
    keeper.batch_applied({(topic, 0): 5}, rejected=0)
    for record in (
        ProgressRecord(100, 0, {topic: (5,), "p.public.late": (0,)}, uncopied=("p.public.late",)),
        ProgressRecord(200, 0, {topic: (5,), "p.public.late": (3,)}),
    ):
        keeper.learn([record])
        assert keeper.batch_applied({(topic, 0): 5}, rejected=0).watermark_lsn == 0


def test_a_table_that_joins_is_read_from_now_on_however_long_the_sink_was_away() -> None:
    """Nothing of it is older than the first look at it: no delete can be missing."""
    at, late = ("p.public.a", 0), ("p.public.late", 0)
    stored = Progress({at: 5}, 100, 7, 1_000, {})
    quiet = as_of_start(stored, {at: 5, late: 9}, 900_000)
    assert quiet is not None
    assert quiet.updated_at_ms == 900_000
    assert as_of_start(stored, {at: 6, late: 9}, 900_000) is stored, "a table that it had has gone on"


def test_a_sink_that_was_away_for_long_and_missed_nothing_is_not_behind() -> None:
    """Its first batch may come before the thread that follows the watermark has looked once."""
    at, other = ("p.public.a", 0), ("p.public.b", 0)
    stored = Progress({at: 5, other: 3}, 100, 7, 1_000, {})
    assert as_of_start(stored, {at: 6}, 9_000) is stored
    again = replace(stored, reads_again={at: 4})
    assert as_of_start(again, {at: 5}, 9_000) is again, "what is read again isn't complete"
    started = as_of_start(stored, {at: 5}, 9_000)
    assert started is not None
    assert (started.updated_at_ms, started.left_at_ms) == (9_000, {"p.public.b": 1_000})
    assert as_of_start(None, {at: 0}, 9_000) is None
    # Of a part that was left out nobody knows more than before.
    beyond = as_of_start(replace(stored, skipped={at: 9}), {at: 9}, 9_000)
    assert beyond is not None
    assert (beyond.updated_at_ms, beyond.read_at_ms) == (1_000, 9_000)
    behind = replace(stored, skipped={at: 8})
    assert as_of_start(behind, {at: 9}, 9_000) is behind


def test_a_topic_that_is_read_no_longer_keeps_the_time_at_which_itleft_topics() -> None:
    """When it is read again it is a table that joins: the watermark isn't true of it yet."""
    stored = Progress({("p.public.a", 0): 5, ("p.public.b", 0): 3}, 100, 7, 1_000, {})

    def after(before: Progress, *topics: str) -> Progress:
        opened = open_memory(MemoryStore())
        opened.sink.prepare([table()])
        opened.sink.claim()
        return keeper_of(opened.generations, log_of(*topics), before).batch_applied({("p.public.a", 0): 6}, rejected=0)

    without = after(stored, "p.public.a")
    assert (without.left_at_ms, without.watermark_lsn) == ({"p.public.b": 1_000}, 100)
    later = replace(without, updated_at_ms=9_000)
    assert after(later, "p.public.a").left_at_ms == {"p.public.b": 1_000}
    back = after(later, "p.public.a", "p.public.b")
    assert (back.left_at_ms, back.watermark_lsn) == ({"p.public.b": 1_000}, 100), "it lacks deletes from that time on"
    assert (without.joining, back.joining) == ((), ("p.public.b",))


@pytest.mark.parametrize(
    ("state", "awaited", "reads", "expected"),
    [
        (HeldState.PAUSED, True, False, 100),
        (HeldState.FAILED, True, False, 100),
        (HeldState.RESUMING, True, True, 100),
        (HeldState.OUT, False, False, 200),
        (HeldState.RESUMING, False, True, 100),
        # It came back, and can't be read: since nobody has taken it out, nobody may be told that the sink has all.
        (HeldState.FAILED, False, False, 100),
        (None, False, True, 100),
    ],
)
def test_the_watermark_waits_for_a_paused_table_and_not_for_one_that_was_out(
    state: HeldState | None, awaited: bool, reads: bool, expected: int
) -> None:
    """One that comes back after it was out lacks what the watermark has passed meanwhile."""
    kept, held = "p.public.a", "p.public.b"
    stored = Progress({(kept, 0): 5, (held, 0): 3}, 100, 7, 0, {}, left_at_ms={held: 4})
    opened = open_memory(MemoryStore())
    opened.sink.prepare([table()])
    opened.sink.claim()
    log = log_of(*([kept, held] if reads else [kept]))
    held_tables = {} if state is None else {held: HeldTable(state, 5, awaited=awaited)}
    keeper = keeper_of(opened.generations, log, stored, held_tables=held_tables)
    keeper.learn([ProgressRecord(200, 200, {kept: (6,), held: (9,)})])
    progress = keeper.batch_applied({(kept, 0): 6}, rejected=0)
    assert progress.watermark_lsn == expected
    lacks = (reads or state is HeldState.FAILED) and not awaited
    assert progress.joining == ((held,) if lacks else ()), "it isn't true of one that was out"
    assert progress.next_offsets[held, 0] == 3
    assert progress.left_at_ms == {held: 4}
