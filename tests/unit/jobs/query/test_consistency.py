"""What is kept of a generation's consistency, and which generation can't have it."""

import pytest

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from jobs.consistency import Consistency, known_consistency, load_consistency, save_consistency
from jobs.query.consistency import check_can_be_consistent, keep_consistency
from jobs.query.start_position import StartPosition
from sinks.memory import MemoryRecords, MemoryStore
from tests.builders import progress


def test_each_step_has_its_lsn_and_that_of_the_first_one() -> None:
    first = Consistency().after(epoch=1, lsn=16, commit_time_ms=5)
    assert (first.is_reached, Consistency().is_reached) == (True, False)
    assert first.after(epoch=1, lsn=24, commit_time_ms=6) == Consistency(1, 24, 6, since_lsn=16)


def test_a_job_that_applies_records_as_they_come_takes_the_promise_back() -> None:
    records, reached = MemoryRecords(MemoryStore()), Consistency(1, 16, 5, 16)
    assert not keep_consistency(records, 1, applies_steps=False)
    assert load_consistency(records, 1) is None
    assert keep_consistency(records, 1, applies_steps=True)
    assert keep_consistency(records, 1, applies_steps=True)
    assert load_consistency(records, 1) == Consistency()
    save_consistency(records, 1, reached)
    assert not keep_consistency(records, 1, applies_steps=True)
    assert load_consistency(records, 1) == reached
    assert not keep_consistency(records, 1, applies_steps=False)
    assert load_consistency(records, 1) is None


@pytest.mark.parametrize(
    ("skipped", "start", "words"),
    [
        ({("shop.public.orders", 0): 9}, StartPosition(), "left out"),
        ({}, StartPosition(1, None, overwrite_equal_tags=True), "in place"),
    ],
)
def test_a_generation_that_lacks_a_part_of_the_log_or_mixes_rows_is_refused(
    skipped: dict[tuple[str, int], int], start: StartPosition, words: str
) -> None:
    with pytest.raises(LockstepError, match=words) as raised:
        check_can_be_consistent("dwh", progress(skipped=skipped), start)
    assert "lockstep rebuild dwh --switch" in (raised.value.hint or "")
    check_can_be_consistent("dwh", progress(), StartPosition(2, {("shop.public.orders", 0): 3}))
    check_can_be_consistent("dwh", None, StartPosition())


def test_people_are_told_as_of_when_the_tables_are_and_which_are_not() -> None:
    records = MemoryRecords(MemoryStore())
    assert known_consistency(records, 1, None, asides=(), pipeline="shop") is None
    save_consistency(records, 1, Consistency())
    being_filled = known_consistency(records, 1, None, asides=(), pipeline="shop")
    assert being_filled is not None
    assert "parts of transactions" in being_filled.text
    assert being_filled.to_json() == {"lsn": None, "since_lsn": None, "commit_time_ms": None, "but_tables": []}
    save_consistency(records, 1, Consistency(1, 0x20, 5, 0x10))
    known = known_consistency(records, 1, progress(), asides=[TableName("public", "orders")], pipeline="shop")
    assert known is not None
    assert known.text == "its tables are together as of 0/20, as they have been since 0/10, but for public.orders"
    assert known.to_json() == {
        "lsn": "0/20",
        "since_lsn": "0/10",
        "commit_time_ms": 5,
        "but_tables": ["public.orders"],
    }


def test_a_table_that_has_left_or_joins_is_named_as_one_that_is_not_together_with_the_others() -> None:
    records = MemoryRecords(MemoryStore())
    save_consistency(records, 1, Consistency(1, 0x20, 5, 0x10))
    moved = progress(left_at_ms={"shop.public.gone": 5}, joining=("shop.public.new-2dcomer", "shop.public.orders"))
    known = known_consistency(records, 1, moved, asides=[TableName("public", "orders")], pipeline="shop")
    assert known is not None
    assert known.text.endswith(', but for public.gone, public."new-comer", public.orders')
