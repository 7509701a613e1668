"""Spark in the tests' own process: one for all of them.

A second session in a process gets the first one's JVM, class path and settings, whatever it asks for. So there is one
session, with everything that a job needs. ``tests.spark_here`` runs jobs in it, ``tests.job_process`` those that need a
process.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from jobs.spark.session import open_session
from tests.databases import until
from tests.job_process import spark_settings

_LIBRARIES = ("opensearchpy", "redis", "psycopg", "sqlalchemy.dialects.postgresql.psycopg")
_shared: list[SparkSession] = []


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that all tests of this process share. No test stops it."""
    session = open_session(
        spark_settings(tmp_path_factory.mktemp("spark")), name="tests", libraries=_LIBRARIES, more_tasks=3
    )
    _shared.append(session)
    yield session
    _shared.clear()
    session.stop()


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left_in_spark() -> Iterator[None]:
    """No query outlives its module, and no worker keeps sinks open that the module's jobs opened."""
    yield
    for session in _shared:
        assert [query.name for query in session.streams.active] == []
        for worker in python_workers(os.getpid()):
            with suppress(psutil.NoSuchProcess):  # it was idle for long, and has ended
                worker.kill()


def python_workers(driver: int) -> list[psutil.Process]:
    """The processes in which the tasks of this process's Spark apply rows."""
    parents: dict[psutil.Process, int] = {}
    for process in psutil.Process(driver).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if _is_daemon(process):
                parents[process] = process.ppid()
    daemons = {process.pid for process in parents}
    return [process for process, parent in parents.items() if parent in daemons]


def worker_with(state: Path) -> psutil.Process:
    """The worker of this process's Spark that has a view's state in this directory open, once there is one."""

    def found() -> psutil.Process | None:
        for worker in python_workers(os.getpid()):
            with suppress(psutil.Error):
                if any(opened.path.startswith(f"{state}/") for opened in worker.open_files()):
                    return worker
        return None

    worker = until(found)
    assert isinstance(worker, psutil.Process)
    return worker


def _is_daemon(process: psutil.Process) -> bool:
    """Whether it is PySpark's daemon, or a worker that it forks."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and any(
            word.startswith("jobs.") and word.endswith("daemon") for word in process.cmdline()
        )
    except psutil.Error:  # it has ended
        return False
