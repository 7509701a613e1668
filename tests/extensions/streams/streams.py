"""Streams of a test: topics with JSON, queries over them in a job, and what came out."""

import itertools
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from cdc.kafka.settings import KafkaSettings
from cdc.kafka.topic_admin import TopicAdmin, TopicPlan
from cdc.kafka.topic_reader import TopicReader
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.records import figures_name
from extensions.streams.jobs.resume import Figures, load_figures
from extensions.streams.jobs.thread import StreamQueryJob
from extensions.streams.settings import StreamQuerySettings, StreamSettings
from extensions.streams.status import StreamQueryCollector, StreamQueryStatus
from jobs.settings import SparkSettings
from sinks.registry import SinkSettings
from tests.job_process import run_sinks, spark_settings
from tests.opened import closing_sink
from tests.spark_here import Job
from tests.topics import remove_later

_numbers = itertools.count(1)

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
"""The time from which the events of tests count."""


def at(minutes: float) -> str:
    """So many minutes after BEGIN, in the form that events have."""
    return (BEGIN + timedelta(minutes=minutes)).isoformat().replace("+00:00", "Z")


class Streams:
    """Topics of a test's own, one partition each, and one query over them."""

    def __init__(
        self,
        bootstrap: str,
        directory: Path,
        streams: Mapping[str, Mapping[str, Any]],
        query: StreamQuerySettings,
        settings: SinkSettings,
        *,
        max_message_bytes: int | None = None,
    ) -> None:
        number = next(_numbers)
        self.pipeline = f"s{os.getpid()}_{number}"
        self.name = f"result_{os.getpid()}_{number}"
        topics = {"partitions": 1, "replication_factor": 1}
        if max_message_bytes is not None:
            topics["max_message_bytes"] = max_message_bytes
        self.kafka = KafkaSettings.model_validate({"bootstrap_servers": bootstrap, "topics": topics})
        self.client = self.kafka.client()
        remove_later(self.client, self.pipeline)
        self.spark: SparkSettings = spark_settings(directory)
        self.streams = {
            name: StreamSettings.model_validate({"topic": f"{self.pipeline}.web.{name}", **fields})
            for name, fields in streams.items()
        }
        self.query, self.settings = query, settings
        # The events' times are of the past, and a broker that goes by them deletes what is older than a week.
        kept = {"retention.ms": "-1"}
        plans = [TopicPlan(stream.topic, 1, 1, kept) for stream in self.streams.values()]
        TopicAdmin(self.client).create(plans)
        self._producer = Producer(self.client)

    def send(
        self,
        stream: str,
        *records: Mapping[str, Any] | bytes | None,
        received: float | None = None,
        partition: int = 0,
    ) -> None:
        """Produce records, which Kafka received so many minutes after BEGIN; by default when each happened."""
        settings = self.streams[stream]
        for record in records:
            value = json.dumps(record).encode() if isinstance(record, Mapping) else record
            when = BEGIN
            if received is not None:
                when += timedelta(minutes=received)
            elif isinstance(record, Mapping):
                when = datetime.fromisoformat(record[settings.time])
            self._producer.produce(settings.topic, value, timestamp=round(when.timestamp() * 1000), partition=partition)
        assert self._producer.flush(60) == 0

    def plan(self, *, once: bool = True, **changes: Any) -> StreamQueryPlan:
        fields = {
            "query": self.query,
            "settings": self.settings,
            "streams": self.streams,
            "spark": self.spark,
        } | changes
        return StreamQueryPlan(name=self.name, pipeline=self.pipeline, kafka=self.kafka, once=once, **fields)

    def arguments(self, *, once: bool = True, **changes: Any) -> dict[str, Any]:
        """What ``run_sinks`` takes for this query alone."""
        return {
            "pipeline": self.pipeline,
            "kafka": self.kafka,
            "tables": [],
            "sinks": {},
            "spark": self.spark,
            "once": once,
            "beside": [StreamQueryJob(self.plan(once=once, **changes))],
        }

    def job(self, session: SparkSession, *, once: bool = False, **changes: Any) -> Job:
        return Job(session, partial(run_sinks, **self.arguments(once=once, **changes)))

    def run(self, session: SparkSession, /, **changes: Any) -> int:
        """Run to the end of the topics, with these parts of the plan changed; the exit code."""
        with self.job(session, once=True, **changes) as job:
            code = job.finish()
        self.told = job.output()
        return code

    def status(self) -> StreamQueryStatus:
        """What is told of the only build."""
        with StreamQueryCollector([self.plan()]) as collector:
            (status,) = collector.look()
        return status

    def figures(self, generation: int = 1) -> Figures:
        with closing_sink(self.plan().opened(generation)) as opened:
            return load_figures(opened.records.load, generation)

    def restore(self, figures: Figures, generation: int = 1) -> None:
        """Put back figures of an earlier batch, as if those since were never stored."""
        with closing_sink(self.plan().opened(generation)) as opened:
            opened.records.save(figures_name(generation), figures.text())

    def on_topic(self, generation: int = 1) -> list[tuple[bytes, bytes]]:
        """Keys and values of the records of the result's topic, in order."""
        topic = self.plan().result_topic(generation)
        assert topic is not None
        found = []
        for record in TopicReader(self.client).records(topic.name):
            assert record.value is not None
            found.append((record.key, record.value))
        return found

    def aside(self, kind: str) -> list[dict[str, Any]]:
        """The records of the side topic of this kind, the newest of each key."""
        newest: dict[bytes, dict[str, Any]] = {}
        for record in TopicReader(self.client).records(self.plan().side_topic.name):
            assert record.value is not None
            newest[record.key] = json.loads(record.value)
        return [value for value in newest.values() if value["kind"] == kind]
