"""An archive of the classes that Spark loads, which makes its driver start in half the time.

A driver loads some ten thousand classes before its first batch, out of four hundred jars. The JVM can keep them as they are in memory
after that, and map the file into the next one. It checks by itself whether an archive fits its Java and its jars, and goes on without
where it doesn't. One belongs to an installation, so it lies in the environment's own folder; nothing needs it to be there.
"""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyspark

from cdc.model.errors import LockstepError
from jobs.settings import SparkSettings

_QUIET: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
_BATCH_S: Final = 60.0
_EXIT_S: Final = 120.0


def archive_file(java_home: Path | None) -> Path | None:
    """Where the archive for this Java is, or would be; None where it isn't known which Java it will be."""
    if java_home is None:
        return None
    try:
        release = (java_home / "release").read_bytes()
    except OSError:
        return None
    identity = hashlib.sha256(release + str((java_home, pyspark.__version__, pyspark.__file__)).encode())
    return Path(sys.prefix) / f"lockstep-spark-{identity.hexdigest()[:16]}.jsa"


def archive_options(java_home: Path | None) -> list[str]:
    """The JVM's options for using the archive; none while there isn't one."""
    file = archive_file(java_home)
    if file is None or not file.exists() or " " in str(file):  # Spark takes a blank for the end of an option
        return []
    return [f"-XX:SharedArchiveFile={file}", *_QUIET]


def make_archive(settings: SparkSettings) -> Path:
    """Start Spark, run a batch as the jobs do, and keep what it has loaded. Returns the file, which may have been there before.

    Raises LockstepError where that isn't possible; all works without.
    """
    file = archive_file(settings.java_home)
    if file is None:
        raise LockstepError("it isn't known which Java runs Spark", hint="set spark.java_home, or JAVA_HOME")
    if file.exists():
        return file
    unfinished = file.with_suffix(f".{os.getpid()}")
    # In a process of its own: the JVM writes the archive when it ends, and it ends with the process that it serves.
    program = f"from jobs.spark.class_archive import run_a_batch; run_a_batch({str(settings.java_home)!r}, {str(unfinished)!r})"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        )
        deadline = time.monotonic() + _EXIT_S
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


def run_a_batch(java_home: str, archive: str) -> None:
    """What a process is for whose JVM writes an archive. It returns when the JVM has ended."""
    from pyspark.sql import DataFrame

    from jobs.spark.arrow_map import ArrowMap
    from jobs.spark.session import open_session

    settings = SparkSettings(master="local[1]", java_home=Path(java_home))
    spark = open_session(settings, name="class archive", more_options=(f"-XX:ArchiveClassesAtExit={archive}", *_QUIET))
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
    deadline = time.monotonic() + _BATCH_S
    while not query.recentProgress and query.isActive and time.monotonic() < deadline:
        time.sleep(0.1)
    query.stop()
    spark.stop()
    gateway.shutdown()
    jvm.stdin.close()
    jvm.wait(_EXIT_S)


def _pass_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
