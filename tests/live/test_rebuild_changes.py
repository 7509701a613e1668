"""A build's inputs change: tables get another shape, topics are recreated or lose records."""

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from cdc.kafka.control_topics import read_compacted
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import DEAD_LETTERS, control_topic
from jobs.generations.record import list_generations
from lockstep.cli.main import exit_code
from lockstep.rebuild.outcome import Interrupted
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.opened import closing_sink
from tests.pipeline import Pipeline, Process, traffic, wait_until
from tests.spark_here import Rebuild
from tests.topics import configure

pytestmark = [pytest.mark.live, pytest.mark.busy]

_numbers = itertools.count(1)


class Captured(Pipeline):
    """A pipeline with some rows, whose sinks were never applied to. Capture runs in a process."""

    def __init__(self, endpoints: Endpoints, directory: Path, spark: SparkSession) -> None:
        name = f"anew{os.getpid()}_{next(_numbers)}"
        super().__init__(endpoints, directory, name, sinks=True)
        self.spark = spark
        with self.sql() as sql:
            sql.execute(
                f"insert into {name}.account (id, owner, balance) select i, 'o', i from generate_series(1, 1000) i"
            )
            sql.execute(f"insert into {name}.entry select i, 1, 'n', '{{}}' from generate_series(1, 1000) i")
        self.capture: Process
        self.stream()

    def stream(self) -> None:
        self.capture = self.start("lockstep", "capture", "--config", str(self.path))
        self.wait_streaming(self.capture)

    def stop_capture(self) -> None:
        assert self.stop(self.capture) == 0

    def build(self, sink: str, *flags: str, path: Path | None = None) -> Rebuild:
        """Begin what the command does with these flags."""
        return self.rebuild(self.spark, sink, path=path, **{_FLAGS[flag]: True for flag in flags})

    def carry_out(self, commands: list[list[str]]) -> Rebuild | None:
        """Run these commands, and wait for capture's copies. Returns the last one's rebuild, if it was one."""
        last = None
        for command in commands:
            last = None
            if command[0] == "rebuild":
                last = self.build(*command[1:])
                last.finish()
                continue
            copied = self.capture.output().count("copied table=")
            arguments = [*command, *(["--yes"] if "--drop" in command else []), "--config", str(self.path)]
            assert exit_code(arguments) == 0
            if command[0] == "snapshot":
                tables = len(command) - 2
                wait_until(
                    lambda: self.capture.output().count("copied table=") >= copied + tables,  # noqa: B023  waited for here
                    what="capture has copied the tables",
                )
        return last


_FLAGS = {"--trimmed": "trimmed"}


@pytest.fixture
def pipeline(endpoints: Endpoints, tmp_path: Path, spark: SparkSession) -> Iterator[Captured]:
    made = Captured(endpoints, tmp_path, spark)
    yield made
    made.close()


def _interrupt(build: Rebuild) -> None:
    build.ask_to_stop()
    build.wait_ended(120)
    assert isinstance(build.error, Interrupted), build.error


def _generations(pipeline: Pipeline, sink: str) -> list[tuple[int, bool, str]]:
    with closing_sink(open_sink(sink, pipeline.config.sinks[sink], 1)) as opened:
        return [
            (generation.number, generation.is_live, generation.phase.value) for generation in list_generations(opened)
        ]


def _offered(text: str) -> list[list[str]]:
    """The commands of an error's way out, in their order."""
    hint = "\n".join(text[text.rindex("let capture copy what is missing: ") :].splitlines()[:2])
    return [command.split() for command in re.findall(r"lockstep ((?:snapshot|generations|rebuild) [^,\n]+)", hint)]


@pytest.mark.soak
def test_a_column_that_is_retyped_in_the_middle_lets_the_build_begin_again(pipeline: Captured) -> None:
    sink = f"{pipeline.name}_warehouse"
    with traffic(pipeline, seed=1, pause_s=0.2):
        build = pipeline.build(sink)
        build.wait_for("SinkStarted", sink=sink, generation=1)
        with pipeline.sql() as sql:
            sql.execute(f"alter table {pipeline.name}.entry alter doc type text")
            # The new generation has a column of type jsonb for it: this row is rejected there.
            sql.execute(f"insert into {pipeline.name}.entry values (-1, 1, 'n', 'no json')")
        built = build.finish()
    assert "generation 1 can't become right any more" in build.said
    assert "column 'doc' was jsonb and is text" in build.said
    assert (built.report.is_equal, built.is_live) == (True, True)
    assert _generations(pipeline, sink) == [(2, True, "ready")]
    assert not read_compacted(pipeline.client, control_topic(pipeline.name, DEAD_LETTERS))


def _delete_topic(pipeline: Pipeline, table: str) -> None:
    topic = next(topic for name, topic in pipeline.config.topics().items() if name.name == table)
    admin = AdminClient(dict(pipeline.client))
    admin.delete_topics([topic], operation_timeout=30)[topic].result(300)
    wait_until(lambda: topic not in TopicAdmin(pipeline.client).partition_counts([topic]), what=f"{topic} is gone")


@pytest.mark.soak
def test_a_topic_that_is_recreated_ends_the_build_that_reads_it(pipeline: Captured) -> None:
    sink, account = f"{pipeline.name}_cache", f"{pipeline.name}.account"
    # Without capture no comparison ends: the build stays where it is.
    pipeline.stop_capture()
    build = pipeline.build(sink)
    build.wait_says("comparing with the source")
    _interrupt(build)
    _delete_topic(pipeline, "account")
    pipeline.stream()  # it creates what is missing
    with pipeline.sql() as sql:
        sql.execute(f"delete from {account} where id = 1")
        sql.execute(f"update {account} set owner = 'new' where id = 2")

    message = str(pipeline.build(sink).failed())
    assert "was deleted or recreated" in message
    assert _offered(message) == [
        ["snapshot", "table", account],
        ["generations", sink, "--drop", "1"],
        ["rebuild", sink],
    ]
    assert _generations(pipeline, sink) == [(1, False, "building")]
    *first, last = _offered(message)
    pipeline.carry_out(first)

    pipeline.wait_published(pipeline.capture)
    pipeline.stop_capture()
    build = pipeline.build(*last[1:])
    build.wait_says("comparing with the source")
    _delete_topic(pipeline, "account")
    message = str(build.failed())
    assert "was deleted or recreated" in message
    assert _generations(pipeline, sink) == [(2, False, "building")]

    pipeline.stream()
    with traffic(pipeline, seed=2, pause_s=0.2):
        mended = pipeline.carry_out(_offered(message))
    assert mended is not None
    assert mended.finish().is_live
    assert _generations(pipeline, sink) == [(3, True, "ready")]


def _trim(pipeline: Pipeline) -> None:
    """Delete everything that the topics hold now. Kafka refuses that for a topic that is only compacted."""
    cluster, topics = TopicAdmin(pipeline.client), list(pipeline.config.topics().values())
    counts = cluster.all_partition_counts()
    ends = cluster.end_offsets([(topic, n) for topic in topics for n in range(counts[topic])])
    configure(pipeline.client, topics, {"cleanup.policy": "compact,delete", "retention.ms": "-1"})
    admin = AdminClient(dict(pipeline.client))
    wanted = [TopicPartition(topic, partition, end) for (topic, partition), end in ends.items()]

    def are_deleted() -> bool:
        """The brokers learn of a topic's settings a moment later."""
        try:
            for future in admin.delete_records(wanted).values():
                future.result(300)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.POLICY_VIOLATION:
                raise
            return False
        return True

    wait_until(are_deleted, what="the records are deleted")
    configure(pipeline.client, topics, {"cleanup.policy": "compact"})


@pytest.mark.soak
def test_from_topics_that_were_trimmed_a_sink_is_built_once_the_tables_were_copied_again(pipeline: Captured) -> None:
    sink, account, entry = f"{pipeline.name}_cache", f"{pipeline.name}.account", f"{pipeline.name}.entry"
    pipeline.wait_published(pipeline.capture)
    _trim(pipeline)
    with pipeline.sql() as sql:
        sql.execute(f"update {account} set owner = 'later' where id = 2")
        sql.execute(f"delete from {entry} where account_id = 3")
    message = str(pipeline.build(sink).failed())
    assert "which are still to be read, were deleted" in message
    assert _offered(message) == [["snapshot", "table", account, entry], ["rebuild", sink, "--trimmed"]]
    with traffic(pipeline, seed=3, pause_s=0.2):
        mended = pipeline.carry_out(_offered(message))
    assert mended is not None
    assert mended.finish().is_live
    assert _generations(pipeline, sink) == [(1, True, "ready")]

    # Trimmed while it is read: the beginning that Spark has noted is of no use any more.
    warehouse = f"{pipeline.name}_warehouse"
    build = pipeline.build(warehouse, "--trimmed")
    build.wait_for("SinkStarted", sink=warehouse, generation=1)
    _interrupt(build)
    with pipeline.sql() as sql:
        sql.execute(f"update {account} set owner = 'again'")
        sql.execute(f"update {entry} set note = 'again'")
    pipeline.wait_published(pipeline.capture)
    _trim(pipeline)
    message = str(pipeline.build(warehouse).failed())
    assert _offered(message)[-2:] == [
        ["generations", warehouse, "--drop", "1"],
        ["rebuild", warehouse, "--trimmed"],
    ]
    pipeline.carry_out(_offered(message))
    assert _generations(pipeline, warehouse) == [(2, True, "ready")]
