"""snapshot.ranges: every block of every relation is in exactly one part."""

from hypothesis import given
from hypothesis import strategies as st

from cdc.model.table import TableName
from snapshot.ranges import Interval, Relation, missing, parts

T = TableName("public", "t")
relations = st.builds(
    Relation,
    st.just(T),
    st.sampled_from(["a", "b", "c"]),
    st.just("1.1"),
    st.none() | st.integers(0, 500),
    st.integers(0, 100_000),
)


@given(st.lists(relations, max_size=4, unique_by=lambda relation: relation.sql), st.integers(1, 20_000))
def test_every_block_is_in_one_part_also_those_that_come_later(made: list[Relation], range_bytes: int) -> None:
    divided = parts(made, range_bytes)
    for relation in made:
        of_it = [part for part in divided if part.sql == relation.sql]
        for block in range((relation.blocks or 0) + 3):
            inside = [part for part in of_it if (part.first or 0) <= block and (part.end is None or block < part.end)]
            assert len(inside) == 1


@given(st.lists(relations, max_size=4), st.integers(1, 20_000))
def test_the_largest_come_first(made: list[Relation], range_bytes: int) -> None:
    sizes = [part.size for part in parts(made, range_bytes)]
    assert sizes == sorted(sizes, reverse=True)


intervals = st.lists(
    st.tuples(st.none() | st.integers(0, 20), st.none() | st.integers(1, 20)).filter(
        lambda interval: interval[1] is None or (interval[0] or 0) < interval[1]
    ),
    max_size=5,
)


def _holds(interval: Interval, block: int) -> bool:
    first, end = interval
    return (first or 0) <= block and (end is None or block < end)


@given(intervals)
def test_a_block_is_missing_or_was_copied(copied: list[Interval]) -> None:
    left = missing(copied)
    for block in range(25):
        assert sum(_holds(interval, block) for interval in left) == (not any(_holds(c, block) for c in copied))


@given(intervals, st.integers(0, 30), st.integers(1, 2000))
def test_only_missing_blocks_are_copied_again_each_once(copied: list[Interval], blocks: int, range_bytes: int) -> None:
    made = parts([Relation(T, "t", "1.1", blocks, 1000)], range_bytes, {(T, "1.1"): copied}, newer=[T])
    for block in range(35):
        of_it = [part.only_newer for part in made if _holds((part.first, part.end), block)]
        assert of_it == [any(_holds(interval, block) for interval in copied)]
