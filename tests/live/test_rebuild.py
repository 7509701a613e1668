"""A sink is built anew beside the one that readers see, under traffic, and switched to and back without anybody noticing."""

import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.kafka.control_topics import read_tables
from cdc.model.event import Position, RowEvent
from cdc.model.lsn import format_lsn
from cdc.postgres.slot import emit_heartbeat
from jobs.generations.record import list_generations
from lockstep.config import Config, load
from lockstep.generations import list_of, settings_of_generation
from sinks.contract import Batch, Progress, Sink
from sinks.opensearch.names import alias_name
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.pipeline import Pipeline, traffic, wait_until
from tests.readers import Read, cache_reader, reading, search_reader, warehouse_reader
from tests.topics import compact_soon, configure

pytestmark = [pytest.mark.live, pytest.mark.busy]

_numbers = itertools.count(1)
KEYS = range(1, 11)
KINDS = ("search", "cache", "warehouse")


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


@pytest.fixture(scope="module")
def pipeline(endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """A pipeline whose rows 1 to 10 are counters, with capture and apply running."""
    name = f"rebuild{os.getpid()}_{next(_numbers)}"
    made = Pipeline(endpoints, tmp_path_factory.mktemp("rebuild"), name, sinks=True)
    with made.sql() as sql:
        sql.execute(
            f"insert into {name}.account (id, owner, balance) select i, 'counter', 1 from generate_series(1, 10) i"
        )
        sql.execute(f"insert into {name}.entry select i, 1, 'n', '{{}}' from generate_series(1, 3000) i")
    capture = made.start_capture()
    made.wait_streaming(capture)
    made.apply = made.start_apply()  # type: ignore[attr-defined]
    made.wait_applied(made.apply)  # type: ignore[attr-defined]
    yield made
    made.close()


def _reads(pipeline: Pipeline) -> dict[str, Read]:
    endpoints, name = pipeline.endpoints, pipeline.name
    account = pipeline.config.source.table_names[0]
    return {
        "search": search_reader(endpoints, alias_name(f"{name}_search", account), "balance"),
        "cache": cache_reader(endpoints, f"{name}_cache", f"{name}.account", "balance"),
        "warehouse": warehouse_reader(endpoints, f'"{name}_warehouse"."{name}__account"', "balance"),
    }


def _changed(pipeline: Pipeline, kind: str, line: str) -> Path:
    """The configuration with a line more for one sink, in a file of its own."""
    section = f"[sinks.{pipeline.name}_{kind}]"
    path = pipeline.directory / f"{pipeline.name}-{kind}.toml"
    path.write_text(pipeline.path.read_text().replace(section, f"{section}\n{line}"))
    return path


def _run(pipeline: Pipeline, config: Path, *command: str) -> Any:
    """Run a command to its end; its standard output, from JSON where it is that."""
    process = pipeline.start("lockstep", *command, "--config", str(config))
    code = process.wait(300)
    text: str = process.log.read_text()  # type: ignore[attr-defined]
    assert code == 0, text
    return text


def _generations(config: Config, sink: str) -> list[tuple[int, bool, str]]:
    opened = open_sink(sink, config.sinks[sink], 1)
    try:
        return [(one.number, one.is_live, one.phase.value) for one in list_generations(opened)]
    finally:
        opened.sink.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_rebuild_with_another_mapping_is_switched_and_switched_back_while_readers_read(
    pipeline: Pipeline, kind: str
) -> None:
    sink = f"{pipeline.name}_{kind}"
    path = _changed(pipeline, kind, f'exclude = ["{pipeline.name}.account.tags"]')
    config = load(path)
    counters = Counters(pipeline)
    counters.start()
    try:
        with (
            traffic(pipeline, seed=20 + KINDS.index(kind), pause_s=0.1),
            reading({kind: _reads(pipeline)[kind]}, KEYS),
        ):
            told = _run(pipeline, path, "rebuild", sink, "--switch")
            assert "readers see it now" in told
            assert _generations(config, sink) == [(1, False, "ready"), (2, True, "ready")]
            _wait_applies(pipeline, sink, 2)
            _run(pipeline, path, "switch", sink, "--back")
            assert _generations(config, sink) == [(1, True, "ready"), (2, False, "ready")]
            _run(pipeline, path, "switch", sink)
            assert _generations(config, sink) == [(1, False, "ready"), (2, True, "ready")]
    finally:
        counters.finish()
    lag = json.loads(_stdout(pipeline, "lag", "--json"))
    assert {(stage["generation"], stage["live"]) for stage in lag["stages"] if stage.get("sink") == sink} == {
        (1, False),
        (2, True),
    }
    _run(pipeline, path, "verify", sink)
    _run(pipeline, path, "generations", sink, "--drop", "1")
    assert _generations(config, sink) == [(2, True, "ready")]


def _wait_applies(pipeline: Pipeline, sink: str, generation: int) -> None:
    """Until the running apply has taken the generation over."""
    log = pipeline.apply.log  # type: ignore[attr-defined]
    wait_until(
        lambda: f"sink started sink={sink} generation={generation} " in log.read_text(),
        what=f"apply applies to generation {generation}",
    )


def _stdout(pipeline: Pipeline, *command: str) -> str:
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "lockstep", *command, "--config", str(pipeline.path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout


def test_a_killed_rebuild_goes_on_and_a_second_one_at_the_same_time_is_refused(pipeline: Pipeline) -> None:
    sink = f"{pipeline.name}_cache"
    path = _changed(pipeline, "cache", f'exclude = ["{pipeline.name}.account.owner"]')
    config = load(path)
    live = next(number for number, is_live, _ in _generations(config, sink) if is_live)
    killed = pipeline.start("lockstep", "rebuild", sink, "--config", str(path))
    wait_until(
        lambda: f"sink started sink={sink} generation={live + 1}" in killed.log.read_text(),  # type: ignore[attr-defined]
        what="the build has begun",
        timeout_s=120,
    )
    second = pipeline.start("lockstep", "rebuild", sink, "--config", str(path))
    assert second.wait(60) == 1
    assert "being rebuilt already" in second.log.read_text()  # type: ignore[attr-defined]
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert _generations(config, sink)[-1] == (live + 1, False, "building")
    told = _run(pipeline, path, "rebuild", sink)
    assert f"going on with generation {live + 1}" in told
    assert _generations(config, sink)[-1] == (live + 1, False, "ready")
    _run(pipeline, path, "generations", sink, "--drop", str(live + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_live_generation_is_written_again_in_place(pipeline: Pipeline, kind: str) -> None:
    """What a bug has written under the right tag, and rows that should not be there, are gone afterwards."""
    sink = f"{pipeline.name}_{kind}"
    config = pipeline.config
    table = read_tables(pipeline.client, pipeline.name)[config.source.table_names[0]]
    found = _live_sink(config, sink)
    try:
        pipeline.wait_applied(pipeline.apply)  # type: ignore[attr-defined]
        victim = next(found.rows(table, [{"id": 1}]))
        wrong = {**victim.row, "owner": "what the bug made of it"}
        position = Position("", 0, 0)
        fence = found.claim()  # from here on the running job is refused by the warehouse, as by any other writer
        found.apply(
            Batch(
                [
                    RowEvent(table.name, {"id": 1}, victim.tag, wrong, position),
                    RowEvent(table.name, {"id": -7}, "0" * 27 + "1", {**wrong, "id": -7}, position),
                ],
                fence=fence,
                overwrite_equal_tags=True,
            )
        )
        assert next(found.rows(table, [{"id": 1}])).row["owner"] == "what the bug made of it"
        pipeline.apply = _restart(pipeline)  # type: ignore[attr-defined]
        with traffic(pipeline, seed=60 + KINDS.index(kind), pause_s=0.1):
            told = _run(pipeline, pipeline.path, "rebuild", sink, "--in-place")
        assert "removing 1 rows" in told
        assert next(found.rows(table, [{"id": 1}])).row["owner"] != "what the bug made of it"
        assert not list(found.rows(table, [{"id": -7}]))
    finally:
        found.close()
    pipeline.wait_applied(pipeline.apply)  # type: ignore[attr-defined]


def _restart(pipeline: Pipeline) -> Any:
    pipeline.stop(pipeline.apply)  # type: ignore[attr-defined]
    apply = pipeline.start_apply()
    pipeline.wait_applied(apply)
    return apply


def _live_sink(config: Config, name: str) -> Sink:
    generation = next(one for one in list_of(config, name) if one.is_live)
    return open_sink(name, settings_of_generation(config, name, generation), generation.number).sink


def test_a_new_sink_is_built_from_a_log_that_holds_one_event_per_key(pipeline: Pipeline) -> None:
    """Long after the snapshot: rows were deleted, keys changed, and compaction has taken everything but each key's last event."""
    topics = list(pipeline.config.topics().values())
    # Without any time for deletes the sinks that are a moment behind may miss some: nothing behind this test compares them.
    compact_soon(pipeline.client, *topics)
    with traffic(pipeline, seed=40, pause_s=0.02):
        time.sleep(3)
    with pipeline.sql() as sql:

        def is_compacted() -> bool:
            # Each partition needs another record for its segment to be rolled.
            sql.execute(f"update {pipeline.name}.account set balance = balance + 1")
            sql.execute(f"update {pipeline.name}.entry set note = 'n'")
            time.sleep(1)
            records = [event for events in pipeline.published(snapshot=True).values() for event in events]
            keys = {(topic, key) for topic, key, _, _ in records}
            return len(records) < 1.6 * len(keys) and sum(value is None for _, _, value, _ in records) < len(keys) / 20

        wait_until(is_compacted, what="the topics are compacted", timeout_s=120)
    # Else no sink may go on after a pause, however short.
    configure(pipeline.client, topics, {"delete.retention.ms": "3600000"})
    name = f"{pipeline.name}_late"
    section = f'\n[sinks.{name}]\ntype = "redis"\nurl = "{pipeline.endpoints.redis_url}"\n'
    path = pipeline.directory / f"{name}.toml"
    path.write_text(pipeline.path.read_text() + section)
    with traffic(pipeline, seed=41, pause_s=0.1):
        told = _run(pipeline, path, "rebuild", name)
    assert "readers see it now" in told  # nobody else did
    assert _generations(load(path), name) == [(1, True, "ready")]


def test_the_log_is_read_from_any_position_and_the_watermark_never_lies(pipeline: Pipeline) -> None:
    sink = f"{pipeline.name}_cache"
    apply = pipeline.apply  # type: ignore[attr-defined]
    refused = pipeline.start("lockstep", "apply", sink, "--from-lsn", "0/0", "--config", str(pipeline.path))
    assert refused.wait(60) == 1
    assert "a job applies to sink" in refused.log.read_text()  # type: ignore[attr-defined]
    pipeline.wait_applied(apply)
    assert pipeline.stop(apply) == 0
    before = _progress(pipeline, sink)

    told = _run(pipeline, pipeline.path, "apply", sink, "--once", "--from-lsn", "0/0")
    assert f"{sum(before.next_offsets.values()):,} records of the log are read again" in told
    assert "are left out" not in told
    assert _progress(pipeline, sink).watermark_lsn >= before.watermark_lsn

    with traffic(pipeline, seed=50, pause_s=0.02):
        time.sleep(1)
    capture_end = _wal_end(pipeline)
    with pipeline.sql() as sql:
        sql.execute(f"update {pipeline.name}.account set owner = 'behind the gap' where id = 1")
    told = _run(pipeline, pipeline.path, "apply", sink, "--once", "--from-lsn", capture_end)
    assert "records are left out" in told
    with_gap = _progress(pipeline, sink)
    assert with_gap.skipped
    told = _run(pipeline, pipeline.path, "apply", sink, "--once")
    assert _progress(pipeline, sink).watermark_lsn == with_gap.watermark_lsn  # whatever else is applied

    _run(pipeline, pipeline.path, "apply", sink, "--once", "--from-time", "2020-01-01T00:00:00")
    closed = _progress(pipeline, sink)
    assert not closed.skipped
    assert closed.watermark_lsn > with_gap.watermark_lsn
    pipeline.apply = pipeline.start_apply()  # type: ignore[attr-defined]
    pipeline.wait_applied(pipeline.apply)  # type: ignore[attr-defined]


def _wal_end(pipeline: Pipeline) -> str:
    """A position up to which all is published, as text."""
    with pipeline.sql() as sql:
        target = emit_heartbeat(sql)

    def is_published() -> bool:
        state = pipeline.state()
        return state is not None and state.end_lsn >= target

    wait_until(is_published, what="published")
    return format_lsn(target)


def _progress(pipeline: Pipeline, sink: str) -> Progress:
    opened = open_sink(sink, pipeline.config.sinks[sink], 1)
    try:
        live = opened.generations.live()
        assert live is not None
    finally:
        opened.sink.close()
    opened = open_sink(sink, pipeline.config.sinks[sink], live)
    try:
        progress = opened.generations.load_progress()
        assert progress is not None
        return progress
    finally:
        opened.sink.close()


def test_after_a_column_was_renamed_and_one_added_a_rebuild_is_the_way_out(pipeline: Pipeline) -> None:
    """The last test of this module: what applied before stops here. Rows from before keep their values under the new names."""
    sink = f"{pipeline.name}_cache"
    apply = pipeline.apply  # type: ignore[attr-defined]
    with pipeline.sql() as sql:
        sql.execute(f"alter table {pipeline.name}.account rename column owner to holder")
        sql.execute(f"alter table {pipeline.name}.account add column grade int not null default 5")
        sql.execute(f"insert into {pipeline.name}.account (id, holder, grade) values (-1, 'new', 7)")
    # Those that have columns stop, and say what to do; the cache goes on with rows as they come.
    wait_until(lambda: apply.log.read_text().count("seems to be renamed") >= 2, what="the sinks stop", timeout_s=120)
    assert "lockstep rebuild" in apply.log.read_text()
    assert pipeline.stop(apply) == 1
    told = _run(pipeline, pipeline.path, "rebuild", sink, "--switch")
    assert "readers see it now" in told
    table = read_tables(pipeline.client, pipeline.name)[pipeline.config.source.table_names[0]]
    found = _live_sink(pipeline.config, sink)
    try:
        rows = {stored.key["id"]: stored.row for stored in found.rows(table, [{"id": 2}, {"id": -1}])}
    finally:
        found.close()
    assert (rows[2]["holder"], rows[2]["grade"]) == ("counter", 5)
    assert (rows[-1]["holder"], rows[-1]["grade"]) == ("new", 7)
    assert "owner" not in rows[2]
