"""sinks.stored_progress: what lies below a watermark"""

from typing import Any

import pytest

from cdc.model.errors import DataLost
from cdc.model.tag import Tag
from sinks.stored_progress import applied_below, check_stored, watermark_tag
from tests.builders import progress


def test_all_of_a_transaction_before_the_watermark_is_below_the_bound_and_nothing_from_there_on() -> None:
    bound = applied_below(progress(0x500, epoch=2))
    assert bound is not None
    assert str(Tag(2, 0x4FF, 7_000_000)) < bound
    assert str(Tag(1, 0x900, 1)) < bound
    assert not str(Tag(2, 0x500, 0)) < bound


@pytest.mark.parametrize(
    "left", [{"watermark_lsn": 0}, {"skipped": {("t", 0): 5}}, {"left_at_ms": {"t": 5}}, {"joining": ("t",)}]
)
def test_there_is_none_where_something_may_not_have_been_applied(left: dict[str, Any]) -> None:
    assert applied_below(progress(**{"epoch": 2, **left})) is None


def test_a_topic_that_lacks_nothing_has_a_bound_of_its_own_beside_others_that_do() -> None:
    """A table that has left for good must not keep the others from being cleared away."""
    left = progress(
        0x500, epoch=2, left_at_ms={"gone": 5}, joining=("late",), skipped={("out", 0): 3}, next_offsets={("t", 0): 1}
    )
    assert applied_below(left, "t") == watermark_tag(left)
    assert [applied_below(left, topic) for topic in ("gone", "late", "out")] == [None] * 3
    assert applied_below(progress(0), "t") is None


P0 = ("t", 0)


@pytest.mark.parametrize("stored", [({P0: 8}, {P0: 8}), ({P0: 20},), ()])
def test_a_destination_that_lacks_what_one_shard_of_a_view_has_stored_was_put_back(
    stored: tuple[dict[tuple[str, int], int], ...],
) -> None:
    """The view is where its last shard is, and stays there while the other one gets on."""
    known = progress(next_offsets={P0: 8}, shards=({P0: 20}, {P0: 8}))
    following = progress(next_offsets={P0: 10}, shards=({P0: 20}, {P0: 10}))
    check_stored(known, known, following=following, destination="redis")
    with pytest.raises(DataLost, match="redis lacks progress"):
        check_stored(known, progress(next_offsets={P0: 8}, shards=stored), following=following, destination="redis")
