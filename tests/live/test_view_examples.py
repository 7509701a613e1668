"""Each page of ``docs/examples`` is run as it is written, by capture and a job, and the source judges its view."""

import json
import time
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from opensearchpy import OpenSearch
from pyspark.sql import SparkSession

from cdc.postgres.slot import emit_heartbeat
from lockstep.apply import apply_sinks
from lockstep.verify.options import VerifyOptions
from lockstep.verify.verify import verify
from monitor.waits import Waits
from stack.stack import Endpoints
from tests.captured import Captured
from tests.databases import Database, url_of
from tests.example_pages import ExamplePage, RandomTraffic, pages
from tests.spark_here import Job

pytestmark = [pytest.mark.live, pytest.mark.busy, pytest.mark.soak]

PAGES = pages()
REDIS_DATABASE = 11
"""The pages name keys, so they have a database of the server for themselves."""

BURSTS, TRANSACTIONS = 3, 25
_WAIT_S = 300.0


def view_of(page: ExamplePage) -> str:
    (name,) = tomllib.loads(page.view)["views"]
    return str(name)


class Examples:
    """All tables of all pages in one database, captured, and what applications would read their views with."""

    def __init__(self, endpoints: Endpoints, directory: Path) -> None:
        redis_url = urlsplit(endpoints.redis_url)._replace(path=f"/{REDIS_DATABASE}").geturl()
        self.source = Database(endpoints.source_dsn)
        self._warehouse = Database(endpoints.warehouse_dsn)
        self.cache = redis.Redis.from_url(redis_url, decode_responses=True)
        self.search = OpenSearch(endpoints.opensearch_url)
        self.warehouse = psycopg.connect(self._warehouse.dsn, autocommit=True)
        self._forget()
        self.source.execute(*(page.tables for page in PAGES if page.tables))
        sinks = (
            f"[sinks.cache]\ntype = 'redis'\nurl = '{redis_url}'\napply = false\n"
            f"[sinks.search]\ntype = 'opensearch'\nurls = ['{endpoints.opensearch_url}']\nreplicas = 0\napply = false\n"
            f"[sinks.warehouse]\ntype = 'warehouse'\napply = false\n"
            f"url = '{url_of(endpoints.warehouse_url, self._warehouse.name)}'\n"
            f"[spark]\ncheckpoint_directory = '{directory}/checkpoints'\nview_directory = '{directory}/views'\n"
        )
        sections = sinks + "\n".join(page.view for page in PAGES)
        names = self.source.connection.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
        tables = sorted(f"public.{name}" for (name,) in names)
        self.captured = Captured(self.source, endpoints.kafka_bootstrap, directory, tables, sections=sections)

    def tables_of(self, view: str) -> list[str]:
        return [name.removeprefix("public.") for name in self.captured.config.sinks[view].tables]

    def wait(self, job: Job, view: str) -> None:
        """Until readers of the view find what is committed now."""
        target = emit_heartbeat(self.source.connection)
        config = self.captured.config
        deadline = time.monotonic() + _WAIT_S
        with Waits(config.as_pipeline(), {view: config.sinks[view]}) as waits:
            while not (waited := waits.wait(target, timeout_s=2.0)).is_reached:
                assert job.poll() is None, job.told()
                assert time.monotonic() < deadline, (waited.late, job.told()[-5000:])

    def close(self) -> None:
        self.captured.stop()
        self._forget()
        self.cache.close()
        self.search.close()
        self.warehouse.close()
        for database in (self.source, self._warehouse):
            database.drop()

    def _forget(self) -> None:
        self.cache.flushdb()
        for view in map(view_of, PAGES):
            for index in self.search.indices.get(index=f"{view}.*", params={"expand_wildcards": "all"}):
                self.search.indices.delete(index=index)


@pytest.fixture(scope="module")
def examples(endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    made = Examples(endpoints, tmp_path_factory.mktemp("examples"))
    try:
        made.captured.start()
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    "page",
    PAGES,
    ids=lambda page: page.name,
)
def test_a_view_of_the_docs_shows_what_its_page_says_and_is_equal_to_its_query(
    examples: Examples, spark: SparkSession, page: ExamplePage
) -> None:
    view = view_of(page)
    config, source = examples.captured.config, examples.source.connection

    # Pages share tables, and each begins with empty ones.
    source.execute(f"truncate {', '.join(examples.tables_of(view))}".encode())

    def is_equal() -> bool:
        options = VerifyOptions(view)
        return verify(config, options, say=print, progress=lambda _: None, stopping=lambda: False).is_equal

    with Job(spark, partial(apply_sinks, config, sinks=[view], once=False)) as job:
        wait: Callable[[], None] = partial(examples.wait, job, view)
        names: dict[str, Any] = {"cache": examples.cache, "search": examples.search, "warehouse": examples.warehouse}

        def wait_equal() -> None:
            wait()
            assert is_equal()

        page.run(source, names | {"json": json}, wait_equal)
        traffic = RandomTraffic(source, examples.tables_of(view), seed=1)
        for _ in range(BURSTS):
            traffic.write(TRANSACTIONS)
            wait_equal()
        assert job.stop() == 0
    assert not [seen for seen in job.reports if seen["report"] in ("SinkFailed", "SinkWaiting")]
