"""The tables of a home timeline on a pipeline of their own, their rows and changes, and the result's topic.

Everybody sees the newest tweets of those whom they follow: three tables, joined, and the first rows for each follower.
All tables have full before images (`replica identity full`), for readers of the events that store no copy of their own.
"""

import contextlib
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson
import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.rig import CACHE, Rig, drop_slots, sink_sections, tables_toml
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from cdc.postgres.slot import wal_end
from lockstep.config import load

TOP = 10
"""Rows of a timeline. Users follow four others on average, with five tweets each, so it leaves some out."""

VIEW = "timeline"
_KEY = ("follower_id", "tweet_id")
_TWEETS, _FOLLOWERS = 5, 4
_PARTITIONS = 4
_AT_ONCE = 1_000
"""Rows of one transaction when the tables are filled."""

Key = tuple[int, int]
Row = tuple[str, str, float]
"""The name, the body, and the time in seconds since 1970."""

JOIN = """
select f.follower_id, t.id as tweet_id, u.name, t.body, t.created_at
from {tweets} t join {users} u on u.id = t.user_id join {follows} f on f.followee_id = t.user_id
"""
"""The join that gives each row one partner comes first. Flink keeps the given order, Lockstep finds it."""


class Timeline:
    """One pipeline of three tables in a schema of its own, with the view in the cache and on a topic."""

    def __init__(self, rig: Rig, *, users: int) -> None:
        """Makes tables and configuration. Starts nothing."""
        self.endpoints = rig.endpoints
        # Unique, also on servers that are used again.
        self.name = f"bench_timeline_{time.time_ns() // 1_000_000:x}"
        self.users = users
        self.tables = {table: TableName(self.name, table) for table in ("users", "follows", "tweets")}
        self.states = rig.directory / f"{self.name}-states"
        self.path = rig.directory / f"{self.name}.toml"
        self.path.write_text(self._toml(), encoding="utf-8")
        self.config = load(self.path)
        self.client = self.config.kafka.client()
        topics = self.config.topics()
        self.topics = {table: topics[name] for table, name in self.tables.items()}
        with self.sql() as connection:
            connection.execute(
                f"""
                create schema {self.name};
                create table {self.name}.users (id bigint primary key, name text not null);
                create table {self.name}.follows (
                    follower_id bigint, followee_id bigint, primary key (follower_id, followee_id));
                create index on {self.name}.follows (followee_id);
                create table {self.name}.tweets (
                    id bigint primary key, user_id bigint not null, body text not null,
                    created_at timestamptz not null);
                create index on {self.name}.tweets (user_id);
                alter table {self.name}.users replica identity full;
                alter table {self.name}.follows replica identity full;
                alter table {self.name}.tweets replica identity full;
                """.encode()
            )

    def sql(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.endpoints.source_dsn, autocommit=True)

    def fill(self, connection: psycopg.Connection[Any]) -> int:
        """Insert all rows, and change each tweet once. Returns how many rows were inserted or changed."""
        schema, users, changed = self.name, self.users, 0

        def run(rows: int, statement: str) -> None:
            nonlocal changed
            for first in range(1, rows + 1, _AT_ONCE):
                last = min(rows, first + _AT_ONCE - 1)
                changed += connection.execute(statement.encode(), {"first": first, "last": last}).rowcount

        numbers = "generate_series(%(first)s::bigint, %(last)s::bigint) i"
        run(users, f"insert into {schema}.users select i, 'user number ' || i from {numbers}")
        run(
            users * _FOLLOWERS,
            f"insert into {schema}.follows select 1 + (i * 7919 + i / {users} * 104729) %% {users}, 1 + i %% {users}"
            f" from {numbers} on conflict do nothing",
        )
        run(
            self.tweets,
            f"insert into {schema}.tweets select i, 1 + i %% {users}, 'lorem ipsum dolor sit amet number ' || i,"
            f" timestamptz '2026-01-01 00:00+00' + i * interval '1 second' from {numbers}",
        )
        run(
            self.tweets,
            f"update {schema}.tweets set body = body || '!' where id between %(first)s::bigint and %(last)s::bigint",
        )
        return changed

    @property
    def tweets(self) -> int:
        """The initial number of tweets; their ids begin with 1."""
        return self.users * _TWEETS

    def expected(self, connection: psycopg.Connection[Any]) -> dict[Key, Row]:
        """The present result of the view's query on the source."""
        tables = {table: f"{self.name}.{table}" for table in self.tables}
        query = (
            "select follower_id, tweet_id, name, body, extract(epoch from created_at)::float8 from (select joined.*,"
            " row_number() over (partition by follower_id order by created_at desc, tweet_id) as place"
            f" from ({JOIN.format(**tables)}) joined) ranked where place <= {TOP}"
        )
        cursor = connection.execute(query.encode())
        return {(follower, tweet): (name, body, at) for follower, tweet, name, body, at in cursor}

    def wal_end(self) -> int:
        with self.sql() as connection:
            return wal_end(connection)

    def remove(self) -> None:
        """Remove what would keep WAL or fill the disk. A server that is already down needs no removal."""
        with contextlib.suppress(psycopg.OperationalError), self.sql() as connection:
            drop_slots(connection, self.config.slot)
            connection.execute(f"drop publication if exists {self.config.publication}".encode())
            connection.execute(f"drop schema if exists {self.name} cascade".encode())
        admin = AdminClient(dict(self.client))
        with contextlib.suppress(KafkaException):
            topics = [topic for topic in admin.list_topics(timeout=10).topics if topic.startswith(f"{self.name}.")]
            for deleted in admin.delete_topics(topics, request_timeout=10).values() if topics else ():
                deleted.result(10)

    def _toml(self) -> str:
        tables = {table: f"{self.name}.{table}" for table in self.tables}
        cache = f"{self.name}_{CACHE}"
        return (
            tables_toml(self.name, self.endpoints, self.tables.values(), partitions=_PARTITIONS)
            + f'[spark]\nview_directory = "{self.states}"\n'
            + sink_sections(self.name, self.endpoints, [CACHE])
            + "apply = false\n"
            + f'[views.{VIEW}]\nsink = "{cache}"\nprefix = "{self.name}"\ntopic = true\n'
            + f'key = ["{_KEY[0]}", "{_KEY[1]}"]\n'
            + f'top = {{ per = ["{_KEY[0]}"], order = "created_at desc", n = {TOP} }}\n'
            + f'sql = """{JOIN.format(**tables)}"""\n'
        )


def row_of(value: bytes) -> Row:
    """From a record of the result's topic, by any of its programs."""
    fields = orjson.loads(value)
    return fields["name"], fields["body"], datetime.fromisoformat(fields["created_at"]).timestamp()


def differing(rows: Mapping[Key, Row], expected: Mapping[Key, Row]) -> int:
    """How many keys are in only one of the two, or have different rows."""
    return sum(rows.get(key) != expected.get(key) for key in rows.keys() | expected.keys())


class TopicRows:
    """The rows of a result's compacted topic, updated record by record. Pure."""

    def __init__(self) -> None:
        self._values: dict[Key, bytes] = {}
        self.first_seen: dict[Key, float] = {}
        """Unix time at which a row of a key came first."""
        self.records = 0
        self.last_at = 0.0
        """Unix time at which the newest record came."""

    def take(self, key: bytes, value: bytes | None, *, now: float) -> None:
        fields = orjson.loads(key)
        at = fields[_KEY[0]], fields[_KEY[1]]
        if value is None:
            self._values.pop(at, None)
        else:
            self._values[at] = value
            self.first_seen.setdefault(at, now)
        self.records += 1
        self.last_at = now

    def rows(self) -> dict[Key, Row]:
        return {key: row_of(value) for key, value in dict(self._values).items()}


class Follower(threading.Thread):
    """A read-committed reader of such a topic."""

    def __init__(self, client: Mapping[str, str | int], topic: str) -> None:
        """Reads from the beginning, as soon as the topic exists."""
        super().__init__(name=f"follower of {topic}", daemon=True)
        self.seen = TopicRows()
        self._client = client
        self._topic = topic
        self._finished = threading.Event()

    def run(self) -> None:
        cluster = TopicAdmin(self._client)
        while not cluster.partition_counts([self._topic]):
            if self._finished.wait(0.1):
                return
        settings = {"group.id": "bench", "isolation.level": "read_committed", "enable.auto.commit": False}
        consumer = Consumer({**self._client, **settings, "fetch.wait.max.ms": 100})
        consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
        try:
            while not self._finished.is_set():
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    self.seen.take(message.key() or b"", message.value(), now=time.time())
        finally:
            consumer.close()

    def finish(self) -> None:
        """Stop reading. Does nothing if it was never started."""
        self._finished.set()
        self.join(10)


@dataclass(slots=True)
class Load:
    """The traffic so far: transactions, rows that they changed, and when each new tweet's commit returned."""

    transactions: int = 0
    changes: int = 0
    tweets: dict[int, tuple[float, Sequence[int]]] = field(default_factory=dict)
    """By id: Unix time, and who gets the tweet."""

    def seconds_until_seen(self, first_seen: Mapping[Key, float]) -> list[float]:
        """For each tweet with followers: from commit to all timelines. Raises LockstepError for an unseen one."""
        waits = []
        for tweet, (committed_at, followers) in self.tweets.items():
            times = [first_seen[one, tweet] for one in followers if (one, tweet) in first_seen]
            if len(times) < len(followers):
                raise LockstepError(f"tweet {tweet} is missing in {len(followers) - len(times)} timelines")
            if times:
                waits.append(max(times) - committed_at)
        return waits


class Traffic:
    """Tweets, changed and deleted tweets, follows and unfollows, and new names, one small transaction each.

    A new tweet is never deleted, and its author is neither followed nor unfollowed meanwhile. So its row comes to each
    follower's timeline once, however many transactions a program takes at once.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._random = random.Random(1)
        self._tweet = timeline.tweets
        self._kinds = 0

    def run(self, connection: psycopg.Connection[Any], *, rate: int, seconds: float) -> Load:
        """Commit ``rate`` transactions a second; after a slow one it catches up."""
        load = Load()
        began = time.time()
        for number in range(1, round(rate * seconds) + 1):
            self._commit(connection, load)
            load.transactions += 1
            ahead_s = began + number / rate - time.time()
            if ahead_s > 0:
                time.sleep(ahead_s)
        return load

    def _commit(self, connection: psycopg.Connection[Any], load: Load) -> None:
        schema, chance, kind = self._timeline.name, self._random, self._kinds % 10
        self._kinds += 1
        still = self._timeline.users // 10
        author = chance.randint(still + 1, self._timeline.users)
        followee, follower = chance.randint(1, still), chance.randint(1, self._timeline.users)
        tweet = chance.randint(1, self._timeline.tweets)
        if kind < 6:
            self._tweet += 1
            row = connection.execute(
                f"with made as (insert into {schema}.tweets values (%s, %s, %s, clock_timestamp()))"
                f" select array_agg(follower_id) from {schema}.follows where followee_id = %s".encode(),
                (self._tweet, author, f"something new, number {self._tweet}", author),
            ).fetchone()
            load.tweets[self._tweet] = (time.time(), (row[0] if row else None) or ())
            load.changes += 1
        elif kind == 6:
            statement = f"update {schema}.tweets set body = body || '?' where id = %s"
            load.changes += connection.execute(statement.encode(), (tweet,)).rowcount
        elif kind == 7:
            statement = f"delete from {schema}.tweets where id = %s"
            load.changes += connection.execute(statement.encode(), (tweet,)).rowcount
        elif kind == 8:
            with connection.transaction():
                load.changes += connection.execute(
                    f"delete from {schema}.follows where followee_id = %s and follower_id ="
                    f" (select min(follower_id) from {schema}.follows where followee_id = %s)".encode(),
                    (followee, followee),
                ).rowcount
                load.changes += connection.execute(
                    f"insert into {schema}.follows values (%s, %s) on conflict do nothing".encode(),
                    (follower, followee),
                ).rowcount
        else:
            statement = f"update {schema}.users set name = name || '.' where id = %s"
            load.changes += connection.execute(statement.encode(), (author,)).rowcount
