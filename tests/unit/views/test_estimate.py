"""The estimate of a view's cost is about what its engine does, on tables whose statistics are known to the row."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cdc.model.event import JsonValue, Position, RowEvent
from cdc.model.statistics import ColumnStatistics, TableStatistics
from cdc.model.table import TableName
from cdc.model.tag import Tag
from tests.view_queries import column, shape
from views.estimate import ChangeCost, Estimate, estimate
from views.sql.reader import TopRows, read_view
from views.state.file import FileState
from views.view import View, identity

USERS, POSTS, LIKES = (TableName("public", name) for name in ("users", "posts", "likes"))
TABLES = {
    table.name: table
    for table in (
        shape("users", ["id"], column("id", "int8"), column("name", "text")),
        shape("posts", ["id"], column("id", "int8"), column("user_id", "int8"), column("body", "text"),
              column("draft", "bool")),
        shape("likes", ["post_id", "user_id"], column("post_id", "int8"), column("user_id", "int8")),
    )
}  # fmt: skip
Rows = Mapping[TableName, Sequence[Mapping[str, JsonValue]]]


def statistics(rows: Rows) -> dict[TableName, TableStatistics]:
    """What `analyze` would note of these rows."""
    noted = {}
    for table, of in rows.items():
        columns = {}
        for described in TABLES[table].columns:
            values = [row[described.name] for row in of if row[described.name] is not None]
            counts = Counter(map(str, values))
            columns[described.name] = ColumnStatistics(
                distinct=len(counts),
                most_common=max(counts.values(), default=0) / len(of),
                nulls=1 - len(values) / len(of),
                width=sum(len(str(value)) for value in values) / max(len(values), 1),
            )
        noted[table] = TableStatistics(len(of), columns)
    return noted


@pytest.fixture(scope="module")
def rows() -> Rows:
    """200 users, 2,000 posts, 10,000 likes; a fifth of the likes is of one post."""
    draw = random.Random(7)
    users = [{"id": number, "name": f"user {number}"} for number in range(200)]
    posts = [
        {"id": number, "user_id": draw.randrange(200), "body": "x" * 60, "draft": number % 2 == 0}
        for number in range(2_000)
    ]
    pairs = {(draw.randrange(2_000) if draw.random() > 0.02 else 0, draw.randrange(200)) for _ in range(10_000)}
    likes = [{"post_id": post, "user_id": user} for post, user in sorted(pairs)]
    return {USERS: users, POSTS: posts, LIKES: likes}


def kept(
    sql: str, key: Sequence[str], rows: Rows, directory: Path, top: TopRows | None = None
) -> tuple[View, Estimate]:
    """A view that holds these rows, and what was estimated of it."""
    plan = read_view(sql, TABLES, key=key, top=top)
    view = View(plan, TABLES, FileState(directory, identity=identity(plan, TABLES)))
    events = [event(table, row, 1) for table in plan.tables for row in rows[table]]
    view.step(events, epoch=1, lsn=1, offsets={})
    while (output := view.pending()) is not None:
        view.acknowledge(output)
    view.confirm({("t", 0): 1})
    return view, estimate(plan, statistics(rows))


def event(table: TableName, row: Mapping[str, JsonValue], lsn: int, *, is_there: bool = True) -> RowEvent:
    key = {name: row[name] for name in TABLES[table].key}
    return RowEvent(table, key, str(Tag(1, lsn, 1)), row if is_there else None, Position("t", 0, lsn))


def cost(of: Estimate, table: TableName) -> ChangeCost:
    return next(change for change in of.changes if change.table == table)


def measured(view: View, table: TableName, rows: Rows, share: int) -> tuple[float, int]:
    """Rows of the result that change when a row of the table is deleted: on average, and at most."""
    changes = []
    for number, row in enumerate(rows[table][::share]):
        lsn = view.position().lsn + 1
        done = view.step([event(table, row, lsn, is_there=False)], epoch=1, lsn=lsn, offsets={})
        changes.append(done.changes_out)
        view.step([event(table, row, lsn + 1)], epoch=1, lsn=lsn + 1, offsets={})
        assert number < 500
    return sum(changes) / len(changes), max(changes)


TIMELINE = (
    "select l.user_id, p.id as post_id, p.body, u.name from posts p join likes l on l.post_id = p.id"
    " join users u on u.id = p.user_id"
)


def test_a_change_of_a_joined_table_reaches_as_many_rows_as_it_has_partners(rows: Rows, tmp_path: Path) -> None:
    view, estimated = kept(TIMELINE, ("user_id", "post_id"), rows, tmp_path)
    for table, share in ((LIKES, 40), (POSTS, 7), (USERS, 2)):
        average, largest = measured(view, table, rows, share)
        assert cost(estimated, table).average == pytest.approx(average, rel=0.3)
        assert cost(estimated, table).largest >= largest
    assert cost(estimated, LIKES).largest == 1
    assert estimated.rows == pytest.approx(len(rows[LIKES]), rel=0.01)


def test_the_state_is_about_as_large_as_estimated(rows: Rows, tmp_path: Path) -> None:
    for number, (sql, key) in enumerate(
        [
            (TIMELINE, ("user_id", "post_id")),
            ("select p.id, count(l.user_id) as likes from posts p left join likes l on l.post_id = p.id group by p.id",
             ("id",)),
            ("select user_id, max(post_id) as newest, count(distinct post_id) as n from likes group by user_id",
             ("user_id",)),
        ]
    ):  # fmt: skip
        plan = read_view(sql, TABLES, key=key)
        state = FileState(tmp_path / str(number), identity=identity(plan, TABLES))
        view = View(plan, TABLES, state)
        events = [event(table, row, 1) for table in plan.tables for row in rows[table]]
        for start in range(0, len(events), 500):
            view.step(events[start : start + 500], epoch=1, lsn=1 + start, offsets={})
        while (output := view.pending()) is not None:
            view.acknowledge(output)
        view.confirm({("t", 0): 1})
        estimated = estimate(plan, statistics(rows))
        assert estimated.kept_rows == pytest.approx(state.size().entries, rel=0.25)
        used = state.size().bytes
        # The file has free pages as well: what was pending in each step, and was written and forgotten again.
        assert 1 / 3 < estimated.kept_bytes / used < 2, sql
        state.close()


def test_a_row_changes_its_own_group_and_no_other(rows: Rows) -> None:
    sql = "select p.id, count(l.user_id) as likes from posts p left join likes l on l.post_id = p.id group by p.id"
    plan = read_view(sql, TABLES, key=("id",))
    estimated = estimate(plan, statistics(rows))
    assert [(change.table, change.average, change.largest) for change in estimated.changes] == [
        (POSTS, 1, 1), (LIKES, pytest.approx(1, rel=0.2), 1),
    ]  # fmt: skip
    assert estimated.rows == 2_000


def test_a_row_that_is_joined_before_a_group_reaches_the_groups_of_its_partners(rows: Rows, tmp_path: Path) -> None:
    sql = 'select l.user_id, count(*) as n, min(p.body collate "C") as b from posts p join likes l on l.post_id = p.id'
    view, estimated = kept(f"{sql} group by l.user_id", ("user_id",), rows, tmp_path)
    average, _ = measured(view, POSTS, rows, 7)
    assert cost(estimated, POSTS).average == pytest.approx(average, rel=0.3)
    assert cost(estimated, LIKES).average == pytest.approx(1, rel=0.1)


def test_a_condition_leaves_a_share_of_the_changes(rows: Rows) -> None:
    plan = read_view("select id, body from posts where draft and user_id = 3", TABLES, key=("id",))
    estimated = estimate(plan, statistics(rows))
    assert cost(estimated, POSTS).average == pytest.approx(1 / 400)
    assert estimated.rows == pytest.approx(5)


def test_of_the_first_rows_one_that_comes_pushes_one_out(rows: Rows) -> None:
    plan = read_view(
        "select user_id, post_id from likes", TABLES, key=("user_id", "post_id"),
        top=TopRows(("user_id",), "post_id desc", 3),
    )  # fmt: skip
    estimated = estimate(plan, statistics(rows))
    assert estimated.rows == 600
    assert cost(estimated, LIKES) == ChangeCost(LIKES, len(rows[LIKES]), 2, 2)


def test_parts_of_a_union_and_scans_of_one_table_add_up(rows: Rows) -> None:
    parts = ("1 as part, id from posts", "2 as part, id from posts where draft", "3 as part, id from users")
    sql = " union all ".join(f"select {part}" for part in parts)
    plan = read_view(sql, TABLES, key=("part", "id"))
    estimated = estimate(plan, statistics(rows))
    assert estimated.rows == 3_200
    assert cost(estimated, POSTS).average == 1.5
    # One copy of posts, however often it is read.
    assert estimated.kept_rows == 2_200


def test_columns_without_statistics_are_named(rows: Rows) -> None:
    known = statistics(rows)
    known[LIKES] = TableStatistics(known[LIKES].rows, {})
    plan = read_view("select user_id, count(*) as n from likes group by user_id", TABLES, key=("user_id",))
    assert set(estimate(plan, known).assumed) == {"public.likes.user_id", "public.likes.post_id"}


def test_empty_tables_cost_nothing() -> None:
    nothing = {name: TableStatistics(0.0, {}) for name in TABLES}
    plan = read_view(TIMELINE, TABLES, key=("user_id", "post_id"))
    estimated = estimate(plan, nothing)
    assert (estimated.rows, estimated.kept_bytes) == (0, 0)
