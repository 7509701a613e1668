"""A view in Redis, with everything between the source and there: how soon it shows a commit, and how fast it is built.

A view of three tables has as many rows as one of them, which a plain sink holds as well. So both get the same traffic
and the same probes, one after the other. A timeline is built from topics with one event for each row, as after
compaction, and then a user with many followers tweets.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from bench import view_state
from bench.figures import Figure, Limit, Target, percentile
from bench.replay import Applied, applied
from bench.rig import CACHE, VIEW, Child, Pipeline, Rig, Say, sink_name, wait_until
from bench.sizes import Sizes
from bench.usage import CpuMeter, cpu_seconds
from bench.view_state import FOLLOWERS_PER_USER, PHASE, TWEETS_PER_USER
from bench.visible import PROBE_ROWS, ROWS, Part, Probes, in_redis
from cdc.postgres.slot import wal_end

_TIMES = 2.0
_LAST_TIMELINE_MS = 300.0
_EVENTS_PER_S = 50_000.0
_EVENTS_PER_S_MIN = 500
"""A lower rate means that it is stuck, on any machine."""

_ROWS_OF_USER = 1 + TWEETS_PER_USER + FOLLOWERS_PER_USER
_CELEBRITY = -1
_KINDS = 7
_ASKED_EVERY_S = 0.015
_GAP_S = 0.5
_WARM_TWEETS = 3

_THREE_TABLES = {"details": "id bigint primary key, title text", "kinds": "id int primary key, label text"}
_JOINED = """key = ["id"]
sql = '''select t.id, t.customer_id, t.kind, t.note, t.address, t.created_at, t.amount, t.flag, d.title, k.label
    from {name} t join {name}_details d on d.id = t.id left join {name}_kinds k on k.id = t.kind'''
"""
_TIMELINE_TABLES = {
    "users": "id bigint primary key, name text",
    "follows": "follower_id bigint, followee_id bigint, primary key (follower_id, followee_id)",
    "tweets": "id bigint primary key, user_id bigint, body text, created_at timestamptz",
}
_TIMELINE = """key = ["follower_id", "tweet_id"]
sql = '''select f.follower_id, t.id as tweet_id, t.body, u.name, t.created_at
    from {name}_tweets t join {name}_follows f on f.followee_id = t.user_id join {name}_users u on u.id = t.user_id'''
top = { per = ["follower_id"], order = "created_at desc", n = 100 }
"""


@dataclass(frozen=True, slots=True)
class Measured:
    view_ms: dict[str, float]
    """From commit to visible, by percentile."""
    plain_ms: dict[str, float]
    last_timeline_s: Sequence[float]
    """From a tweet's commit to the last of all timelines."""
    followers: int
    built: Applied
    """From the log of the building."""
    used: dict[str, float]
    """Processor seconds of the building, by process."""


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """The state by itself, then with servers. Raises LockstepError when a command fails, or shows nothing in time."""
    figures, details = view_state.measure(rig, sizes, say)
    rig.up("postgres", "kafka", "valkey")
    view_ms, plain_ms, visible = _visible(rig, sizes, say)
    built, used, waits = _timeline(rig, sizes, say)
    measured = Measured(view_ms, plain_ms, waits, sizes.view_followers, built, used)
    return figures + figures_of(measured), details | details_of(measured) | {"commit_to_visible": visible}


def figures_of(measured: Measured) -> list[Figure]:
    at_most = Target(bound="at most", amount=_TIMES, of_limit=True)
    return [
        *(
            Figure(
                phase=PHASE,
                name=f"commit to visible in a view of three tables, {name}",
                value=measured.view_ms[name],
                unit="ms",
                limit=Limit(value=measured.plain_ms[name], what="the same in a plain sink of one of the tables"),
                target=at_most,
            )
            for name in ("p50", "p99")
        ),
        Figure(
            phase=PHASE,
            name=f"a tweet: commit to the last of {measured.followers:,} timelines, p50",
            value=1000 * percentile(measured.last_timeline_s, 50),
            unit="ms",
            target=Target(bound="at most", amount=_LAST_TIMELINE_MS),
        ),
        Figure(
            phase=PHASE,
            name=f"a timeline built from {measured.built.rows:,} events, until it is in the cache",
            value=measured.built.rows / measured.built.seconds,
            unit="events/s",
            target=Target(bound="at least", amount=_EVENTS_PER_S),
        ),
    ]


def details_of(measured: Measured) -> dict[str, Any]:
    return {
        "last_timeline_ms": [round(1000 * wait_s, 1) for wait_s in measured.last_timeline_s],
        "building": {
            "events": measured.built.rows,
            "rows_of_the_result": measured.built.written,
            "seconds": round(measured.built.seconds, 1),
            "cpu_s": measured.used,
        },
    }


# --- commit to visible ---


def _visible(rig: Rig, sizes: Sizes, say: Say) -> tuple[dict[str, float], dict[str, float], dict[str, Any]]:
    """Percentiles in milliseconds of the view and of the plain sink, and all details. Each runs as the only sink."""
    with (
        rig.pipeline("views", sinks=(CACHE,), tables=_THREE_TABLES, view=_JOINED) as pipeline,
        pipeline.sql() as connection,
    ):
        name, rows = pipeline.name, ROWS + PROBE_ROWS
        pipeline.load(connection, first=0, rows=ROWS, per_transaction=ROWS)
        for statement in (
            f"insert into {name}_details select i, 'title ' || i from generate_series(0, {rows - 1}) i",
            f"insert into {name}_kinds select i, 'kind ' || i from generate_series(0, {_KINDS - 1}) i",
        ):
            connection.execute(statement.encode())
        capture = pipeline.start_capture()
        pipeline.wait_streaming(capture)
        probes = Probes(pipeline, connection)
        percentiles: list[dict[str, float]] = []
        details: dict[str, Any] = {}
        for kind in (CACHE, VIEW):
            say("the view as the only sink" if kind == VIEW else "a plain sink as the only one")
            store = in_redis(pipeline, view=sink_name(name, VIEW) if kind == VIEW else "")
            try:
                apply = pipeline.start_apply(kind)
                _, part = Part(rig, sizes, say, pipeline, probes, [store], [capture, apply]).measure(
                    "", {store.name: store.targets_ms}
                )
            finally:
                store.close()
            pipeline.stop(apply)
            percentiles.append(part[store.name]["commit_to_visible_ms"])
            details[kind] = part
    plain_ms, view_ms = percentiles
    return view_ms, plain_ms, details


# --- a timeline ---


def _timeline(rig: Rig, sizes: Sizes, say: Say) -> tuple[Applied, dict[str, float], list[float]]:
    with rig.pipeline("timeline", sinks=(CACHE,), tables=_TIMELINE_TABLES, view=_TIMELINE) as pipeline:
        users = sizes.view_events // _ROWS_OF_USER
        say(f"writing the rows of {users:,} users")
        _fill(pipeline, users, sizes.view_followers)
        capture = pipeline.start_capture()
        _copied(pipeline, capture, sizes.view_events)
        say("building the timelines")
        meter = CpuMeter(rig.server_pids | {"capture": capture.process.pid})
        apply = pipeline.start_apply(VIEW, once=True)
        used_s: list[float] = []

        def is_over() -> bool:
            used_s.append(cpu_seconds(apply.process.pid))
            return not apply.is_alive

        wait_until(
            is_over,
            what="the timelines are built",
            timeout_s=300 + sizes.view_events / _EVENTS_PER_S_MIN,
            every_s=0.5,
        )
        text = pipeline.wait_end(apply, timeout_s=1)
        built = applied(text, sink_name(pipeline.name, VIEW))
        used = meter.used() | {"apply": round(max(used_s), 1)}
        say(f"{built.rows:,} events in {built.seconds:.1f} s, {built.written:,} rows of the result; processor: {used}")
        return built, used, _tweet(pipeline, capture, sizes, say)


def _fill(pipeline: Pipeline, users: int, followers: int) -> None:
    """The rows of ``view_state.rows``, and one more user, with this many followers."""
    name, tweets = pipeline.name, users * TWEETS_PER_USER
    statements = (
        f"insert into {name}_users select i, 'user number ' || i from generate_series(0, {users - 1}) i",
        f"insert into {name}_follows select (i + j * 7919 + 1) %% {users}, i"
        f" from generate_series(0, {users - 1}) i, generate_series(0, {FOLLOWERS_PER_USER - 1}) j"
        " on conflict do nothing",
        f"insert into {name}_tweets select i, i %% {users}, 'lorem ipsum dolor sit amet number ' || i,"
        f" timestamptz '2026-01-01 00:00Z' + make_interval(secs => i) from generate_series(0, {tweets - 1}) i",
        f"insert into {name}_users values ({_CELEBRITY}, 'everybody follows me')",
        f"insert into {name}_follows select i, {_CELEBRITY} from generate_series(0, {followers - 1}) i",
    )
    with pipeline.sql() as connection:
        for statement in statements:
            connection.execute(statement.replace("%%", "%").encode())


def _copied(pipeline: Pipeline, capture: Child, rows: int) -> None:
    pipeline.wait_streaming(capture)
    with pipeline.sql() as connection:
        target = wal_end(connection)
        connection.execute("select pg_logical_emit_message(true, 'bench', '')")
    pipeline.wait_published(capture, target, timeout_s=300 + rows / _EVENTS_PER_S_MIN)


def _tweet(pipeline: Pipeline, capture: Child, sizes: Sizes, say: Say) -> list[float]:
    """Seconds from each tweet's commit to the last timeline that shows it. The first tweets are warm-up."""
    apply = pipeline.start_apply(VIEW)
    timelines = _Timelines(pipeline, sizes.view_followers)
    waits = []
    try:
        with pipeline.sql() as connection:
            for number in range(1, _WARM_TWEETS + sizes.view_tweets + 1):
                statement = f"insert into {pipeline.name}_tweets values (%s, %s, 'hello everybody', now())"
                connection.execute(statement.encode(), (-number, _CELEBRITY))
                waits.append(timelines.seconds_until_all_show(-number, time.monotonic(), [capture, apply]))
                time.sleep(_GAP_S)
    finally:
        timelines.close()
    say(f"{sizes.view_tweets} tweets: {', '.join(f'{1000 * wait_s:.0f}' for wait_s in waits[_WARM_TWEETS:])} ms")
    return waits[_WARM_TWEETS:]


class _Timelines:
    """All followers' timelines. All are asked at once, after the last of the few that are polled."""

    def __init__(self, pipeline: Pipeline, followers: int) -> None:
        self._client: Any = redis.Redis.from_url(pipeline.endpoints.redis_url)
        self._view = sink_name(pipeline.name, VIEW)
        self._followers = followers

    def seconds_until_all_show(self, tweet: int, began: float, children: Sequence[Child]) -> float:
        """The time since ``began`` at which the last timeline had the tweet. Raises LockstepError."""
        seen_s = 0.0
        asked = sorted({0, self._followers // 2, self._followers - 1})

        def is_everywhere() -> bool:
            nonlocal seen_s, asked
            for child in children:
                child.check()
            if self._without(tweet, asked):
                return False
            seen_s = time.monotonic() - began
            missing = self._without(tweet, range(self._followers))
            asked = missing[-1:]
            return not missing

        wait_until(is_everywhere, what="all timelines show a tweet", every_s=_ASKED_EVERY_S)
        return seen_s

    def _without(self, tweet: int, followers: Sequence[int]) -> list[int]:
        """Those of the followers whose timelines lack the tweet."""
        live = (self._client.get(f"{self._view}:live") or b"").decode()
        pipe = self._client.pipeline(transaction=False)
        for follower in followers:
            pipe.exists(f"{self._view}:{live}:views.{self._view}:{follower}:{tweet}")
        return [follower for follower, has in zip(followers, pipe.execute(), strict=True) if not has]

    def close(self) -> None:
        self._client.close()
