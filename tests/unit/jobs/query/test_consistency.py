"""What is kept of a generation's consistency, and which generation can't have it."""

from dataclasses import replace

import pytest

from cdc.model.errors import Fenced, LockstepError
from cdc.model.table import TableName
from jobs.consistency import Consistency, known_consistency, load_consistency, save_consistency
from jobs.query.consistency import (
    check_can_be_consistent,
    claim_and_keep,
    keep_consistency,
    kept_consistency,
)
from sinks.memory import MemorySink, MemoryStore
from tests.builders import progress
from tests.generations import ORDERS
from tests.stepping import SteppingStore, open_stepping

A, B = ("shop.public.a", 0), ("shop.public.b", 0)
REACHED = Consistency(1, 16, 5, 16)


class Generation:
    """One whose jobs come one after the other."""

    def __init__(self) -> None:
        self.opened = open_stepping(SteppingStore())
        self.opened.sink.prepare([ORDERS])

    @property
    def record(self) -> Consistency | None:
        return load_consistency(self.opened.records, 1)

    def keep(self, record: Consistency | None) -> None:
        save_consistency(self.opened.records, 1, record)

    def begin(self, *, applies_steps: bool = True) -> bool:
        """A job begins. Whether it lacks its first step."""
        known = kept_consistency(self.opened, 1)
        fence = self.opened.sink.claim()
        return keep_consistency(self.opened, 1, known, fence=fence, applies_steps=applies_steps)


def test_a_job_that_applies_records_as_they_come_takes_the_promise_back() -> None:
    generation = Generation()
    assert not generation.begin(applies_steps=False)
    assert generation.record is None
    assert generation.begin()
    assert generation.begin()
    assert generation.record == Consistency(fence=3)
    generation.keep(replace(REACHED, fence=3))
    assert not generation.begin()
    assert generation.record == replace(REACHED, fence=4)
    assert not generation.begin(applies_steps=False)
    assert generation.record is None


def test_a_job_that_knows_nothing_of_the_record_has_made_it_void() -> None:
    """An earlier version applies records as they come, and leaves the record as it is."""
    generation = Generation()
    generation.begin()
    generation.keep(replace(REACHED, fence=1))
    generation.opened.sink.claim()
    assert kept_consistency(generation.opened, 1) is None
    assert generation.begin()
    assert generation.record == Consistency(fence=3)


def test_a_claim_for_another_reason_leaves_the_record_true() -> None:
    generation = Generation()
    assert claim_and_keep(generation.opened, 1, generation.opened.sink.claim) == 1
    assert generation.record is None
    generation.begin()
    generation.keep(replace(REACHED, fence=2))
    assert claim_and_keep(generation.opened, 1, generation.opened.sink.claim) == 3
    assert generation.record == replace(REACHED, fence=3)
    assert not generation.begin()


def test_a_step_that_the_job_before_makes_meanwhile_counts() -> None:
    generation = Generation()
    generation.begin()
    generation.keep(replace(REACHED, fence=1))
    known = kept_consistency(generation.opened, 1)
    generation.keep(Consistency(1, 24, 6, 16, fence=1))
    fence = generation.opened.sink.claim()
    assert not keep_consistency(generation.opened, 1, known, fence=fence, applies_steps=True)
    assert generation.record == Consistency(1, 24, 6, 16, fence=2)


def test_a_job_that_was_replaced_changes_no_record() -> None:
    generation = Generation()
    generation.begin()
    fence = generation.opened.sink.claim()
    generation.begin()
    for applies_steps in (True, False):
        with pytest.raises(Fenced):
            keep_consistency(generation.opened, 1, None, fence=fence, applies_steps=applies_steps)
    assert generation.record == Consistency(fence=3)


def test_a_generation_that_lacks_a_part_of_the_log_is_refused() -> None:
    with pytest.raises(LockstepError, match="left out") as raised:
        check_can_be_consistent("dwh", progress(skipped={("shop.public.orders", 0): 9}))
    assert "lockstep rebuild dwh --switch" in (raised.value.hint or "")
    check_can_be_consistent("dwh", progress())
    check_can_be_consistent("dwh", None)


def test_people_are_told_as_of_when_the_tables_are_and_which_are_not() -> None:
    records = MemorySink(MemoryStore())
    assert known_consistency(records, 1, None, held_tables=(), pipeline="shop") is None
    save_consistency(records, 1, Consistency())
    being_filled = known_consistency(records, 1, None, held_tables=(), pipeline="shop")
    assert being_filled is not None
    assert "parts of transactions" in being_filled.text
    assert being_filled.to_json() == {"lsn": None, "since_lsn": None, "commit_time_ms": None, "but_tables": []}
    save_consistency(records, 1, Consistency(1, 0x20, 5, 0x10))
    known = known_consistency(records, 1, progress(), held_tables=[TableName("public", "orders")], pipeline="shop")
    assert known is not None
    assert known.text == "its tables are together as of 0/20; they first were as of 0/10, but for public.orders"
    assert known.to_json() == {
        "lsn": "0/20",
        "since_lsn": "0/10",
        "commit_time_ms": 5,
        "but_tables": ["public.orders"],
    }


def test_a_table_that_has_left_or_joins_is_named_as_one_that_is_not_together_with_the_others() -> None:
    records = MemorySink(MemoryStore())
    save_consistency(records, 1, Consistency(1, 0x20, 5, 0x10))
    moved = progress(left_at_ms={"shop.public.gone": 5}, joining=("shop.public.new-2dcomer", "shop.public.orders"))
    known = known_consistency(records, 1, moved, held_tables=[TableName("public", "orders")], pipeline="shop")
    assert known is not None
    assert known.text.endswith(', but for public.gone, public."new-comer", public.orders')
