"""Spark's JVM or a Python worker is killed under ``lockstep apply``: a sentence reports it, without a traceback."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.pipeline import Pipeline, Process, wait_until
from tests.spark_session import python_workers

pytestmark = [pytest.mark.live, pytest.mark.crash, pytest.mark.busy]

_numbers = itertools.count(1)


@pytest.fixture
def pipeline(stack: Any, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(stack.endpoints(), tmp_path, f"killed{os.getpid()}_{next(_numbers)}", sinks=True)
    yield made
    made.close()


def _insert(pipeline: Pipeline, number: int) -> None:
    with pipeline.sql() as connection:
        connection.execute(f"insert into {pipeline.name}.account (id, owner) values (%s, 'a')", (number,))


def _jvm(driver: Process) -> psutil.Process:
    (jvm,) = [each for each in psutil.Process(driver.pid).children() if each.name() == "java"]
    return jvm


def _assert_plain(told: str) -> None:
    """No text of Python's or the JVM's own: each line is ours, and a person can act on it."""
    for word in ("Traceback", "BrokenPipe", 'File "', "Py4J", "py4j", "\tat ", "Exception", "Errno"):
        assert word not in told, told


def test_a_worker_and_then_the_jvm_of_a_job_are_killed(pipeline: Pipeline) -> None:
    capture = pipeline.start_capture()
    job = pipeline.start("lockstep", "apply", "--config", str(pipeline.path), f"{pipeline.name}_cache")
    _insert(pipeline, 1)
    pipeline.wait_streaming(capture)
    wait_until(lambda: "batch applied" in job.output(), what="a batch is applied")
    for number, worker in enumerate(python_workers(job.pid), 2):
        worker.kill()
        _insert(pipeline, number)
    wait_until(lambda: "a Python worker of sink" in job.output(), what="the worker's death is told")
    applied = job.output().count("batch applied")
    _insert(pipeline, 100)
    wait_until(lambda: job.output().count("batch applied") > applied, what="the job goes on")
    _assert_plain(job.output())

    before = len(job.output())
    _jvm(job).kill()
    assert pipeline.wait_ended(job) == 1
    told = job.output()[before:]
    _assert_plain(told)
    assert told.count("Spark's JVM has ended") == 1, told
    assert "nothing was skipped" in told
    assert pipeline.stop(capture) == 0
