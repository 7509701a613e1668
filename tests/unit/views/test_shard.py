"""A shard of a view: rows that come to it and leave it, what it keeps, and which rows of the sink are its own."""

from collections.abc import Mapping
from typing import Any

import pytest

from cdc.model.event import Events, JsonValue, Position, RowEvent, TableEvents
from cdc.model.table import TableName
from cdc.model.tag import Tag
from tests.view_queries import column, shape
from views.shard import shards
from views.sharding import sharding_of
from views.sql.reader import read_view
from views.state.memory import MemoryState
from views.view import View, identity

LIKES, POSTS = TableName("public", "likes"), TableName("public", "posts")
TABLES = {
    LIKES: shape("likes", ["id"], column("id", "int4"), column("post", "int4")),
    POSTS: shape("posts", ["id"], column("id", "int4"), column("title", "text")),
}


class Sharded:
    """Both shards of a view, and what a sink has of each."""

    def __init__(self) -> None:
        self.plan = read_view(
            "select p.id, count(l.id) as likes from posts p left join likes l on l.post = p.id group by p.id",
            TABLES,
            key=["id"],
        )
        self.shards = shards(sharding_of(self.plan, 2), 2)
        self.states = [MemoryState() for _ in self.shards]
        self.views = [
            View(self.plan, TABLES, state, shard=shard) for shard, state in zip(self.shards, self.states, strict=True)
        ]
        self.lsn = 0

    def step(self, *events: tuple[TableName, int, Mapping[str, JsonValue] | None]) -> list[list[tuple[int, Any]]]:
        """A transaction. What each shard writes: keys, and the likes that the row has, None where it is gone."""
        self.lsn += 8
        written = []
        for view in self.views:
            made = [
                RowEvent(table, {"id": key}, str(Tag(1, self.lsn, seq)), row, Position("t", 0, seq))
                for seq, (table, key, row) in enumerate(events, start=1)
            ]
            view.step(made, epoch=1, lsn=self.lsn, offsets={("t", 0): self.lsn})
            output = view.pending()
            changes = [] if output is None else output.changes
            written.append([(int(str(c.key["id"])), None if c.row is None else c.row["likes"]) for c in changes])
            if output is not None:
                view.acknowledge(output)
        return written


def post(number: int) -> tuple[TableName, int, Mapping[str, JsonValue]]:
    return POSTS, number, {"id": number, "title": "t"}


def like(number: int, post: int) -> tuple[TableName, int, Mapping[str, JsonValue]]:
    return LIKES, number, {"id": number, "post": post}


@pytest.fixture
def sharded() -> Sharded:
    return Sharded()


def one_of_each(sharded: Sharded) -> tuple[int, int]:
    """A post of the first shard, and one of the second."""
    first, second = (next(n for n in range(1, 100) if shard.has(n)) for shard in sharded.shards)
    return first, second


def test_a_row_that_moves_to_another_shard_is_gone_here_and_new_there(sharded: Sharded) -> None:
    first, second = one_of_each(sharded)
    assert sharded.step(post(first), post(second), like(1, first)) == [[(first, 1)], [(second, 0)]]
    assert sharded.step(like(1, second)) == [[(first, 0)], [(second, 1)]]
    assert sharded.step(like(1, first), like(2, second)) == [[(first, 1)], []]
    assert sharded.step((LIKES, 1, None), (LIKES, 2, None)) == [[(first, 0)], [(second, 0)]]


def test_a_shard_keeps_its_own_rows_alone(sharded: Sharded) -> None:
    first, second = one_of_each(sharded)
    sharded.step(post(first), post(second), like(1, first), like(2, first), like(3, second))
    mirrored = [len(list(state.read(lambda reading: list(reading.scan(b"m"))))) for state in sharded.states]
    assert mirrored == [3, 2]


def test_rows_of_another_shard_are_not_looked_at_where_their_key_says_so(sharded: Sharded) -> None:
    """A column that lacks would fail the step of whoever reads the row."""
    first, second = one_of_each(sharded)
    broken = RowEvent(POSTS, {"id": second}, str(Tag(1, 8, 1)), {}, Position("t", 0, 1))
    sharded.views[0].step([broken], epoch=1, lsn=8, offsets={})
    with pytest.raises(Exception, match="'id' is missing"):
        sharded.views[1].step([broken], epoch=1, lsn=8, offsets={})
    assert first != second


def test_rows_that_are_another_shards_by_their_key_need_not_be_parsed(sharded: Sharded) -> None:
    first, second = one_of_each(sharded)
    keys = [b'{"id":%d}' % number for number in (first, second, first)]
    posts = TableEvents.from_log(POSTS, keys, ["a", "b", "c"], [b"{}", b"no JSON", None], lambda _: Position("t", 0, 1))
    likes = TableEvents.from_log(LIKES, keys, ["d", "e", "f"], [b"{}", b"{}", None], lambda _: Position("t", 0, 1))
    own = sharded.views[0].own_events(Events([posts, likes]))
    assert [[event.tag for event in of_table] for of_table in own.tables] == [["a", "c"], ["d", "e", "f"]]
    assert [[event.tag for event in of_table] for of_table in sharded.views[1].own_events(Events([likes])).tables] == [
        ["d", "e", "f"]
    ]


def test_what_the_sink_has_of_other_shards_is_left_alone(sharded: Sharded) -> None:
    first, second = one_of_each(sharded)
    view = sharded.views[0]
    view.begin_building()
    view.end_building(epoch=1, lsn=8, offsets={})
    assert (view.result.is_own({"id": first}), view.result.is_own({"id": second})) == (True, False)
    view.arrange([({"id": first}, {"id": first, "likes": 1}), ({"id": second}, {"id": second, "likes": 1})])
    view.end_arranging()
    output = view.pending()
    assert output is not None
    assert [(change.key, change.row) for change in output.changes] == [({"id": first}, None)]


def test_a_state_belongs_to_one_shard_of_one_number(sharded: Sharded) -> None:
    sharding = sharded.shards[0].sharding
    of = [None, *sharded.shards, *shards(sharding, 3)]
    assert len({identity(sharded.plan, TABLES, shard) for shard in of}) == len(of)
    assert [shard.name for shard in sharded.shards] == ["shard-1-of-2", "shard-2-of-2"]


def test_each_value_is_of_one_shard_and_they_are_about_as_many_in_each(sharded: Sharded) -> None:
    four = shards(sharded.shards[0].sharding, 4)
    of = [[shard.number for shard in four if shard.has(value)] for value in (*range(1000), None, True, "a")]
    assert all(len(numbers) == 1 for numbers in of)
    counts = [sum(numbers == [number] for numbers in of) for number in range(4)]
    assert max(counts) < 1.3 * min(counts)
    # The same in each process and each version: what states and sinks hold goes by it.
    assert [numbers[0] for numbers in of[:8] + of[1000:]] == [1, 2, 0, 1, 2, 0, 0, 2, 2, 3, 0]
