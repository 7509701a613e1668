"""The watermark: what is covered, and what never holds it back or lets it run ahead."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.protocol.control_records import ProgressRecord
from jobs.query import watermark as module
from jobs.query.watermark import Watermark

ORDERS, ITEMS, OTHER = "shop.public.orders", "shop.public.items", "shop.public.other"


def record(lsn: int, **bounds: Sequence[int]) -> ProgressRecord:
    names = {"orders": ORDERS, "items": ITEMS, "other": OTHER}
    return ProgressRecord(lsn, lsn * 10, {names[name]: tuple(ends) for name, ends in bounds.items()})


def watermark(*records: ProgressRecord, lsn: int = 0) -> Watermark:
    result = Watermark([ORDERS, ITEMS], lsn=lsn)
    for each in records:
        result.add(each, learned_at_ms=each.lsn)
    return result


def test_a_record_is_covered_once_every_partition_has_reached_its_bound() -> None:
    mark = watermark(record(100, orders=(5, 3)))
    assert not mark.advance({(ORDERS, 0): 5, (ORDERS, 1): 2})
    assert mark.lsn == 0
    assert mark.advance({(ORDERS, 0): 5, (ORDERS, 1): 3})
    assert (mark.lsn, mark.commit_time_ms) == (100, 1000)


def test_a_covered_record_after_an_uncovered_one_raises_nothing() -> None:
    mark = watermark(record(100, orders=(5,)), record(200, items=(1,)))
    assert not mark.advance({(ORDERS, 0): 4, (ITEMS, 0): 1})
    assert mark.lsn == 0


def test_an_idle_partition_holds_nothing_back() -> None:
    mark = watermark(record(100, orders=(5,), items=(0, 0)), record(200, orders=(6,)))
    assert mark.advance({(ORDERS, 0): 6})
    assert mark.lsn == 200


def test_a_heartbeat_waits_for_the_record_before_it() -> None:
    mark = watermark(record(100, orders=(5,)), record(200), record(300))
    assert not mark.advance({(ORDERS, 0): 4})
    assert mark.advance({(ORDERS, 0): 5})
    assert mark.lsn == 300


def test_it_goes_on_from_what_was_stored_and_never_back() -> None:
    mark = watermark(record(100, orders=(5,)), lsn=150)
    assert not mark.advance({(ORDERS, 0): 5})
    assert mark.lsn == 150


def test_waiting_records_are_bounded_and_still_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 4)
    mark = watermark(*(record(n, orders=(n,)) for n in range(1, 101)))
    reached = []
    for offset in range(1, 101):
        mark.advance({(ORDERS, 0): offset})
        assert mark.lsn <= offset
        reached.append(mark.lsn)
    assert reached[-1] == 100
    assert len(set(reached)) <= 5


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[ProgressRecord], list[dict[tuple[str, int], int]]]:
    """A log as capture writes it, whose first record bounds everything, and growing offsets of a sink that reads it."""
    ends = {(topic, partition): draw(st.integers(0, 3)) for topic in (ORDERS, ITEMS) for partition in range(2)}
    records = []
    for number in range(draw(st.integers(1, 12))):
        touched = [ORDERS, ITEMS] if number == 0 else draw(st.lists(st.sampled_from([ORDERS, ITEMS]), unique=True))
        for topic in touched:
            for partition in range(2):
                ends[topic, partition] += draw(st.integers(0, 3))
        bounds = {topic: (ends[topic, 0], ends[topic, 1]) for topic in touched}
        records.append(ProgressRecord((number + 1) * 100, 0, bounds))
    applied = dict.fromkeys(ends, 0)
    steps = []
    for _ in range(draw(st.integers(1, 8))):
        for at in applied:
            applied[at] += draw(st.integers(0, 8))
        steps.append(dict(applied))
    return records, steps


def covered(each: ProgressRecord, applied: Mapping[tuple[str, int], int]) -> bool:
    return all(
        applied[topic, partition] >= bound
        for topic, ends in each.bounds.items()
        for partition, bound in enumerate(ends)
    )


@given(logs(), st.data())
def test_it_is_the_newest_record_before_the_first_uncovered_one(
    log: tuple[list[ProgressRecord], list[dict[tuple[str, int], int]]], data: st.DataObject
) -> None:
    records, steps = log
    mark = Watermark([ORDERS, ITEMS])
    known = 0
    before = 0
    for applied in steps:
        arrived = data.draw(st.integers(known, len(records)), label="records that have arrived")
        for each in records[known:arrived]:
            mark.add(each, learned_at_ms=0)
        known = arrived
        mark.advance(applied)
        expected = 0
        for each in records[:known]:
            if not covered(each, applied):
                break
            expected = each.lsn
        assert mark.lsn == max(before, expected)
        before = mark.lsn


def test_a_record_that_does_not_hold_for_a_table_of_the_sink_raises_nothing_and_holds_nothing_up() -> None:
    """The table waits for its copy: what lies below the bounds isn't all that was committed."""
    waits = replace(record(200, orders=(6,)), uncopied=(ORDERS,))
    mark = watermark(record(100, orders=(5,)), waits, replace(record(300), uncopied=(ORDERS,)))
    mark.advance({(ORDERS, 0): 6})
    assert (mark.lsn, mark.behind_since_ms) == (100, None)
    mark.add(record(400, orders=(9,)), learned_at_ms=1)
    assert not mark.advance({(ORDERS, 0): 8})
    assert mark.advance({(ORDERS, 0): 9})
    assert mark.lsn == 400


def test_a_new_epoch_begins_with_nothing_known_though_its_lsns_are_smaller() -> None:
    mark = watermark(record(900, orders=(5,)))
    mark.advance({(ORDERS, 0): 5})
    mark.add(replace(record(0), epoch=1, uncopied=(ORDERS, ITEMS)), learned_at_ms=1)
    assert mark.advance({(ORDERS, 0): 5})
    assert (mark.epoch, mark.lsn) == (1, 0)
    mark.add(replace(record(300, orders=(7,)), epoch=1), learned_at_ms=2)
    assert mark.advance({(ORDERS, 0): 7})
    assert (mark.epoch, mark.lsn) == (1, 300)


def test_what_joins_is_named_until_a_record_of_all_is_covered_also_of_the_same_lsn() -> None:
    mark = Watermark([ORDERS, ITEMS], lsn=100, commit_time_ms=1000, joining=[ITEMS])
    mark.add(replace(record(100, orders=(5,), items=(0,)), uncopied=(ITEMS,)), learned_at_ms=0)
    assert not mark.advance({(ORDERS, 0): 5})
    mark.add(record(100, items=(3,)), learned_at_ms=0)
    assert not mark.advance({(ORDERS, 0): 5, (ITEMS, 0): 2})
    assert (mark.lsn, mark.joining) == (100, (ITEMS,))
    assert mark.advance({(ORDERS, 0): 5, (ITEMS, 0): 3})
    assert (mark.lsn, mark.joining) == (100, ())
