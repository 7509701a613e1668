"""Views in jobs under test: a log and a judging PostgreSQL with the same writes, and what a sink holds of a view."""

import random
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import SparkSession

from cdc.kafka.control_topics import read_compacted
from cdc.kafka.topic_admin import TopicAdmin, partitions_of, view_topic_plans
from cdc.kafka.topic_names import PROGRESS, VIEWS, control_topic, view_topic
from cdc.model.event import JsonValue
from cdc.model.table import Table
from cdc.protocol.view_steps import ViewStep, step_key
from jobs.executor.driver_line import Until
from jobs.executor.follow import deliver
from jobs.executor.open_sinks import close_sink
from jobs.executor.result import Result, from_arrow
from jobs.executor.task_input import Task, ViewInput, ViewTopicInput
from jobs.executor.view_shards import of_shard, range_of_shard
from jobs.offsets import Offsets
from jobs.query.view_plan import planned_view, top_rows
from jobs.spark.source import portable_client
from monitor.view_feed import ViewFeed
from sinks.contract import Progress
from sinks.registry import SinkSettings, open_sink
from sinks.view_settings import TopSettings, ViewSettings
from stack.stack import Endpoints
from tests.events import Change, Delete, Empty, Log, Put, kafka_settings
from tests.job_process import JobProcess, run_sinks, spark_settings
from tests.opened import closing_sink
from tests.spark_here import Job
from tests.view_queries import column, shape
from views.retention import whole_minutes
from views.shard import Shard, shards
from views.sql.statement import whole_statement
from views.state.file import FileState
from views.view import View, ViewPosition, identity

USERS = shape("users", ["id"], column("id", "int4"), column("name", "text"))
TWEETS = shape("tweets", ["id"], column("id", "int4"), column("user_id", "int4"), column("body", "text"))
FOLLOWS = shape("follows", ["follower_id", "followee_id"], column("follower_id", "int4"), column("followee_id", "int4"))
TABLES = (USERS, TWEETS, FOLLOWS)
HITS = shape("hits", [], column("user_id", "int4"), column("ip", "text"))

VISITORS = ViewSettings(
    name="visitors",
    key=("user_id",),
    sql="select h.user_id, u.name, count(*) as n, count(distinct h.ip) as ips from hits h join users u"
    " on u.id = h.user_id group by h.user_id, u.name",
)
"""Over an append-only table."""

WRITERS = ViewSettings(
    name="writers",
    key=("id",),
    sql='select u.id, u.name, count(t.id) as n, max(t.body collate "C") as last from users u left join tweets t'
    " on t.user_id = u.id group by u.id, u.name",
    tasks=2,
)
"""In two shards. A tweet that gets another user may move between them."""

TIMELINE = ViewSettings(
    name="timeline",
    key=("follower_id", "tweet_id"),
    sql="select f.follower_id, t.id as tweet_id, t.body, u.name from tweets t"
    " join follows f on f.followee_id = t.user_id join users u on u.id = t.user_id",
    top=TopSettings(per=("follower_id",), order="tweet_id desc", n=5),
)
TIMELINE_SQL = (
    "select follower_id, tweet_id, body, name from (select q.*, row_number() over (partition by follower_id"
    f" order by tweet_id desc) as rank from ({TIMELINE.sql}) q) ranked where rank <= 5"
)
Rows = dict[tuple[JsonValue, ...], Mapping[str, JsonValue]]


class ViewPipeline:
    """One view over a log whose tables are in PostgreSQL as well. ``query`` is the view's whole query, for which all
    rows of tables count. ``states`` has the query's result after each transaction, by its LSN."""

    def __init__(
        self,
        endpoints: Endpoints,
        directory: Path,
        judge: psycopg.Connection[Any],
        *,
        view: ViewSettings = TIMELINE,
        query: str = TIMELINE_SQL,
        tables: Sequence[Table] = TABLES,
        **topics: int,
    ) -> None:
        self.name = f"views{uuid.uuid4().hex[:8]}"
        self.sink = f"{self.name}v"
        self.endpoints = endpoints
        self.directory = directory
        self.tables = tables
        self.view = view
        self._judge = judge
        self._query = query
        for table in tables:
            columns = ", ".join(f"{one.name} {one.type_name}" for one in table.columns)
            judge.execute(f"drop table if exists {table.name.name}".encode())
            key = f", primary key ({', '.join(table.key)})" if table.key else ""
            judge.execute(f"create table {table.name.name} ({columns}{key})".encode())
        self.log = Log(kafka_settings(endpoints.kafka_bootstrap, **topics), self.name, tables)
        self.states: dict[int, Rows] = {self.log.lsn: {}}
        planned = planned_view(view, {table.name: table for table in tables})
        self.plan, self.result, self.sharding = planned.plan, planned.table, planned.sharding
        self._time_ms = 0

    def settings(self, kind: str, **more: Any) -> SinkSettings:
        from sinks.delta.settings import DeltaSettings
        from sinks.opensearch.settings import OpenSearchSettings
        from sinks.redis.settings import RedisSettings
        from sinks.warehouse.settings import WarehouseSettings

        model: Any = {
            "redis": partial(RedisSettings, url=self.endpoints.redis_url, prefix=self.sink),
            "warehouse": partial(WarehouseSettings, url=self.endpoints.warehouse_url),
            "opensearch": partial(OpenSearchSettings, urls=(self.endpoints.opensearch_url,), replicas=0),
            "delta": partial(DeltaSettings, root=str(self.directory / "lake")),
        }[kind]
        settings: SinkSettings = model(tables=tuple(str(name) for name in self.plan.tables), view=self.view, **more)
        return settings

    # --- writing ---

    def write(self, *changes: Change, progress: bool = True, at_ms: int = 0) -> int:
        """Write one transaction to the log and to the judge. Returns its LSN. ``progress``: also writes its progress
        record. ``at_ms`` is its commit time, in milliseconds since 1970."""
        self._write_judge(changes)
        self._time_ms = max(self._time_ms, whole_minutes(at_ms))
        return self._committed(self.log.commit(changes, progress=progress, commit_time_ms=at_ms))

    def write_in_parts(self, parts: Sequence[Sequence[Change]]) -> int:
        """Write one transaction that is published in parts, each with a progress record of what was before it."""
        self._write_judge([change for part in parts for change in part])
        for part in parts[:-1]:
            self.log.commit_part(part)
        return self._committed(self.log.commit(parts[-1]))

    def _committed(self, lsn: int) -> int:
        self.states[lsn] = self.expected()
        return lsn

    def _write_judge(self, changes: Sequence[Change]) -> None:
        with self._judge.transaction():
            for change in changes:
                name = sql.Identifier(change.table.name.name)
                if isinstance(change, Empty):
                    self._judge.execute(sql.SQL("truncate {}").format(name))
                    continue
                key = (
                    change.key if isinstance(change, Delete) else {name: change.row[name] for name in change.table.key}
                )
                where = sql.SQL(" and ").join(sql.SQL("{} = %s").format(sql.Identifier(part)) for part in key)
                if key:
                    self._judge.execute(sql.SQL("delete from {} where {}").format(name, where), list(key.values()))
                if isinstance(change, Put):
                    values = sql.SQL(", ").join(sql.Placeholder() * len(change.row))
                    row = [change.row[one.name] for one in change.table.columns]
                    self._judge.execute(sql.SQL("insert into {} values ({})").format(name, values), row)

    def expected(self) -> Rows:
        """The query's result in PostgreSQL now, by the view's key."""
        query = self._query
        if self.plan.retained:
            query = whole_statement(self.plan, self.view.sql, top_rows(self.view), time_ms=self._time_ms)
        with self._judge.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            rows = cursor.execute(query.encode()).fetchall()
        return {
            tuple(row[name] for name in self.view.key): orjson.loads(orjson.dumps(row, default=str)) for row in rows
        }

    # --- jobs ---

    def arguments(self, settings: SinkSettings, **spark: Any) -> dict[str, Any]:
        return {
            "pipeline": self.name,
            "kafka": self.log.kafka,
            "tables": self.log.table_names,
            "sinks": {self.sink: settings},
            "spark": spark_settings(self.directory, view_directory=self.directory / "state", **spark),
        }

    def job(self, spark: SparkSession, settings: SinkSettings, **more: Any) -> Job:
        return Job(spark, partial(run_sinks, **self.arguments(settings, **more)))

    def apply_once(self, spark: SparkSession, settings: SinkSettings, **more: Any) -> Job:
        """Apply what the log holds now. Returns when it is done."""
        job = Job(spark, partial(run_sinks, **self.arguments(settings, **more), once=True))
        job.finish()
        return job

    def process(self, settings: SinkSettings, *, once: bool = False, **more: Any) -> JobProcess:
        return JobProcess(**self.arguments(settings, **more), once=once)

    def topic(self) -> ViewTopicInput:
        """The topic of generation 1, which this creates."""
        topic = view_topic(self.name, self.sink, 1)
        cluster = TopicAdmin(self.log.kafka.client())
        cluster.create(cluster.missing(view_topic_plans(self.name, topic, self.log.kafka.topics)))
        return ViewTopicInput(self.name, self.sink, 1, topic, self.log.kafka.topics.max_message_bytes)

    def steps(self, generation: int = 1) -> list[tuple[int, Rows]]:
        """What a reader of the topic sees from its beginning to its present end: the rows at each step's LSN."""
        return steps_on_topic(self.log.kafka.client(), self.name, self.sink, generation, key=self.view.key)

    def task(self, settings: SinkSettings, **view: Any) -> Task:
        """A task of generation 1, which this prepares. ``view`` are further facts of ViewInput."""
        with closing_sink(open_sink(self.sink, settings, 1)) as opened:
            opened.sink.prepare([self.result])
            fence = opened.sink.claim()
        shapes = {table.name: table for table in self.tables}
        return Task(
            sink=self.sink,
            settings=settings,
            generation=1,
            fence=fence,
            tables={self.log.topic(table): table.name for table in self.tables if table.name in self.plan.tables},
            shapes=shapes,
            window_bytes=1 << 26,
            retry_s=5.0,
            run=uuid.uuid4().hex,
            client=portable_client(self.log.kafka),
            view=ViewInput(
                self.plan,
                self.result,
                str(self.directory / "state"),
                control_topic(self.name, PROGRESS),
                self.name,
                **view,
            ),
        )

    def shards(self) -> list[Shard]:
        assert self.sharding is not None
        return shards(self.sharding, self.view.tasks)

    def shard_tasks(self, settings: SinkSettings) -> list[Task]:
        """The tasks of all shards, of one run."""
        task = self.task(settings, shards=tuple(self.shards()))
        return [
            of_shard(task, {part.at: part.end for part in range_of_shard(number, {})})[0]
            for number in range(self.view.tasks)
        ]

    # --- what is there ---

    def rows(self, settings: SinkSettings, generation: int = 1) -> Rows:
        """What the sink holds, by the view's key."""
        with closing(open_sink(self.sink, settings, generation).sink) as sink:
            return {tuple(stored.key[name] for name in self.view.key): stored.row for stored in sink.scan(self.result)}

    def progress(self, settings: SinkSettings) -> Progress:
        with closing_sink(open_sink(self.sink, settings, 1)) as opened:
            stored = opened.generations.load_progress()
        assert stored is not None
        return stored

    def position(self) -> ViewPosition:
        """The position of a state that nobody has open. After this, no job goes on with the state by itself."""
        shapes = {table.name: table for table in self.tables}
        with closing(FileState(self.directory / "state", identity=identity(self.plan, shapes))) as state:
            return View(self.plan, shapes, state).position()

    def ends(self) -> Offsets:
        cluster = TopicAdmin(self.log.kafka.client())
        topics = [self.log.topic(table) for table in self.tables]
        return cluster.committed_ends(partitions_of(topics, cluster.partition_counts(topics)))

    def close(self) -> None:
        self.log.close()


def delivered(task: Task) -> Result:
    """One batch in this process, which succeeds. A writer of the view's topic stays open here."""
    result = from_arrow(pa.Table.from_batches(list(deliver(task, Until(), []))))
    close_sink(task)
    assert not result.failures, result.failures
    return result


def steps_on_topic(
    client: Mapping[str, str | int], pipeline: str, view: str, generation: int, *, key: Sequence[str]
) -> list[tuple[int, Rows]]:
    """See ``ViewPipeline.steps``. The newest record says how far a reader goes."""
    stored = read_compacted(client, control_topic(pipeline, VIEWS))[step_key(view, generation)]
    newest = ViewStep.from_bytes(stored.value, stored.what)
    rows: Rows = {}
    seen: list[tuple[int, Rows]] = []
    with closing(ViewFeed(client, pipeline, view, generation, stopping=lambda: False).portions()) as portions:
        for portion in portions:
            for record in portion.records:
                at = tuple(orjson.loads(record.key)[name] for name in key)
                if record.value is None:
                    rows.pop(at, None)
                else:
                    rows[at] = orjson.loads(record.value)
            if portion.step is not None:
                seen.append((portion.step.lsn, dict(rows)))
                if portion.step == newest:
                    break
    return seen


def traffic(pipeline: ViewPipeline, transactions: int, *, seed: int = 1) -> int:
    """Random transactions over several of the timeline's tables. Returns the last LSN."""
    chance = random.Random(seed)
    lsn = 0
    for number in range(transactions):
        changes: dict[tuple[str, tuple[int, ...]], Change] = {}
        for _ in range(chance.randint(1, 6)):
            change, key = _random_change(chance, number)
            changes[change.table.name.name, key] = change
        lsn = pipeline.write(*changes.values())
    return lsn


def hits(pipeline: ViewPipeline, transactions: int, *, seed: int = 1) -> int:
    """Random transactions over the tables of VISITORS, which sometimes delete all hits. Returns the last LSN."""
    chance = random.Random(seed)
    lsn = 0
    for number in range(transactions):
        changes: list[Change] = [Empty(HITS)] if chance.random() < 0.1 else []
        for _ in range(chance.randint(1, 5)):
            changes.append(Put(HITS, {"user_id": chance.randrange(6), "ip": f"ip{chance.randrange(3)}"}))
        if chance.random() < 0.5:
            user = chance.randrange(6)
            gone = chance.random() < 0.3
            changes.append(Delete(USERS, {"id": user}) if gone else Put(USERS, {"id": user, "name": f"n{number}"}))
        lsn = pipeline.write(*changes)
    return lsn


def _random_change(chance: random.Random, number: int) -> tuple[Change, tuple[int, ...]]:
    gone = chance.random() < 0.3
    one, other = chance.randrange(8), chance.randrange(8)
    match chance.randrange(4):
        case 0:
            return (Delete(USERS, {"id": one}) if gone else Put(USERS, {"id": one, "name": f"n{number}"})), (one,)
        case 1:
            follows = {"follower_id": one, "followee_id": other}
            return (Delete(FOLLOWS, follows) if gone else Put(FOLLOWS, follows)), (one, other)
        case _:
            tweet = chance.randrange(40)
            row = {"id": tweet, "user_id": one, "body": f"b{number}"}
            return (Delete(TWEETS, {"id": tweet}) if gone else Put(TWEETS, row)), (tweet,)
