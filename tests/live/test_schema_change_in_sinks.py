"""Tables change their shape while sinks follow them: what they show, what they refuse, and what a kill leaves."""

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
import sqlalchemy
from opensearchpy import NotFoundError, OpenSearch
from pyspark.sql import SparkSession
from redis import Redis

from cdc.model.errors import LockstepError
from cdc.postgres.slot import emit_heartbeat
from lockstep.verify.options import VerifyOptions
from lockstep.verify.verify import verify
from sinks.registry import open_sink
from stack.stack import Endpoints
from tests.captured import StartCapture
from tests.databases import Database, until
from tests.job_process import JobProcess, run_sinks, spark_settings
from tests.live.test_schema_change import SETUP
from tests.spark_here import Job, Rebuild

pytestmark = [pytest.mark.live, pytest.mark.busy]

ROWS = 1200
KINDS = ("search", "cache", "warehouse")


class Followed:
    """A table that is captured and applied to sinks."""

    def __init__(
        self,
        capture: StartCapture,
        endpoints: Endpoints,
        directory: Path,
        spark: SparkSession,
        kinds: tuple[str, ...],
        settings: str,
    ) -> None:
        addresses = {
            "search": f'type = "opensearch"\nurls = ["{endpoints.opensearch_url}"]\nreplicas = 0\nrefresh_interval_ms'
            " = 200",
            "cache": f'type = "redis"\nurl = "{endpoints.redis_url}"',
            "warehouse": f'type = "warehouse"\nurl = "{endpoints.warehouse_url}"',
        }
        prefix = f"shape{uuid.uuid4().hex[:8]}"
        self.sinks = {kind: f"{prefix}_{kind}" for kind in kinds}
        sections = "\n".join(f"[sinks.{name}]\n{addresses[kind]}\n{settings}" for kind, name in self.sinks.items())
        sections += '\n[spark]\nconf = { "spark.driver.memory" = "512m" }'
        self.endpoints = endpoints
        self.directory = directory
        self.spark = spark
        self.captured = capture("public.t", sections=sections)
        self.config = self.captured.config

    def job(self, **settings: Any) -> Job:
        """A job in this process; ``settings`` are Spark's."""
        return Job(self.spark, partial(run_sinks, **self._arguments(**settings)))

    def process(self) -> JobProcess:
        """A job in a process of its own, to be killed."""
        return JobProcess(**self._arguments())

    def apply_once(self) -> None:
        assert Job(self.spark, partial(run_sinks, **self._arguments(), once=True)).finish() == 0

    def _arguments(self, **settings: Any) -> dict[str, Any]:
        return {
            "pipeline": self.config.pipeline.name,
            "kafka": self.config.kafka,
            "tables": list(self.config.source.keyed_names),
            "sinks": self.config.sinks,
            "spark": spark_settings(self.directory, **settings),
        }

    def rebuild(self, kind: str, *, switch_over: bool = False) -> Rebuild:
        return Rebuild(self.spark, self.config, self.sinks[kind], switch_over=switch_over)

    def rebuild_process(self, kind: str) -> subprocess.Popen[bytes]:
        """`lockstep rebuild` in a process group of its own, to be killed."""
        command = ["rebuild", self.sinks[kind], "--config", str(self.captured.path)]
        with (self.directory / "rebuild.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "lockstep", *command],
                cwd=Path(__file__).parent.parent.parent,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_applied(self, job: Job) -> None:
        """Wait until each sink has everything committed now."""
        target = emit_heartbeat(self.captured.database.connection)

        def is_applied(name: str) -> Callable[[dict[str, Any]], bool]:
            return lambda seen: seen.get("sink") == name and seen.get("watermark_lsn", 0) >= target

        for name in self.sinks.values():
            job.wait_until(is_applied(name), 120)

    def read(self, kind: str, key: int) -> Mapping[str, Any] | None:
        """A row of the live generation as applications see it."""
        name = self.sinks[kind]
        if kind == "cache":
            with Redis.from_url(self.endpoints.redis_url) as cache:
                document: Any = cache.hget(f"{name}:g1:public.t:{key}", "v")
                return None if document is None else dict(orjson.loads(document))
        if kind == "search":
            with OpenSearch(hosts=[self.endpoints.opensearch_url]) as search, contextlib.suppress(NotFoundError):
                return dict(search.get(index=f"{name}.public.t", id=str(key))["_source"])
            return None
        with psycopg.connect(self.endpoints.warehouse_dsn) as connection:
            row = connection.execute(f"select to_jsonb(t) from {name}.t where id = %s", (key,)).fetchone()
            return None if row is None else dict(row[0])

    def wait_shown(self, kind: str, key: int, **expected: object) -> None:
        def is_shown() -> bool:
            row = self.read(kind, key) or {}
            return all(name in row and row[name] == value for name, value in expected.items())

        until(is_shown)

    def assert_equal(self) -> None:
        """`lockstep verify` finds no difference in any sink."""
        for name in self.sinks.values():
            report = verify(
                self.config, VerifyOptions(name), say=lambda _: None, progress=lambda _: None, stopping=lambda: False
            )
            assert report.is_equal, report.to_json()

    def close(self) -> None:
        for kind, name in self.sinks.items():
            if kind == "search":
                with OpenSearch(hosts=[self.endpoints.opensearch_url]) as search:
                    search.indices.delete(index=f"{name}.*")
            elif kind == "warehouse":
                with psycopg.connect(self.endpoints.warehouse_dsn, autocommit=True) as connection:
                    connection.execute(f"drop schema if exists {name}, {name}_g1 cascade")
            else:
                with Redis.from_url(self.endpoints.redis_url) as cache:
                    for key in cache.scan_iter(f"{name}:*", count=10_000):
                        cache.unlink(key)


Follow = Callable[..., Followed]


@pytest.fixture
def follow(capture: StartCapture, endpoints: Endpoints, tmp_path: Path, spark: SparkSession) -> Iterator[Follow]:
    """Captures table t and follows it with sinks, of all or the named kinds; ends it with the test."""
    opened: list[Followed] = []

    def start(*kinds: str, settings: str = "") -> Followed:
        opened.append(Followed(capture, endpoints, tmp_path, spark, kinds or KINDS, settings))
        return opened[-1]

    yield start
    for followed in opened:
        followed.close()


def test_a_default_reaches_the_rows_of_running_sinks_without_one_being_written(
    database: Database, follow: Follow
) -> None:
    database.execute(SETUP[0], SETUP[1], f"insert into t select n, 'a' || n, n from generate_series(1, {ROWS}) n")
    followed = follow()
    with followed.job() as job:
        followed.wait_applied(job)
        database.execute("alter table t add d int not null default 5")
        for kind in KINDS:
            followed.wait_shown(kind, 1, d=5)
            followed.wait_shown(kind, ROWS, d=5)
        for kind in ("cache", "search"):
            carried = job.wait_for("ColumnBackfillProgress", sink=followed.sinks[kind], is_over=True)
            assert (carried["rows"], carried["refused"], carried["columns"]) == (ROWS, 0, ["d"])
        followed.assert_equal()
        # Rows of the new shape come while the next columns do.
        database.execute(
            "update t set d = 7 where id <= 10",
            "begin; update t set a = 'x' where id = 20; alter table t add e jsonb default '{\"k\": [1, null]}';"
            " update t set e = null where id in (20, 21); insert into t (id, e) values (9001, null); commit",
            "alter table t add f text default 'it''s \\ \"é\"', add g timestamptz default now(),"
            " add h int[] default '{1,null}'",
            "alter table t add gone text default 'never'",
            "alter table t drop gone",
            "alter table t add n numeric default null",
            "delete from t where id = 30",
            "alter table t add v float8 default random()",
        )
        followed.captured.wait_quiet()
        followed.wait_applied(job)
        followed.assert_equal()
        for kind in KINDS:
            assert followed.read(kind, 5)["d"] == 7  # type: ignore[index]
        assert job.stop() == 0


@pytest.mark.parametrize("kind", ["cache", pytest.param("search", marks=pytest.mark.soak)])
@pytest.mark.soak
def test_rows_go_on_to_be_applied_while_others_get_a_default(
    database: Database, follow: Follow, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Only the watermark waits: it also says that earlier rows are as at the source."""
    monkeypatch.setattr("jobs.query.column_backfill.ROWS", 1)  # so that it takes a while
    rows = 15_000 if kind == "cache" else 4000
    database.execute(SETUP[0], SETUP[1], f"insert into t select n, 'a' || n, n from generate_series(1, {rows}) n")
    followed = follow(kind)
    with followed.job() as job:
        followed.wait_applied(job)
        since = len(job.reports)
        database.execute("alter table t add d int not null default 5")
        job.wait_for("ColumnBackfillProgress", since=since)
        started = sum(report["report"] == "SinkStarted" for report in job.reports)
        for key in range(90_001, 90_006):
            database.execute(f"insert into t values ({key}, 'new', 1, null, 7)")
            followed.wait_shown(kind, key, d=7)
        batches = {report["batch_id"] for report in job.reports[since:] if report["report"] == "BatchApplied"}
        assert len(batches) <= 1, "the batch goes on meanwhile"
        # Rows that are about to get a default.
        database.execute(f"delete from t where id = {rows}", f"update t set d = 8, a = 'late' where id = {rows - 1}")
        lsn = emit_heartbeat(database.connection)
        followed.wait_shown(kind, rows - 1, d=8, a="late")
        assert not any(report.get("is_over") for report in job.reports[since:]), "it is in the middle of the others"
        over = job.wait_for("ColumnBackfillProgress", since=since, is_over=True)
        raised = job.wait_until(lambda seen: seen.get("watermark_lsn", 0) >= lsn, 60, since)
        assert job.reports.index(over) < job.reports.index(raised)
        assert started == sum(report["report"] == "SinkStarted" for report in job.reports)
        followed.assert_equal()
        assert job.stop() == 0


@pytest.mark.soak
def test_a_default_that_is_carried_over_survives_a_kill_and_is_not_given_to_newer_rows(
    database: Database, follow: Follow
) -> None:
    rows = 12_000
    database.execute(SETUP[0], SETUP[1], f"insert into t select n, 'a' || n, n from generate_series(1, {rows}) n")
    followed = follow("cache")
    followed.apply_once()
    database.execute("alter table t add d int not null default 5")
    followed.captured.wait_quiet()
    database.execute("update t set d = 7 where id % 100 = 0")
    followed.captured.settle()
    sink = open_sink(followed.sinks["cache"], followed.config.sinks[followed.sinks["cache"]], 1).sink
    table = followed.captured.schemas("public.t")[-1].table
    some = [{"id": key} for key in range(1, rows, 500)]

    def lacking() -> int:
        return sum(1 for stored in sink.scan(table) if stored.lacks)

    try:
        assert lacking() == rows
        with followed.process() as job:
            until(lambda: any(not stored.lacks for stored in sink.rows(table, some)))
            job.kill()
        assert 0 < lacking() < rows, "it was killed in the middle"
        with followed.job() as job:
            followed.wait_applied(job)
            assert lacking() == 0
            followed.assert_equal()
            assert job.stop() == 0
    finally:
        sink.close()


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["warehouse", "cache"])
def test_a_build_that_was_killed_goes_on_with_a_default_that_came_meanwhile(
    database: Database, follow: Follow, kind: str
) -> None:
    rows = 20_000
    database.execute(SETUP[0], SETUP[1], f"insert into t select n, 'a' || n, n from generate_series(1, {rows}) n")
    followed = follow(kind)
    followed.captured.settle()
    table = followed.captured.schemas("public.t")[-1].table
    sink = open_sink(followed.sinks[kind], followed.config.sinks[followed.sinks[kind]], 1).sink
    build = followed.rebuild_process(kind)

    def has_rows() -> bool:
        assert build.poll() is None, "it has ended already"
        with contextlib.suppress(LockstepError, psycopg.Error, sqlalchemy.exc.SQLAlchemyError):
            return next(sink.scan(table), None) is not None
        return False

    try:
        until(has_rows)
        os.killpg(build.pid, signal.SIGKILL)
        build.wait()
        database.execute("alter table t add d int not null default 5", "update t set d = 7 where id = 1")
        followed.captured.wait_quiet()
        assert followed.rebuild(kind).finish().report.is_equal
        wider = followed.captured.schemas("public.t")[-1].table
        defaults = {stored.row["id"]: stored.row["d"] for stored in sink.scan(wider)}
        assert defaults == {key: 7 if key == 1 else 5 for key in range(1, rows + 1)}
    finally:
        if build.poll() is None:
            os.killpg(build.pid, signal.SIGKILL)
        sink.close()


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("alter table t rename a to z", "seems to be renamed"),
        ("alter table t alter b type text using b::text", "was int4 and is text"),
    ],
    ids=["rename", "type"],
)
@pytest.mark.soak
def test_every_sink_stops_when_a_column_is_another_one(
    database: Database, follow: Follow, statement: str, why: str
) -> None:
    database.execute(*SETUP)
    followed = follow()
    with followed.job() as job:
        followed.wait_applied(job)
        database.execute(statement)
        for name in followed.sinks.values():
            failed = job.wait_for("SinkFailed", sink=name)
            assert why in failed["error"]
            assert "lockstep rebuild" in failed["error"]
        assert job.finish() == 1
    for kind in KINDS:
        assert followed.read(kind, 1)["a"] == "a1"  # type: ignore[index]


@pytest.mark.soak
def test_a_key_that_got_another_type_is_rebuilt_with_every_row(database: Database, follow: Follow) -> None:
    """The copy deletes the earlier keys, and to a store 1 and "1" are one key."""
    database.execute(
        "create table t (id int primary key, a text)", "insert into t select n, n from generate_series(1, 200) n"
    )
    followed = follow()
    followed.apply_once()
    database.execute(
        "delete from t where id = 1",
        "alter table t alter id type text",
        "delete from t where id = '2'",
        "update t set a = 'new' where id = '3'",
    )
    followed.captured.wait_quiet()
    for kind in KINDS:
        assert followed.rebuild(kind, switch_over=True).finish().report.is_equal
    database.execute("alter table t alter id type bigint using id::bigint", "delete from t where id = 4")
    followed.captured.wait_quiet()
    for kind in KINDS:
        assert followed.rebuild(kind, switch_over=True).finish().report.is_equal


@pytest.mark.soak
def test_a_column_that_took_the_name_of_one_that_was_dropped_comes_with_a_copy(
    database: Database, follow: Follow
) -> None:
    """The stored rows have the old one's values, and only a copy replaces them."""
    database.execute(*SETUP)
    followed = follow("cache")
    with followed.job() as job:
        followed.wait_applied(job)
        database.execute("alter table t drop c", "insert into t values (6, 'a6', 60)")
        followed.wait_applied(job)
        database.execute("alter table t add c varchar(10) default 'new'")
        followed.wait_shown("cache", 1, c="new")
        followed.captured.wait_quiet()
        followed.wait_applied(job)
        followed.assert_equal()
        assert job.stop() == 0


@pytest.mark.soak
def test_a_warehouse_that_follows_renames_and_drops_its_columns(database: Database, follow: Follow) -> None:
    database.execute(*SETUP)
    followed = follow("warehouse", settings='schema_changes = "follow"')
    with followed.job() as job:
        followed.wait_applied(job)
        database.execute("alter table t rename a to z", "alter table t drop c", "alter table t add e int default 3")
        followed.wait_shown("warehouse", 1, z="a1", e=3)
        database.execute("update t set z = 'changed' where id = 2", "insert into t values (6, 'a6', 60, null)")
        followed.captured.wait_quiet()
        followed.wait_applied(job)
        assert followed.read("warehouse", 1) == {"id": 1, "z": "a1", "b": 10, "e": 3}
        assert followed.read("warehouse", 6) == {"id": 6, "z": "a6", "b": 60, "e": None}
        followed.assert_equal()
        assert job.stop() == 0
