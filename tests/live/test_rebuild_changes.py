"""What a build stands on changes under it: tables get another shape, topics are made anew or lose records."""

import itertools
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from cdc.kafka.control_topics import read_compacted
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import REJECTED, control_topic
from jobs.generations.record import list_generations
from sinks.contract import Progress
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.pipeline import Pipeline, traffic, wait_until
from tests.topics import configure

pytestmark = [pytest.mark.live, pytest.mark.busy]

_numbers = itertools.count(1)


@pytest.fixture
def pipeline(endpoints: Endpoints, tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline with some rows, whose sinks were never applied to."""
    name = f"anew{os.getpid()}_{next(_numbers)}"
    made = Pipeline(endpoints, tmp_path, name, sinks=True)
    with made.sql() as sql:
        sql.execute(f"insert into {name}.account (id, owner, balance) select i, 'o', i from generate_series(1, 2000) i")
        sql.execute(f"insert into {name}.entry select i, 1, 'n', '{{}}' from generate_series(1, 2000) i")
    made.capture = _stream(made)  # type: ignore[attr-defined]
    yield made
    made.close()


def _stream(pipeline: Pipeline) -> Any:
    capture = _lockstep(pipeline, "capture")
    pipeline.wait_streaming(capture)
    return capture


def _log(process: Any) -> str:
    text: str = process.log.read_text()
    return text


def _generations(pipeline: Pipeline, sink: str) -> list[tuple[int, bool, str]]:
    opened = open_sink(sink, pipeline.config.sinks[sink], 1)
    try:
        return [(one.number, one.is_live, one.phase.value) for one in list_generations(opened)]
    finally:
        opened.sink.close()


def _lockstep(pipeline: Pipeline, *command: str) -> Any:
    return pipeline.start("lockstep", *command, "--config", str(pipeline.path))


def _wait_says(process: Any, words: str, *, times: int = 1) -> None:
    def says() -> bool:
        assert process.poll() is None or _log(process).count(words) >= times, _log(process)
        return _log(process).count(words) >= times

    wait_until(says, what=f"it says {words!r}", timeout_s=300)


def _finish(process: Any, code: int) -> str:
    assert process.wait(300) == code, _log(process)
    return _log(process)


def _offered(text: str) -> list[list[str]]:
    """The commands that an error's way out names, in their order."""
    hint = "\n".join(text[text.rindex("let capture copy what is missing: ") :].splitlines()[:2])
    return [command.split() for command in re.findall(r"lockstep ((?:snapshot|generations|rebuild) [^,\n]+)", hint)]


def _carry_out(pipeline: Pipeline, commands: list[list[str]]) -> str:
    """Run these commands, and wait for capture's copies. What the last one said."""
    told = ""
    for command in commands:
        copied = _log(pipeline.capture).count("copied table=")  # type: ignore[attr-defined]
        told = _finish(_lockstep(pipeline, *command), 0)
        if command[0] == "snapshot":
            tables = len(command) - 2
            _wait_says(pipeline.capture, "copied table=", times=copied + tables)  # type: ignore[attr-defined]
    return told


def test_a_column_that_is_retyped_in_the_middle_lets_the_build_begin_anew(pipeline: Pipeline) -> None:
    sink = f"{pipeline.name}_warehouse"
    with traffic(pipeline, seed=1, pause_s=0.2):
        build = _lockstep(pipeline, "rebuild", sink)
        _wait_says(build, f"sink started sink={sink} generation=1 ")
        with pipeline.sql() as sql:
            sql.execute(f"alter table {pipeline.name}.entry alter doc type text")
            # The generation that is being built has a column of type jsonb for it: this row is rejected there.
            sql.execute(f"insert into {pipeline.name}.entry values (-1, 1, 'n', 'no json')")
        told = _finish(build, 0)
    assert "generation 1 can't become right any more" in told
    assert "column 'doc' was jsonb and is text" in told
    assert "readers see it now" in told
    assert _generations(pipeline, sink) == [(2, True, "ready")]
    assert not read_compacted(pipeline.client, control_topic(pipeline.name, REJECTED))


class _Retyping(threading.Thread):
    """Retypes a column each time that a build of a sink has begun to read."""

    def __init__(self, pipeline: Pipeline, build: Any) -> None:
        super().__init__(daemon=True)
        self._pipeline = pipeline
        self._build = build
        self.changes = 0

    def run(self) -> None:
        with self._pipeline.sql() as sql:
            for generation in itertools.count(1):
                while f"generation={generation} " not in _log(self._build):
                    if self._build.poll() is not None:
                        return
                    threading.Event().wait(0.1)
                to = ("text", "jsonb")[self.changes % 2]
                sql.execute(f"alter table {self._pipeline.name}.entry alter doc type {to} using doc::{to}")
                sql.execute(f"update {self._pipeline.name}.entry set doc = '[]' where account_id = 1")
                self.changes += 1


def test_a_build_begins_anew_a_few_times_and_no_more(pipeline: Pipeline) -> None:
    sink = f"{pipeline.name}_cache"
    build = _lockstep(pipeline, "rebuild", sink)
    retyping = _Retyping(pipeline, build)
    retyping.start()
    told = _finish(build, 1)
    retyping.join()
    assert retyping.changes == 4
    assert "nor could the 3 before it" in told
    assert _generations(pipeline, sink) == [(4, False, "building")]
    told = _finish(_lockstep(pipeline, "rebuild", sink), 0)
    assert "generation 4 can't become right any more" in told
    assert _generations(pipeline, sink) == [(5, True, "ready")]


def _delete_topic(pipeline: Pipeline, table: str) -> None:
    topic = next(topic for name, topic in pipeline.config.topics().items() if name.name == table)
    admin = AdminClient(dict(pipeline.client))
    admin.delete_topics([topic], operation_timeout=30)[topic].result(30)
    wait_until(lambda: topic not in TopicAdmin(pipeline.client).partition_counts(), what=f"{topic} is gone")


def test_a_topic_that_is_made_anew_ends_the_build_that_reads_it(pipeline: Pipeline) -> None:
    sink, account = f"{pipeline.name}_cache", f"{pipeline.name}.account"
    # Without capture no comparison ends: the build stands where it is.
    assert pipeline.stop(pipeline.capture) == 0  # type: ignore[attr-defined]
    build = _lockstep(pipeline, "rebuild", sink)
    _wait_says(build, "comparing with the source")
    os.killpg(build.pid, signal.SIGKILL)
    build.wait()
    _delete_topic(pipeline, "account")
    pipeline.capture = _stream(pipeline)  # type: ignore[attr-defined]  # it creates what is missing
    with pipeline.sql() as sql:
        sql.execute(f"delete from {account} where id = 1")
        sql.execute(f"update {account} set owner = 'new' where id = 2")

    told = _finish(_lockstep(pipeline, "rebuild", sink), 1)
    assert "was deleted or recreated" in told
    assert _offered(told) == [
        ["snapshot", "table", account],
        ["generations", sink, "--drop", "1"],
        ["rebuild", sink],
    ]
    assert _generations(pipeline, sink) == [(1, False, "building")]
    *first, last = _offered(told)
    _carry_out(pipeline, first)

    pipeline.wait_published(pipeline.capture)  # type: ignore[attr-defined]
    assert pipeline.stop(pipeline.capture) == 0  # type: ignore[attr-defined]
    build = _lockstep(pipeline, *last)
    _wait_says(build, "comparing with the source")
    _delete_topic(pipeline, "account")
    told = _finish(build, 1)
    assert "was deleted or recreated" in told
    assert _generations(pipeline, sink) == [(2, False, "building")]

    pipeline.capture = _stream(pipeline)  # type: ignore[attr-defined]
    with traffic(pipeline, seed=2, pause_s=0.2):
        told = _carry_out(pipeline, _offered(told))
    assert "readers see it now" in told
    assert _generations(pipeline, sink) == [(3, True, "ready")]

    _delete_topic(pipeline, "account")
    told = _finish(_lockstep(pipeline, "rebuild", sink, "--in-place"), 1)
    assert "was deleted or recreated" in told
    assert _offered(told) == [["snapshot", "table", account], ["rebuild", sink]]
    assert _generations(pipeline, sink) == [(3, True, "ready")]
    assert pipeline.stop(pipeline.capture) == 0  # type: ignore[attr-defined]
    pipeline.capture = _stream(pipeline)  # type: ignore[attr-defined]
    told = _finish(_lockstep(pipeline, "rebuild", sink), 1)
    assert "isn't the one that generation 3 has read" in told
    assert "NOT equal to the source" in told
    _carry_out(pipeline, _offered(told))
    assert _generations(pipeline, sink) == [(3, True, "ready"), (4, False, "ready")]


def _trim(pipeline: Pipeline) -> None:
    """Delete all that the topics hold now. Kafka refuses that for a topic that is compacted only."""
    cluster, topics = TopicAdmin(pipeline.client), list(pipeline.config.topics().values())
    counts = cluster.partition_counts()
    ends = cluster.end_offsets([(topic, n) for topic in topics for n in range(counts[topic])])
    configure(pipeline.client, topics, {"cleanup.policy": "compact,delete", "retention.ms": "-1"})
    admin = AdminClient(dict(pipeline.client))
    futures = admin.delete_records([TopicPartition(topic, partition, end) for (topic, partition), end in ends.items()])
    for future in futures.values():
        future.result(30)
    configure(pipeline.client, topics, {"cleanup.policy": "compact"})


def test_from_topics_that_were_trimmed_a_sink_is_built_once_the_tables_were_copied_again(pipeline: Pipeline) -> None:
    sink, account, entry = f"{pipeline.name}_cache", f"{pipeline.name}.account", f"{pipeline.name}.entry"
    pipeline.wait_published(pipeline.capture)  # type: ignore[attr-defined]
    _trim(pipeline)
    with pipeline.sql() as sql:
        sql.execute(f"update {account} set owner = 'behind' where id = 2")
        sql.execute(f"delete from {entry} where account_id = 3")
    told = _finish(_lockstep(pipeline, "rebuild", sink), 1)
    assert "which are still to be read, were deleted" in told
    assert _offered(told) == [["snapshot", "table", account, entry], ["rebuild", sink, "--trimmed"]]
    with traffic(pipeline, seed=3, pause_s=0.2):
        told = _carry_out(pipeline, _offered(told))
    assert "readers see it now" in told
    assert _generations(pipeline, sink) == [(1, True, "ready")]

    # Trimmed while it is read: what Spark has noted of the beginning is of no use any more.
    warehouse = f"{pipeline.name}_warehouse"
    build = _lockstep(pipeline, "rebuild", warehouse, "--trimmed")
    _wait_says(build, f"sink started sink={warehouse} generation=1 ")
    os.killpg(build.pid, signal.SIGKILL)
    build.wait()
    with pipeline.sql() as sql:
        sql.execute(f"update {account} set owner = 'again' where id = 4")
    pipeline.wait_published(pipeline.capture)  # type: ignore[attr-defined]
    _trim(pipeline)
    told = _finish(_lockstep(pipeline, "rebuild", warehouse), 1)
    assert _offered(told)[-2:] == [
        ["generations", warehouse, "--drop", "1"],
        ["rebuild", warehouse, "--trimmed"],
    ]
    _carry_out(pipeline, _offered(told))
    assert _generations(pipeline, warehouse) == [(2, True, "ready")]


def _relations(pipeline: Pipeline, schema: str) -> list[str]:
    with psycopg.connect(pipeline.endpoints.warehouse_dsn) as warehouse:
        found = warehouse.execute(
            "select relname from pg_class where relnamespace = to_regnamespace(%s) and relkind in ('r', 'v')", (schema,)
        )
        return sorted(name for (name,) in found)


def test_a_table_that_left_the_settings_is_removed_by_a_replay_in_place_and_comes_back(pipeline: Pipeline) -> None:
    sink, neighbour = f"{pipeline.name}_warehouse", f"{pipeline.name}_cache"
    account, entry = f"{pipeline.name}__account", f"{pipeline.name}__entry"
    _finish(_lockstep(pipeline, "apply", sink, neighbour, "--once"), 0)
    assert _relations(pipeline, sink) == _relations(pipeline, f"{sink}_g1") == [account, entry]

    narrow = pipeline.directory / "narrow.toml"
    section = f"[sinks.{sink}]"
    narrow.write_text(pipeline.path.read_text().replace(section, f'{section}\ntables = ["{pipeline.name}.account"]'))
    told = _finish(pipeline.start("lockstep", "rebuild", sink, "--in-place", "--config", str(narrow)), 0)
    assert f"removed tables that this sink doesn't have any more: {pipeline.name}.entry" in told
    assert _relations(pipeline, sink) == _relations(pipeline, f"{sink}_g1") == [account]
    assert {topic for topic, _ in _progress(pipeline, sink).next_offsets} == {
        topic for name, topic in pipeline.config.topics().items() if name.name == "account"
    }
    assert len(_progress(pipeline, neighbour).topic_ids) == 2

    told = _finish(_lockstep(pipeline, "rebuild", sink, "--in-place"), 0)
    assert "removed tables" not in told
    assert _relations(pipeline, sink) == _relations(pipeline, f"{sink}_g1") == [account, entry]
    assert len(_progress(pipeline, sink).topic_ids) == 2


def _progress(pipeline: Pipeline, sink: str) -> Progress:
    opened = open_sink(sink, pipeline.config.sinks[sink], 1)
    try:
        progress = opened.generations.load_progress()
    finally:
        opened.sink.close()
    assert progress is not None
    return progress
