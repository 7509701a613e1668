"""By which column of its key a view is divided, which tables every shard has in whole, and why a view can't be."""

from collections.abc import Sequence

import pytest

from tests.view_queries import TABLES, column, shape
from views.failures import Refused
from views.plan import Scan, nodes
from views.plan_text import column_names, expression_text
from views.sharding import sharding_of
from views.sql.reader import TopRows, read_view

SHOP = {
    table.name: table
    for table in (
        shape("users", ["id"], column("id", "int8"), column("name", "text")),
        shape("follows", ["follower_id", "followee_id"], column("follower_id", "int8"), column("followee_id", "int8")),
        shape(
            "tweets", ["id"], column("id", "int8"), column("user_id", "int8"), column("body", "text"),
            column("at", "timestamp"),
        ),
        shape("likes", ["id"], column("id", "int4"), column("tweet_id", "int4"), column("weight", "numeric(8,2)")),
        shape("fees", ["id"], column("id", "int4"), column("weight", "numeric"), column("code", "varchar", oid=1043)),
    )
}  # fmt: skip


def divided(sql: str, key: Sequence[str], top: TopRows | None = None) -> tuple[str, list[str]]:
    """By which column, and each table with what its rows are divided by; ``*`` where every shard has all of them."""
    plan = read_view(sql, SHOP | TABLES, key=key, top=top)
    sharding = sharding_of(plan, 2)
    scans = [node for node in nodes(plan.root) if isinstance(node, Scan)]
    by = [
        f"{scan.table.name}: {'*' if by is None else expression_text(by, column_names(plan))}"
        for scan, by in zip(scans, sharding.columns, strict=True)
    ]
    return sharding.key, by


def reason(sql: str, key: Sequence[str], top: TopRows | None = None) -> str:
    with pytest.raises(Refused) as refused:
        divided(sql, key, top)
    (refusal,) = refused.value.refusals
    assert refusal.clause == "tasks = 2"
    assert "leave `tasks` out" in refusal.remedy
    return refusal.reason


def test_every_shard_has_all_of_what_is_joined_by_another_key() -> None:
    timeline = """select f.follower_id, t.id as tweet_id, t.body, u.name, t.at
        from tweets t join follows f on f.followee_id = t.user_id join users u on u.id = t.user_id"""
    assert divided(timeline, ["follower_id", "tweet_id"], TopRows(("follower_id",), "at desc", 100)) == (
        "follower_id", ["tweets: *", "users: *", "follows: follows.follower_id"],
    )  # fmt: skip


def test_the_column_is_taken_that_divides_most() -> None:
    """By the tweet's id, nothing but the tweets would be divided."""
    sql = "select t.id, t.user_id, u.name from tweets t join users u on u.id = t.user_id"
    assert divided(sql, ["id", "user_id"]) == ("user_id", ["tweets: tweets.user_id", "users: users.id"])


def test_a_column_that_is_equal_to_another_one_is_that_one() -> None:
    sql = """select g.id, g.n from (select l.tweet_id as id, count(*) as n from likes l group by l.tweet_id) g
        join tweets t on t.id = g.id"""
    assert divided(sql, ["id"]) == ("id", ["likes: likes.tweet_id", "tweets: tweets.id"])
    assert divided(
        "select u.id, t.id as tweet from tweets t join users u on u.id = t.user_id", ["id", "tweet"],
        TopRows(("id",), "tweet", 3),
    ) == ("id", ["tweets: tweets.user_id", "users: users.id"])  # fmt: skip


def test_each_part_of_a_union_is_divided_by_its_own_column() -> None:
    sql = """select 'tweet' as kind, id, user_id from tweets union all select 'like' as kind, id, tweet_id from likes"""
    assert divided(sql, ["kind", "id"]) == ("id", ["tweets: tweets.id", "likes: likes.id"])


def test_the_right_side_of_a_left_join_divides_nothing() -> None:
    sql = "select t.id, coalesce(u.id, 0) as owner from tweets t left join users u on u.id = t.user_id"
    assert divided(sql, ["id"]) == ("id", ["tweets: tweets.id", "users: *"])
    grouped = f"select owner, count(*) as n from ({sql}) s group by owner"
    assert "left join's right side" in reason(grouped, ["owner"])


def test_a_group_by_something_else_is_refused() -> None:
    grouped = "select last, count(*) as n from (select coalesce(max(id), 0) as last from tweets group by user_id) s"
    assert "is made of all rows of a group" in reason(f"{grouped} group by last", ["last"])


def test_a_top_per_something_else_is_refused() -> None:
    told = reason("select id, user_id from tweets", ["id"], TopRows(("user_id",), "id", 3))
    assert told == "the view can't be divided by a column of its key: by id it can't be, since `top` isn't per id"
    assert "`top` isn't per id" in reason("select id from users", ["id"], TopRows((), "id", 3))


def test_numbers_that_are_equal_and_look_different_divide_no_other_side() -> None:
    """0.50 of one table is 0.5 of the other."""
    sql = """select l.weight, count(*) as n from likes l join fees f on f.weight = l.weight
        where l.weight is not null group by l.weight"""
    assert divided(sql, ["weight"]) == ("weight", ["likes: likes.weight", "fees: *"])


def test_a_constant_divides_nothing() -> None:
    assert "all rows of public.users would be in one shard" in reason(
        "select kind, count(*) as n from (select 'user' as kind from users) s group by kind", ["kind"]
    )
