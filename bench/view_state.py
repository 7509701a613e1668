"""The state of a timeline: the cost of a change beside the state's size, and the state's size on disk.

The engine runs in this process on a file, without servers. The same view is built with more and more users, each with
as many tweets and followers as before. So a change reaches as many rows at every size, and only the state grows.
"""

import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from bench.figures import Figure, Limit, Target
from bench.rig import Rig, Say
from bench.sizes import Sizes
from cdc.model.event import Events, Position, RowEvent, TableEvents
from cdc.model.table import Column, ReplicaIdentity, Table, TableName
from cdc.model.tag import Tag
from views.plan import ViewPlan
from views.shard import Shard, shards
from views.sharding import sharding_of
from views.sql.reader import TopRows, read_view
from views.state.file import FileState
from views.view import View, identity

PHASE = "views"

TWEETS_PER_USER, FOLLOWERS_PER_USER = 5, 4
_ENTRIES_PER_USER = 46
"""What the state stores of a user with its tweets, its followers and their timelines."""

_BUILT_AT_ONCE = 5_000
_STEPS: Sequence[tuple[int, int]] = ((1, 300), (50, 40))
"""Changes of a step, and how many such steps. A step is a transaction of the file: a single change pays for it."""

_WARM_STEPS = 10
_SHARDS = (1, 2)
_WRITTEN_AT_ONCE = 20_000
_FLAT = 2.0
_TIMES_ON_DISK = 2.0
_NOWHERE = Position("", 0, 0)

TIMELINE = """select f.follower_id, t.id as tweet_id, t.body, u.name, t.created_at
    from tweets t join follows f on f.followee_id = t.user_id join users u on u.id = t.user_id"""
_TOP = TopRows(("follower_id",), "created_at desc", 100)


def _table(name: str, key: Sequence[str], /, **columns: tuple[str, int]) -> Table:
    made = [
        Column(column, kind, kind, is_array=False, type_oid=oid, type_modifier=-1, number=number)
        for number, (column, (kind, oid)) in enumerate(columns.items(), start=1)
    ]
    return Table(TableName("public", name), tuple(made), tuple(key), ReplicaIdentity.DEFAULT)


_INT8, _TEXT, _TIME = ("int8", 20), ("text", 25), ("timestamptz", 1184)
USERS = _table("users", ["id"], id=_INT8, name=_TEXT)
FOLLOWS = _table("follows", ["follower_id", "followee_id"], follower_id=_INT8, followee_id=_INT8)
TWEETS = _table("tweets", ["id"], id=_INT8, user_id=_INT8, body=_TEXT, created_at=_TIME)
TABLES = {table.name: table for table in (USERS, FOLLOWS, TWEETS)}


def timeline() -> ViewPlan:
    return read_view(TIMELINE, TABLES, key=("follower_id", "tweet_id"), top=_TOP)


@dataclass(frozen=True, slots=True)
class Cost:
    entries: int
    change_us: Mapping[int, float]
    """Processor time of a change of one tweet, by the number of changes in a step."""
    bytes_on_disk: int
    bytes_of_rows: int
    """Of the JSON of the tables' and the result's rows."""
    build_us: float
    """Of each row of a table, when the state was built."""


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """Returns figures and details. Needs none of the rig's servers."""
    measured = []
    for entries in sizes.view_entries:
        say(f"a state of about {entries:,} rows")
        with tempfile.TemporaryDirectory(prefix="view-", dir=rig.directory) as directory:
            measured.append(cost_of(entries, Path(directory)))
    say("the same view in shards")
    of_tasks = {count: sharded_us(sizes.view_entries[0], count, rig.directory) for count in _SHARDS}
    return [*figures_of(measured), *sharded_figures(of_tasks)], {
        "states": [asdict(cost) for cost in measured],
        "tasks_us": of_tasks,
    }


def cost_of(entries: int, directory: Path) -> Cost:
    """Build a state of about this many entries and change it."""
    users = max(10, entries // _ENTRIES_PER_USER)
    plan = timeline()
    state = FileState(directory, identity=identity(plan, TABLES))
    try:
        view = View(plan, TABLES, state)
        build_us = 1e6 * _build(view, users) / (users * (1 + TWEETS_PER_USER + FOLLOWERS_PER_USER))
        in_json = _deliver(view) + sum(len(orjson.dumps(event.row)) for event in rows(users))
        view.compact()
        size = state.size()
        change_us = _change_us(view, users)
    finally:
        state.close()
    return Cost(size.entries, change_us, size.bytes, in_json, build_us)


def _build(view: View, users: int) -> float:
    """Processor seconds, including the parsing of the rows, as in a task that reads them from the log."""
    of_tables = rows(users)
    view.begin_building()
    took_s = 0.0
    while portion := Events.of(list(islice(of_tables, _BUILT_AT_ONCE))):
        began = time.process_time()
        view.build(portion)
        took_s += time.process_time() - began
    began = time.process_time()
    view.end_building(epoch=1, lsn=8, offsets={})
    return took_s + time.process_time() - began


def rows(users: int) -> Iterator[RowEvent]:
    """The rows of all tables, as events of the same position."""
    chance = random.Random(1)
    for user in range(users):
        yield _event(USERS, 8, id=user, name=f"user number {user}")
    for user in range(users):
        for other in chance.sample(range(users), FOLLOWERS_PER_USER):
            yield _event(FOLLOWS, 8, follower_id=other, followee_id=user)
    for tweet in range(users * TWEETS_PER_USER):
        yield tweet_event(tweet, tweet % users, 8)


def tweet_event(tweet: int, user: int, lsn: int) -> RowEvent:
    body = f"lorem ipsum dolor sit amet number {tweet} at {lsn}"
    created_at = f"2026-01-01T{tweet // 3600 % 24:02}:{tweet // 60 % 60:02}:{tweet % 60:02}Z"
    return _event(TWEETS, lsn, id=tweet, user_id=user, body=body, created_at=created_at)


def _event(table: Table, lsn: int, /, **row: int | str) -> RowEvent:
    return RowEvent(table.name, {name: row[name] for name in table.key}, str(Tag(1, lsn, 1)), row, _NOWHERE)


def _change_us(view: View, users: int) -> dict[int, float]:
    """Steps of changed tweets, each with its output."""
    chance = random.Random(2)
    made = {}
    lsn, began = 8, 0.0
    for changes, steps in _STEPS:
        for number in range(_WARM_STEPS + steps):
            if number == _WARM_STEPS:
                began = time.process_time()
            lsn += 8
            tweets = {chance.randrange(users * TWEETS_PER_USER) for _ in range(changes)}
            view.step([tweet_event(tweet, tweet % users, lsn) for tweet in tweets], epoch=1, lsn=lsn, offsets={})
            _deliver(view)
        made[changes] = 1e6 * (time.process_time() - began) / (steps * changes)
    return made


def _deliver(view: View) -> int:
    """Take the output as a sink does. Returns the bytes of its rows."""
    taken = 0
    while (output := view.pending(_WRITTEN_AT_ONCE)) is not None:
        taken += sum(len(orjson.dumps(change.row)) for change in output.changes)
        view.acknowledge(output)
    return taken


def sharded_us(entries: int, count: int, directory: Path) -> list[float]:
    """Processor time of each of ``count`` tasks for a change of one tweet, including its parsing from the log.

    Every shard reads every tweet, and has followers of its own.
    """
    users, plan = max(10, entries // _ENTRIES_PER_USER), timeline()
    own: list[Shard | None] = [None] if count == 1 else [*shards(sharding_of(plan, count), count)]
    return [_shard_us(users, plan, shard, directory) for shard in own]


def _shard_us(users: int, plan: ViewPlan, shard: Shard | None, directory: Path) -> float:
    changes, steps = _STEPS[-1]
    with tempfile.TemporaryDirectory(prefix="shard-", dir=directory) as own:
        state = FileState(Path(own), identity=identity(plan, TABLES, shard))
        try:
            view = View(plan, TABLES, state, shard=shard)
            _build(view, users)
            _deliver(view)
            chance, began = random.Random(2), 0.0
            chosen = [
                sorted({chance.randrange(users * TWEETS_PER_USER) for _ in range(changes)})
                for _ in range(_WARM_STEPS + steps)
            ]
            read = [(lsn, _read_from_log(tweets, users, lsn)) for lsn, tweets in enumerate(chosen, 16)]
            for number, (lsn, log) in enumerate(read):
                if number == _WARM_STEPS:
                    began = time.process_time()
                view.step(list(log), epoch=1, lsn=lsn, offsets={})
                _deliver(view)
            return 1e6 * (time.process_time() - began) / (steps * changes)
        finally:
            state.close()


def _read_from_log(tweets: Sequence[int], users: int, lsn: int) -> TableEvents:
    """Changes of these tweets, as a task has them before parsing."""
    made = [tweet_event(tweet, tweet % users, lsn) for tweet in tweets]
    keys, texts = [orjson.dumps(each.key) for each in made], list[bytes | None]()
    texts += [orjson.dumps(each.row) for each in made]
    return TableEvents.from_log(TWEETS.name, keys, [each.tag for each in made], texts, lambda _: _NOWHERE)


def sharded_figures(of_tasks: Mapping[int, Sequence[float]]) -> list[Figure]:
    """The busiest of several tasks, and their sum, beside one task that maintains all of the view. Pure."""
    (whole,) = of_tasks[1]
    return [
        Figure(
            phase=PHASE,
            name=f"a change where {count} tasks keep the view, {what}",
            value=value,
            unit="us",
            limit=Limit(value=whole, what="the same in one task"),
        )
        for count, each in of_tasks.items()
        if count > 1
        for what, value in (("the busiest one", max(each)), ("all together", sum(each)))
    ]


def figures_of(measured: Sequence[Cost]) -> list[Figure]:
    """A change in the largest state beside the smallest, and bytes on disk beside those of the rows. Pure."""
    first, last = measured[0], measured[-1]
    return [
        *(
            Figure(
                phase=PHASE,
                name=f"a change in a state of {last.entries:,} rows, {changes} a step",
                value=last.change_us[changes],
                unit="us",
                limit=Limit(value=first.change_us[changes], what=f"the same in a state of {first.entries:,} rows"),
                target=Target(bound="at most", amount=_FLAT, of_limit=True),
            )
            for changes, _ in _STEPS
        ),
        Figure(
            phase=PHASE,
            name="a state on disk",
            value=last.bytes_on_disk / 1e6,
            unit="MB",
            limit=Limit(value=last.bytes_of_rows / 1e6, what="the JSON of the rows of its tables and its result"),
            target=Target(bound="at most", amount=_TIMES_ON_DISK, of_limit=True),
        ),
        Figure(phase=PHASE, name="building a state, each row of a table", value=last.build_us, unit="us"),
    ]
