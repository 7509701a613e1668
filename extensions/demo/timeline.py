"""The demo's social network: tables, the view of everybody's timeline, and the page's writes, all to PostgreSQL."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import psycopg

from cdc.model.table import TableName
from extensions.demo import samples

TABLES: Final = tuple(TableName("public", name) for name in ("users", "follows", "tweets"))
VIEW: Final = "timeline"
ADDRESS: Final = "/demo/timeline"
"""The page's address."""

BODY_MAX: Final = 280
"""The most characters of a tweet."""

QUERY: Final = """\
select f.follower_id, t.id as tweet_id, t.user_id, u.name, t.body, t.created_at
from tweets t
join follows f on f.followee_id = t.user_id
join users u on u.id = t.user_id"""

SECTION: Final = f'''\
[views.{VIEW}]                # everybody's timeline, which a page shows live
sink = "cache"
topic = true                    # by which the page follows it
key = ["follower_id", "tweet_id"]
sql = """
{QUERY}"""
top = {{ per = ["follower_id"], order = "created_at desc", n = 100 }}
'''
"""A part of ``lockstep.toml``; it needs the sink ``cache``."""

USERS: Final = 24
"""Their ids begin with 1."""

VISITOR: Final = 1
"""The user whom the page shows first."""

_FOLLOWS: Final = 6
_TWEETS: Final = 10
"""How many users each user follows at first, and how many tweets each has sent."""


@dataclass(frozen=True, slots=True)
class Person:
    id: int
    name: str
    is_followed: bool


def create_timeline(connection: psycopg.Connection[Any], rng: random.Random) -> None:
    """Create the tables in ``public`` and fill them, in one transaction. Everybody follows themselves."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("set local search_path = public")
        cursor.execute(resources.files("extensions.demo").joinpath("timeline.sql").read_bytes())
        cursor.execute(
            "insert into users (name) select name from unnest(%s::text[]) with ordinality as n (name, place)"
            " order by place",
            (samples.names(rng, USERS),),
        )
        ids = [row[0] for row in cursor.execute("select id from users order by id")]
        follows = [
            (follower, followee)
            for follower in ids
            for followee in (follower, *rng.sample([other for other in ids if other != follower], _FOLLOWS))
        ]
        cursor.executemany("insert into follows values (%s, %s)", follows)
        authors = [author for author in ids for _ in range(_TWEETS)]
        rng.shuffle(authors)
        cursor.executemany(
            "insert into tweets (user_id, body, created_at)"
            " values (%s, %s, clock_timestamp() - %s * interval '7 minutes')",
            [(author, samples.tweet(rng), len(authors) - number) for number, author in enumerate(authors)],
        )


def people(connection: psycopg.Connection[Any], user: int) -> Sequence[Person]:
    rows = connection.execute(
        "select u.id, u.name, f.follower_id is not null from users u"
        " left join follows f on f.follower_id = %s and f.followee_id = u.id order by u.name, u.id",
        (user,),
    )
    return [Person(*row) for row in rows]


def send_tweet(connection: psycopg.Connection[Any], user: int, body: str) -> int | None:
    """The new tweet's id; None if the user doesn't exist."""
    row = connection.execute(
        "insert into tweets (user_id, body) select id, %s from users where id = %s returning id", (body, user)
    ).fetchone()
    return None if row is None else int(row[0])


def delete_tweet(connection: psycopg.Connection[Any], user: int, tweet: int) -> bool:
    """Whether the tweet existed and was the user's."""
    return connection.execute("delete from tweets where id = %s and user_id = %s", (tweet, user)).rowcount > 0


def follow(connection: psycopg.Connection[Any], follower: int, followee: int) -> bool:
    """Whether it is new, and both users exist."""
    done = connection.execute(
        "insert into follows select a.id, b.id from users a, users b where a.id = %s and b.id = %s"
        " on conflict do nothing",
        (follower, followee),
    )
    return done.rowcount > 0


def unfollow(connection: psycopg.Connection[Any], follower: int, followee: int) -> bool:
    """Whether it changed anything. Nobody unfollows themselves: their own tweets are in their timeline."""
    done = connection.execute(
        "delete from follows where follower_id = %s and followee_id = %s and follower_id <> followee_id",
        (follower, followee),
    )
    return done.rowcount > 0
