"""A sink is rebuilt beside the live generation, under traffic, and switched to and back without a gap."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from cdc.kafka.control_topics import read_tables
from cdc.model.lsn import format_lsn, parse_lsn
from cdc.postgres.connection import connect
from cdc.postgres.slot import emit_heartbeat
from jobs.generations.record import list_generations
from lockstep.apply import apply_sinks, read_from
from lockstep.cli.main import exit_code
from lockstep.config import Config, load
from lockstep.generations import drop, list_of, settings_of_generation, switch_to
from lockstep.verify.command import with_built_settings
from lockstep.verify.verify import VerifyOptions, verify
from monitor.collector import LagCollector
from sinks.contract import Progress, Sink
from sinks.opensearch.names import alias_name
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.opened import closing_sink
from tests.pipeline import Pipeline, traffic, wait_until
from tests.readers import Read, cache_reader, reading, search_reader, warehouse_reader
from tests.topics import compact_soon, configure

pytestmark = [pytest.mark.live, pytest.mark.busy]

_numbers = itertools.count(1)
KEYS = range(1, 11)
KINDS = ("search", "cache", "warehouse")


def _change_runs(chosen: str) -> list[Any]:
    """All kinds, with each change tested for one: the contract suite switches generations of all of them."""
    return [kind if kind == chosen else pytest.param(kind, marks=pytest.mark.soak) for kind in KINDS]


class Counters(threading.Thread):
    """Raises the balance of the read rows without a pause."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(daemon=True)
        self._pipeline = pipeline
        self._finished = threading.Event()

    def run(self) -> None:
        with self._pipeline.sql() as sql:
            while not self._finished.is_set():
                sql.execute(
                    f"update {self._pipeline.name}.account set balance = balance + 1 where id = any(%s)", (list(KEYS),)
                )
                time.sleep(0.1)

    def finish(self) -> None:
        self._finished.set()
        self.join()


class Followed(Pipeline):
    """A pipeline whose rows 1 to 10 are counters, with capture in a process and its sinks applied to in this one."""

    def __init__(self, endpoints: Endpoints, directory: Path, spark: SparkSession) -> None:
        name = f"rebuild{os.getpid()}_{next(_numbers)}"
        super().__init__(endpoints, directory, name, sinks=True)
        self.spark = spark
        with self.sql() as sql:
            sql.execute(
                f"insert into {name}.account (id, owner, balance) select i, 'counter', 1 from generate_series(1, 10) i"
            )
            sql.execute(f"insert into {name}.entry select i, 1, 'n', '{{}}' from generate_series(1, 1000) i")
        self.capture = self.start_capture()
        self.wait_streaming(self.capture)
        self.job = self.apply(spark)
        self.wait_applied(self.job)

    def restart(self) -> None:
        """Stop the job, and begin again."""
        self.job.stop()
        self.job = self.apply(self.spark)
        self.wait_applied(self.job)


def _followed(endpoints: Endpoints, directory: Path, spark: SparkSession) -> Iterator[Followed]:
    made = Followed(endpoints, directory, spark)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def pipeline(endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Followed]:
    """One for all tests that leave it unchanged, apart from its generations' numbers."""
    yield from _followed(endpoints, tmp_path_factory.mktemp("rebuild"), spark)


@pytest.fixture
def own_pipeline(endpoints: Endpoints, tmp_path: Path, spark: SparkSession) -> Iterator[Followed]:
    """For a test that changes tables or topics."""
    yield from _followed(endpoints, tmp_path, spark)


def _reads(pipeline: Pipeline) -> dict[str, AbstractContextManager[Read]]:
    endpoints, name = pipeline.endpoints, pipeline.name
    account = pipeline.config.source.table_names[0]
    return {
        "search": search_reader(endpoints, alias_name(f"{name}_search", account), "balance"),
        "cache": cache_reader(endpoints, f"{name}_cache", f"{name}.account", "balance"),
        "warehouse": warehouse_reader(endpoints, f'"{name}_warehouse"."{name}__account"', "balance"),
    }


def _changed(pipeline: Pipeline, kind: str, line: str) -> Path:
    """The configuration with one more line for one sink, in a file of its own."""
    section = f"[sinks.{pipeline.name}_{kind}]"
    path = pipeline.directory / f"{pipeline.name}-{kind}.toml"
    path.write_text(pipeline.path.read_text().replace(section, f"{section}\n{line}"))
    return path


def _generations(config: Config, sink: str) -> list[tuple[int, bool, str]]:
    with closing_sink(open_sink(sink, config.sinks[sink], 1)) as opened:
        return [
            (generation.number, generation.is_live, generation.phase.value) for generation in list_generations(opened)
        ]


def _live(config: Config, sink: str) -> int:
    return next(number for number, is_live, _ in _generations(config, sink) if is_live)


def _verified(config: Config, sink: str) -> None:
    options = with_built_settings(config, VerifyOptions(sink))
    report = verify(config, options, say=lambda _: None, progress=lambda _: None, stopping=lambda: False)
    assert report.is_equal, report.to_json()


@pytest.mark.parametrize("kind", _change_runs("search"))
def test_a_rebuild_with_another_mapping_is_switched_and_switched_back_while_readers_read(
    pipeline: Followed, kind: str
) -> None:
    sink = f"{pipeline.name}_{kind}"
    path = _changed(pipeline, kind, f'exclude = ["{pipeline.name}.account.tags"]')
    config = load(path)
    old = _live(config, sink)
    since = len(pipeline.job.reports)
    counters = Counters(pipeline)
    counters.start()
    try:
        with (
            traffic(pipeline, seed=20 + KINDS.index(kind), pause_s=0.1),
            reading({kind: _reads(pipeline)[kind]}, KEYS),
        ):
            built = pipeline.rebuild(pipeline.spark, sink, path=path, switch_over=True).finish()
            new = built.generation
            assert (built.report.is_equal, built.is_live, built.switched_from) == (True, True, old)
            assert _generations(config, sink) == [(old, False, "ready"), (new, True, "ready")]
            # Until the running job has taken it over.
            pipeline.job.wait_for("SinkStarted", since=since, sink=sink, generation=new)
            assert switch_to(config, sink, number=None, back=True) == (new, old)
            assert _generations(config, sink) == [(old, True, "ready"), (new, False, "ready")]
            assert switch_to(config, sink, number=None, back=False) == (old, new)
            assert _generations(config, sink) == [(old, False, "ready"), (new, True, "ready")]
    finally:
        counters.finish()
    with LagCollector(pipeline.config.as_pipeline(), pipeline.config.sinks) as collector:
        stages = [stage.sink for stage in collector.collect().stages if stage.sink is not None]
    assert {(stage.generation, stage.is_live) for stage in stages if stage.name == sink} == {(old, False), (new, True)}
    _verified(config, sink)
    drop(config, sink, old, agreed=lambda _: True)
    assert _generations(config, sink) == [(new, True, "ready")]


def test_a_killed_rebuild_goes_on_and_a_second_one_at_the_same_time_is_refused(pipeline: Followed) -> None:
    sink = f"{pipeline.name}_cache"
    path = _changed(pipeline, "cache", f'exclude = ["{pipeline.name}.account.owner"]')
    config = load(path)
    live = _live(config, sink)
    killed = pipeline.start("lockstep", "rebuild", sink, "--config", str(path))
    wait_until(
        lambda: f"sink started sink={sink} generation={live + 1}" in killed.output(),
        what="the build has begun",
        timeout_s=300,
    )
    os.killpg(killed.pid, signal.SIGSTOP)  # it would soon be done
    assert "being rebuilt already" in str(pipeline.rebuild(pipeline.spark, sink, path=path).failed())
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert _generations(config, sink)[-1] == (live + 1, False, "building")
    with _lock_of_a_rebuild(config, sink) as holder:  # the server learns late that the holder is gone
        goes_on = pipeline.rebuild(pipeline.spark, sink, path=path)
        waiting = "select count(*) from pg_locks where pg_backend_pid() = any(pg_blocking_pids(pid))"
        wait_until(lambda: holder.execute(waiting).fetchone()[0], what="the rebuild waits for its lock")  # type: ignore[index]
    assert goes_on.finish().report.is_equal
    assert f"going on with generation {live + 1}" in goes_on.said
    assert _generations(config, sink)[-1] == (live + 1, False, "ready")
    drop(config, sink, live + 1, agreed=lambda _: True)


def test_a_rebuild_runs_in_the_driver_that_runs_and_goes_on_in_the_next_one(pipeline: Followed) -> None:
    """The driver is this process."""
    sink = f"{pipeline.name}_cache"
    path = _changed(pipeline, "cache", f'exclude = ["{pipeline.name}.account.tags"]')
    config = load(path)
    live, since = _live(config, sink), len(pipeline.job.reports)
    with traffic(pipeline, seed=30, pause_s=0.1):
        command = pipeline.start("lockstep", "rebuild", sink, "--switch", "--config", str(path))
        generation = pipeline.job.wait_until(
            lambda report: report["report"] == "SinkStarted" and report["sink"] == sink, since=since
        )["generation"]
        assert generation > live
        pipeline.restart()
        assert pipeline.wait_ended(command) == 0, command.output()
    assert "no other Spark is started" in command.output()
    assert "starting Spark here" not in command.output()
    assert f"sink started sink={sink} generation={generation}" in command.output()
    assert _generations(config, sink) == [(live, False, "ready"), (generation, True, "ready")]
    _verified(config, sink)
    assert switch_to(config, sink, number=None, back=True) == (generation, live)
    drop(config, sink, generation, agreed=lambda _: True)


@pytest.mark.soak
def test_a_rebuild_whose_driver_is_killed_goes_on_in_a_spark_of_its_own(own_pipeline: Followed) -> None:
    pipeline, sink = own_pipeline, f"{own_pipeline.name}_cache"
    pipeline.job.stop()
    driver = pipeline.start_apply()
    pipeline.wait_applied(driver)
    path = _changed(pipeline, "cache", f'exclude = ["{pipeline.name}.account.tags"]')
    command = pipeline.start("lockstep", "rebuild", sink, "--switch", "--config", str(path))
    wait_until(lambda: f"sink started sink={sink}" in command.output(), what="the build has begun")
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    with traffic(pipeline, seed=31, pause_s=0.1):
        assert pipeline.wait_ended(command, timeout_s=600) == 0, command.output()
    assert "starting Spark here" in command.output()
    assert f"generation 2 of {sink} is equal to the source, and readers see it now" in command.output()
    assert _live(load(path), sink) == 2


@contextmanager
def _lock_of_a_rebuild(config: Config, sink: str) -> Iterator[psycopg.Connection[Any]]:
    with connect(config.source, application="the last rebuild") as connection:
        lock = f"lockstep rebuild {config.pipeline.name} {sink}"
        connection.execute("select pg_advisory_lock(hashtextextended(%s, 0))", (lock,))
        yield connection


def _live_sink(config: Config, name: str) -> Sink:
    generation = next(generation for generation in list_of(config, name) if generation.is_live)
    return open_sink(name, settings_of_generation(config, name, generation), generation.number).sink


@pytest.mark.soak
def test_a_new_sink_is_built_from_a_log_that_holds_one_event_per_key(own_pipeline: Followed) -> None:
    """Long after the snapshot: rows were deleted, keys changed, and compaction has left each key's last event."""
    pipeline = own_pipeline
    topics = list(pipeline.config.topics().values())
    # Without any time for deletes, sinks that are a moment late may miss some; this test doesn't compare those.
    compact_soon(pipeline.client, *topics)
    with traffic(pipeline, seed=40, pause_s=0.02) as writes:
        wait_until(lambda: writes.transactions > 100, what="some traffic")
    with pipeline.sql() as sql:

        def is_compacted() -> bool:
            # Each partition needs another record to roll its segment.
            sql.execute(f"update {pipeline.name}.account set balance = balance + 1")
            sql.execute(f"update {pipeline.name}.entry set note = 'n'")
            time.sleep(1)
            records = [event for events in pipeline.published(snapshot=True).values() for event in events]
            keys = {(topic, key) for topic, key, _, _ in records}
            return len(records) < 1.6 * len(keys) and sum(value is None for _, _, value, _ in records) < len(keys) / 20

        wait_until(is_compacted, what="the topics are compacted")
    # Otherwise no sink could go on after a pause, however short.
    configure(pipeline.client, topics, {"delete.retention.ms": "3600000"})
    name = f"{pipeline.name}_late"
    section = f'\n[sinks.{name}]\ntype = "redis"\nurl = "{pipeline.endpoints.redis_url}"\n'
    path = pipeline.directory / f"{name}.toml"
    path.write_text(pipeline.path.read_text() + section)
    with traffic(pipeline, seed=41, pause_s=0.1):
        built = pipeline.rebuild(pipeline.spark, name, path=path).finish()
    assert (built.report.is_equal, built.is_live) == (True, True)  # no other was
    assert _generations(load(path), name) == [(1, True, "ready")]


def test_the_log_is_read_from_any_position_and_the_watermark_never_lies(
    pipeline: Followed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = f"{pipeline.name}_cache"
    # The command itself, in the Spark that is open here.
    monkeypatch.setattr("lockstep.apply.apply_sinks", partial(apply_sinks, opened=pipeline.spark))

    def applied(*options: str, code: int = 0) -> str:
        capsys.readouterr()
        arguments = ["apply", sink, "--once", *options, "--config", str(pipeline.path)]
        assert exit_code(arguments) == code
        return capsys.readouterr().err

    pipeline.wait_applied(pipeline.job)
    assert "a job applies to sink" in applied("--from-lsn", "0/0", code=1)
    assert pipeline.job.stop() == 0
    before = _progress(pipeline, sink)

    messages = applied("--from-lsn", "0/0")
    assert f"{sum(before.next_offsets.values()):,} records of the log are read again" in messages
    assert "are left out" not in messages
    again = _progress(pipeline, sink)
    assert (again.watermark_lsn >= before.watermark_lsn, again.reads_again) == (True, {})

    with traffic(pipeline, seed=50, pause_s=0.02) as writes:
        wait_until(lambda: writes.transactions > 20, what="some traffic")
    capture_end = _wal_end(pipeline)
    with pipeline.sql() as sql:
        sql.execute(f"update {pipeline.name}.account set owner = 'after the gap' where id = 1")
    before_gap = _progress(pipeline, sink)
    assert "--yes" in applied("--from-lsn", capture_end, code=2)  # nobody is there to be asked
    assert "beyond the end of the WAL" in applied("--from-lsn", "FFFF/0", "--yes", code=2)
    questions: list[str] = []
    options = {"lsn": parse_lsn(capture_end), "time_ms": None, "say": questions.append}
    assert not read_from(pipeline.config, sink, agreed=lambda question: bool(questions.append(question)), **options)  # type: ignore[arg-type]
    assert questions[0].startswith("leave out ")
    assert questions[1:] == ["nothing was changed"]
    assert _progress(pipeline, sink) == before_gap
    assert "records are left out" in applied("--from-lsn", capture_end, "--yes")
    with_gap = _progress(pipeline, sink)
    assert with_gap.skipped
    applied()
    assert _progress(pipeline, sink).watermark_lsn == with_gap.watermark_lsn  # whatever else is applied

    applied("--from-time", "2020-01-01T00:00:00")
    closed = _progress(pipeline, sink)
    assert not closed.skipped
    assert closed.watermark_lsn > with_gap.watermark_lsn
    pipeline.restart()


def _wal_end(pipeline: Pipeline) -> str:
    """A position up to which everything is published, as text."""
    with pipeline.sql() as sql:
        target = emit_heartbeat(sql)

    def is_published() -> bool:
        state = pipeline.state()
        return state is not None and state.end_lsn >= target

    wait_until(is_published, what="published")
    return format_lsn(target)


def _progress(pipeline: Pipeline, sink: str) -> Progress:
    with closing_sink(open_sink(sink, pipeline.config.sinks[sink], 1)) as opened:
        live = opened.generations.live()
        assert live is not None
    with closing_sink(open_sink(sink, pipeline.config.sinks[sink], live)) as opened:
        progress = opened.generations.load_progress()
        assert progress is not None
        return progress


@pytest.mark.soak
def test_after_a_column_was_renamed_and_one_added_a_rebuild_is_the_way_out(own_pipeline: Followed) -> None:
    """Earlier rows keep their values under the new names."""
    pipeline = own_pipeline
    sink = f"{pipeline.name}_cache"
    with pipeline.sql() as sql:
        sql.execute(f"alter table {pipeline.name}.account rename column owner to holder")
        sql.execute(f"alter table {pipeline.name}.account add column grade int not null default 5")
        sql.execute(f"insert into {pipeline.name}.account (id, holder, grade) values (-1, 'new', 7)")
    for kind in KINDS:
        [failed] = pipeline.job.wait_for("TablesHeld", sink=f"{pipeline.name}_{kind}")["sentences"]
        assert "seems to be renamed" in failed
        assert "lockstep rebuild" in failed
    assert pipeline.job.stop() == 0
    assert pipeline.rebuild(pipeline.spark, sink, switch_over=True).finish().is_live
    table = read_tables(pipeline.client, pipeline.name)[pipeline.config.source.table_names[0]]
    live = _live_sink(pipeline.config, sink)
    try:
        rows = {stored.key["id"]: stored.row for stored in live.rows(table, [{"id": 2}, {"id": -1}])}
    finally:
        live.close()
    assert (rows[2]["holder"], rows[2]["grade"]) == ("counter", 5)
    assert (rows[-1]["holder"], rows[-1]["grade"]) == ("new", 7)
    assert "owner" not in rows[2]
