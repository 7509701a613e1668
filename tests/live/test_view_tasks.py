"""A view gets four tasks, and one again, on real servers: built beside, compared and switched to while it is read."""

import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from cdc.kafka.control_topics import read_tables
from cdc.model.event import JsonValue
from cdc.postgres.slot import emit_heartbeat
from jobs.query.view_plan import planned_view
from lockstep.config import load
from lockstep.generations import find, settings_of_generation, switch_to
from lockstep.verify.options import VerifyOptions
from lockstep.verify.verify import verify
from monitor.waits import Waits
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.databases import until
from tests.pipeline import Pipeline
from tests.spark_here import Job

pytestmark = [pytest.mark.live, pytest.mark.busy, pytest.mark.soak]

ACCOUNTS: Final = 12
STORES: Final = ("cache", "search")

Rows = dict[int, Mapping[str, JsonValue]]


def _view(name: str, store: str, tasks: int) -> str:
    sql = (
        f'select a.id, a.owner, count(e.line) as n, max(e.note collate "C") as note from {name}.account a'
        f" left join {name}.entry e on e.account_id = a.id group by a.id, a.owner"
    )
    return f"""apply = false
[views.{name}_of_{store}]
sink = "{name}_{store}"
key = ["id"]
tasks = {tasks}
sql = '{sql}'
"""


def _pipeline_of(endpoints: Endpoints, directory: Path, name: str) -> Pipeline:
    views = {store: _view(name, store, 1) for store in STORES}
    return Pipeline(
        endpoints, directory, name, sinks=True, more={"spark": f'view_directory = "{directory / "views"}"', **views}
    )


@pytest.fixture
def pipeline(endpoints: Endpoints, tmp_path: Path) -> Iterator[Pipeline]:
    with closing(_pipeline_of(endpoints, tmp_path, f"viewtasks{uuid.uuid4().hex[:8]}")) as made:
        yield made


class Writer(threading.Thread):
    """Gives all rows of the result another version in each transaction, in both tables at once."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(daemon=True)
        self._pipeline = pipeline
        self._finished = threading.Event()
        self.version = 0
        self.failure: BaseException | None = None
        self.write()

    def write(self) -> int:
        """One transaction. Returns an LSN from after it."""
        version, name = self.version + 1, self._pipeline.name
        with self._pipeline.sql() as connection:
            with connection.transaction():
                for statement in (
                    f"insert into {name}.account (id, owner) select i, '{version:08}'"
                    f" from generate_series(1, {ACCOUNTS}) i on conflict (id) do update set owner = excluded.owner",
                    f"delete from {name}.entry where line > 2",
                    f"insert into {name}.entry (account_id, line, note) select i, line, '{version:08}'"
                    f" from generate_series(1, {ACCOUNTS}) i, generate_series(1, {2 + version % 2}) line"
                    " on conflict (account_id, line) do update set note = excluded.note",
                ):
                    connection.execute(statement.encode())
            self.version = version
            return emit_heartbeat(connection)

    def run(self) -> None:
        try:
            while not self._finished.wait(0.2):
                self.write()
        except BaseException as error:
            self.failure = error

    def finish(self) -> None:
        self._finished.set()
        self.join()
        assert self.failure is None, self.failure


def rows_of(pipeline: Pipeline, view: str, generation: int | None = None) -> Rows:
    """What readers of a view see, or a generation of it."""
    config = pipeline.config
    with closing((opened := open_sink(view, config.sinks[view], 1)).sink):
        number = generation or opened.generations.live()
    assert number is not None
    settings = settings_of_generation(config, view, find(config, view, number))
    assert settings.view is not None
    table = planned_view(settings.view, read_tables(pipeline.client, pipeline.name)).table
    with closing((opened := open_sink(view, settings, number)).sink):
        return {int(str(row.key["id"])): dict(row.row) for row in opened.sink.scan(table)}


class Reader(threading.Thread):
    """Polls a view all the time, and records states that can't have been at any commit, or go back."""

    def __init__(self, pipeline: Pipeline, view: str) -> None:
        super().__init__(daemon=True)
        self._pipeline, self._view = pipeline, view
        self._finished = threading.Event()
        self._seen = dict.fromkeys(range(1, ACCOUNTS + 1), "")
        self.polls = 0
        self.wrong: list[object] = []

    def run(self) -> None:
        try:
            while not self._finished.is_set():
                self._look(rows_of(self._pipeline, self._view))
                self.polls += 1
        except BaseException as error:
            self.wrong.append(error)

    def _look(self, rows: Rows) -> None:
        if rows.keys() != self._seen.keys():
            self.wrong.append(("other keys", sorted(rows)))
        for key, row in rows.items():
            version = str(row["owner"])
            expected = {"id": key, "owner": version, "note": version, "n": 2 + int(version) % 2}
            if row != expected or version < self._seen[key]:
                self.wrong.append((row, "after", self._seen[key]))
            self._seen[key] = version

    def finish(self) -> None:
        self._finished.set()
        self.join()
        assert self.wrong == []
        assert self.polls > 0


def _wait(pipeline: Pipeline, job: Job, lsn: int, views: list[str]) -> None:
    with Waits(pipeline.config.as_pipeline(), {view: pipeline.config.sinks[view] for view in views}) as waits:
        while not (waited := waits.wait(lsn, timeout_s=2.0)).is_reached:
            assert job.poll() is None, f"{waited.late}\n{job.output()}"


def _has_all(pipeline: Pipeline, view: str, generation: int | None, *, version: int) -> bool:
    return {row["note"] for row in rows_of(pipeline, view, generation).values()} == {f"{version:08}"}


def test_a_view_gets_four_tasks_and_one_again_and_readers_see_no_half_of_it(
    pipeline: Pipeline, spark: SparkSession
) -> None:
    views = [f"{pipeline.name}_of_{store}" for store in STORES]
    with_one = pipeline.path.read_text()
    with_four = with_one.replace("tasks = 1", "tasks = 4")
    writer = Writer(pipeline)
    pipeline.wait_streaming(pipeline.start_capture())
    with pipeline.apply(spark, *views) as job:
        _wait(pipeline, job, writer.write(), views)
        readers = [Reader(pipeline, view) for view in views]
        for thread in (writer, *readers):
            thread.start()
        for generation, text in ((2, with_four), (3, with_one)):
            pipeline.path.write_text(text)
            for view in views:
                with pipeline.rebuild(spark, view, switch_over=True) as rebuild:
                    built = rebuild.finish()
                assert (built.generation, built.report.is_equal, built.switched_from, built.is_live) == (
                    generation,
                    True,
                    generation - 1,
                    True,
                )
                report = verify(
                    load(pipeline.path),
                    VerifyOptions(sink=view),
                    say=lambda _: None,
                    progress=lambda _: None,
                    stopping=lambda: False,
                )
                assert report.is_equal, report
        for view in views:
            assert switch_to(load(pipeline.path), view, number=None, back=True) == (3, 2)
        assert job.poll() is None, job.output()
        writer.finish()
        _wait(pipeline, job, writer.write(), views)
        for reader in readers:
            reader.finish()
        for view in views:
            for generation in (1, 2, 3):
                until(partial(_has_all, pipeline, view, generation, version=writer.version))
        assert job.stop() == 0
    # Changing only the setting leads to a hint at the command. The live generation has four tasks.
    with pipeline.apply(spark, views[0]) as job:
        differs = job.wait_for("DefinitionDiffers", sink=views[0])
        assert (differs["generation"], differs["settings"]) == (2, ["tasks"])
        _wait(pipeline, job, writer.write(), views[:1])
        assert _has_all(pipeline, views[0], None, version=writer.version)
        assert job.stop() == 0
