"""Makes the archive of ``jobs.spark.class_archive``: starts Spark, runs a batch, stores what the JVM has loaded."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from cdc.machine_load import patient
from cdc.model.errors import LockstepError
from cdc.model.timeouts import JVM_WORKS_S
from jobs.settings import SparkSettings
from jobs.spark.arrow_map import ArrowMap
from jobs.spark.class_archive import QUIET, archive_file, java_home
from jobs.spark.session import open_session


def make_archive() -> Path:
    """Start Spark, run a batch as the jobs do, and store what the JVM has loaded. Returns the file, which may have
    existed before. Raises LockstepError if that isn't possible; everything works without it."""
    file = archive_file(java_home())
    if file is None:
        raise LockstepError("it isn't known which Java runs Spark", hint="set JAVA_HOME")
    if file.exists():
        return file
    unfinished = file.with_suffix(f".{os.getpid()}")
    # In a process of its own: the JVM writes the archive when it ends, and it ends with the process that it serves.
    program = f"from jobs.spark.archive_maker import run_a_batch; run_a_batch({str(unfinished)!r})"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        )
        deadline = time.monotonic() + patient(JVM_WORKS_S)
        while done.returncode == 0 and not unfinished.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        if done.returncode or not unfinished.exists():
            raise LockstepError(
                "Java wrote no class archive", hint="nothing is wrong without it but that Spark takes longer to start"
            )
        unfinished.rename(file)
    finally:
        unfinished.unlink(missing_ok=True)
    return file


def run_a_batch(archive: str) -> None:
    """The program of a process whose JVM writes an archive. Returns at the JVM's end. Raises as ``open_session``."""
    settings = SparkSettings(master="local[1]")
    spark = open_session(settings, name="class archive", more_options=(f"-XX:ArchiveClassesAtExit={archive}", *QUIET))
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    jvm = gateway.proc
    run = ArrowMap(_pass_on, "value long")

    def batch(frame: DataFrame, _number: int) -> None:
        run(frame.select("value").coalesce(1)).toArrow()

    query = (
        spark.readStream.format("rate")
        .load()
        .writeStream.foreachBatch(batch)
        .trigger(processingTime="0 seconds")
        .start()
    )
    deadline = time.monotonic() + patient(JVM_WORKS_S)
    while not query.recentProgress and query.isActive and time.monotonic() < deadline:
        time.sleep(0.1)
    query.stop()
    spark.stop()
    gateway.shutdown()
    jvm.stdin.close()
    jvm.wait(patient(JVM_WORKS_S))


def _pass_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
