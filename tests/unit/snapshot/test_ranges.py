"""snapshot.ranges: every block of every relation is in exactly one part."""

from hypothesis import given
from hypothesis import strategies as st

from cdc.model.table import TableName
from snapshot.ranges import Relation, parts

T = TableName("public", "t")
relations = st.builds(
    Relation,
    st.just(T),
    st.sampled_from(["a", "b", "c"]),
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


def test_a_table_is_split_by_its_bytes_with_large_values() -> None:
    divided = parts([Relation(T, "t", 10, 1000)], 300)
    assert [(part.first, part.end, part.size) for part in divided] == [
        (None, 2, 250),
        (2, 5, 250),
        (5, 7, 250),
        (7, None, 250),
    ]


def test_no_part_is_smaller_than_a_block() -> None:
    assert [(part.first, part.end) for part in parts([Relation(T, "t", 2, 10_000)], 10)] == [(None, 1), (1, None)]


def test_an_empty_table_is_one_part() -> None:
    assert [(part.first, part.end) for part in parts([Relation(T, "t", 0, 0)], 100)] == [(None, None)]


def test_what_has_no_blocks_is_one_part() -> None:
    assert [(part.first, part.end) for part in parts([Relation(T, "t", None, 10_000)], 10)] == [(None, None)]
