"""A sink in OpenSearch with standing searches: its table, its job, and what was told on the topic of matches."""

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import orjson
from opensearchpy import OpenSearch
from pyspark.sql import SparkSession

from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import MATCHES, control_topic
from cdc.kafka.topic_reader import TopicReader
from cdc.postgres.slot import emit_heartbeat
from extensions.searches.commands import add, parse_search
from extensions.searches.follower import Follower
from lockstep.apply import apply_sinks
from monitor.waits import Waits
from stack.stack import Endpoints
from tests.captured import Captured
from tests.databases import Database
from tests.spark_here import Job

SINK: Final = "search"
_WAIT_S: Final = 300.0


class SearchedSink:
    """Capture of some tables, the job of an OpenSearch sink, and applications that read it."""

    def __init__(self, endpoints: Endpoints, directory: Path, spark: SparkSession, tables: str) -> None:
        self.prefix = f"searched{uuid4().hex[:8]}"
        self.search = OpenSearch(endpoints.opensearch_url)
        self.source = Database(endpoints.source_dsn)
        self.source.execute(tables)
        names = self.source.connection.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
        sections = (
            f"[sinks.{SINK}]\ntype = 'opensearch'\nurls = ['{endpoints.opensearch_url}']\nreplicas = 0\n"
            f"prefix = '{self.prefix}'\n"
        )
        captured = [f"public.{name}" for (name,) in names]
        self.captured = Captured(self.source, endpoints.kafka_bootstrap, directory, captured, sections=sections)
        self.config = self.captured.config
        self.seen = 0
        """How much of what was told a test has looked at."""
        self._spark = spark
        self.captured.start()
        self.job = self.start_job()

    def start_job(self) -> Job:
        self.job = Job(self._spark, partial(apply_sinks, self.config, sinks=[SINK], once=False))
        return self.job

    def execute(self, *statements: str) -> None:
        """Each in a transaction of its own."""
        for statement in statements:
            self.source.connection.execute(statement.encode())

    def wait(self) -> None:
        """Until the sink has applied what is committed now."""
        target = emit_heartbeat(self.source.connection)
        deadline = time.monotonic() + _WAIT_S
        with Waits(self.config.as_pipeline(), {SINK: self.config.sinks[SINK]}) as waits:
            while not (waited := waits.wait(target, timeout_s=2.0)).is_reached:
                assert self.job.poll() is None, self.job.output()
                assert time.monotonic() < deadline, (waited.late, self.job.output()[-5000:])

    def add(self, name: str, query: Mapping[str, Any], table: str = "public.profile") -> None:
        add(self.config, SINK, parse_search(name, table, orjson.dumps(query).decode()), say=lambda _: None)

    def follower(self, **options: Any) -> Follower:
        return Follower(self.config, SINK, **options)

    def reports(self) -> list[dict[str, Any]]:
        """The values on the topic of matches, in order."""
        topic = control_topic(self.captured.name, MATCHES)
        if not TopicAdmin(self.captured.client).exists(topic):
            return []
        records = TopicReader(self.captured.client).records(topic)
        return [orjson.loads(record.value) for record in records if record.value is not None]

    def close(self) -> None:
        self.job.close()
        self.captured.stop()
        for index in self.search.indices.get(index=f"{self.prefix}.*", params={"expand_wildcards": "all"}):
            self.search.indices.delete(index=index)
        self.search.close()
        self.source.drop()


def settle(sink: SearchedSink, follower: Follower) -> None:
    """Until all that is committed now was applied and looked at."""
    sink.wait()
    report_all(follower)


def report_all(follower: Follower) -> None:
    """Until all that the sink has applied by now was looked at."""
    while follower.step():
        pass


def events(reported: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """(event, search, id) of each."""
    return [(each["event"], each["search"], each["id"]) for each in reported]


def matching(reported: list[dict[str, Any]]) -> dict[str, set[str]]:
    """The ids that match each search after all that was told; each begins and ceases in turn, with growing tags."""
    now: dict[str, set[str]] = {}
    tags: dict[tuple[str, str], str] = {}
    for each in reported:
        at = each["search"], each["id"]
        ids = now.setdefault(each["search"], set())
        assert (each["event"] == "begins") == (each["id"] not in ids), each
        assert each["tag"] >= tags.get(at, ""), each
        tags[at] = each["tag"]
        ids ^= {each["id"]}
    return now
