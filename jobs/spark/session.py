"""The only place that builds a SparkSession. Each setting has its reason and, where measured, its effect. The times are
of a batch of a few rows, from produced to applied; together they take it from 513 to about 100 ms."""

import atexit
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from cdc.model.errors import LockstepError
from jobs.settings import LIBRARIES_VARIABLE, SparkSettings
from jobs.spark.class_archive import archive_options, java_home
from jobs.spark.shipped_code import ROOT, check_archive

STOP_TIMEOUT_MS = 10_000
"""How long a query may take to stop; its batch is then read again at the next start."""

_LAST_WORDS_S = 5.0
"""How long a process may still seem to run after its connection broke."""

_SETTINGS: Mapping[str, str] = {
    # The default writes checkpoint files through FileContext, which starts a process per file: 72 -> 23 ms per batch.
    # This one renames without checking that nobody else wrote the file. That is right for one writer per checkpoint;
    # the sink's fence keeps a second writer out.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # A job that is killed while it writes its first offsets leaves a temporary file behind, and Spark would refuse the
    # directory from then on. Owners of a checkpoint check themselves whose it is.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    # TCP to the Python workers costs 20 ms per batch.
    "spark.python.unix.domain.socket.enabled": "true",
    # Compiling a class for each plan takes longer than running it over a few rows: 12 ms.
    "spark.sql.codegen.wholeStage": "false",
    # Loads the modules once, before the fork: 15 % of the latency and most of the workers' CPU.
    # See jobs.spark.worker_daemon.
    "spark.python.daemon.module": "jobs.spark.worker_daemon",
    # Workers hold the sinks' connections from batch to batch.
    "spark.python.worker.reuse": "true",
    # A long batch is followed by one in another worker, the one that has been idle longest. Each holds 80 MB.
    "spark.python.factory.idleWorkerMaxPoolSize": "1",
    # Nothing here needs them, and each costs time per batch or memory.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ui.retainedExecutions": "1",
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "100",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    "spark.sql.ui.explainMode": "simple",
    "spark.ui.liveUpdate.period": "-1",
    # Spark's checks of its own rules after each of them; tests cover the plans that they make.
    "spark.sql.lightweightPlanChangeValidation": "false",
    # Every batch lists the files of all that are stored. Only the last two are ever read.
    "spark.sql.streaming.minBatchesToRetain": "10",
    # There is no shuffle; if an own setting brings one in, 200 tasks would be far too many.
    "spark.sql.shuffle.partitions": "2",
    # Two copies of a task at once would only do the same writes twice.
    "spark.speculation": "false",
    # A failed task has retried its sink already; the batch is begun again instead.
    "spark.task.maxFailures": "1",
    # Waiting for an executor that held the same partition before gains nothing here.
    "spark.locality.wait": "0",
    # Rows per Arrow batch, and bytes: large rows must not fill the memory of a worker.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
    "spark.sql.streaming.stopTimeout": str(STOP_TIMEOUT_MS),
    # A failure must be an error, not null.
    "spark.sql.ansi.enabled": "true",
    # Columns of a source may differ in case only.
    "spark.sql.caseSensitive": "true",
    # Event values and times are never converted; if that is added, a machine's zone must not matter.
    "spark.sql.session.timeZone": "UTC",
}

_CLUSTER_SETTINGS: Mapping[str, str] = {
    # Processes die more often on many machines. If Python is killed for lack of memory, its task fails and may run
    # again elsewhere; the tags make that harmless. Our own errors fail no task (jobs.executor.deliver), so no bad row
    # is retried.
    "spark.task.maxFailures": "4",
}

_OWN_DIRECTORIES = ("spark.python.unix.domain.socket.dir", "spark.local.dir")
"""Where the sockets of Python workers are, and what Spark writes of rows and of tasks, which have passwords. By default
that is the common directory for temporary files, which anybody may read. On a cluster executors decide."""

# Lists to which an own setting must add, since the jobs can't run without ours: setting -> separator.
_LISTS: Mapping[str, str] = {"spark.archives": ",", "spark.executorEnv.PYTHONPATH": ":"}

_LOCAL = re.compile(r"local(\[(?P<tasks>\d+|\*)(?P<failures>\s*,\s*\d+)?\])?")

_PACKAGE_DIRECTORY = "lockstep_package"
"""Where executors unpack the archive, in the directory that they run in. No module may have this name."""

# C1 and the serial collector: a third less latency and half the CPU while the JVM is young. A job of tiny plans stays
# young for long: C2's code is as quick after two minutes, and a fifth quicker after five. A cluster's executors do bulk
# work and keep the JVM's own choice. VFORK: Hadoop runs `chmod` for each file of a checkpoint, and the JVM's other way
# to start it runs a helper first. Figures for jstat are written every second instead of twenty times a second, which
# saves 0.05 % of a core. The heap begins small and grows as needed: the default, a 64th of the machine's memory, leaves
# 70 MB of garbage on a machine with 24 GB, at the same processor time of a start.
_DRIVER_JVM = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xms128m",
    "-XX:PerfDataSamplingInterval=1000",
    "-Djdk.lang.Process.launchMechanism=VFORK",
)
# The full compiler reads a long log in half the time.
_DRIVER_JVM_BULK = ("-XX:+UseParallelGC",)

# Errors of a job reach the caller as exceptions and are reported there once. Spark would print each several times with
# traces of 150 lines, and traces can hold values. Any other error is printed as one line.
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{1}: %m%ex{0}%n
# Spark announces on the console when this one's level isn't the root's.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""
_SILENT = (
    "org.apache.spark.sql.execution.streaming",
    "org.apache.spark.api.python",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.util",
    "org.apache.kafka",
    "py4j",
)


def open_session(
    settings: SparkSettings,
    *,
    name: str,
    bulk: bool = False,
    libraries: Collection[str] = (),
    more_options: Sequence[str] = (),
    more_tasks: int = 0,
) -> SparkSession:
    """Start Spark. One session per process; stop it with ``stop_session``.

    ``bulk`` is for long logs rather than short batches. ``libraries`` are modules that workers will need.
    ``more_options`` are the JVM's. A local master runs ``more_tasks`` more at once than it says. Raises LockstepError
    if Spark can't start, ConfigurationError if the archive for the executors isn't the right one.
    """
    if settings.package is not None and not settings.is_local:
        check_archive(settings.package)
    os.environ["PYSPARK_PYTHON"] = worker_python(settings)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # The bridge to the JVM logs failed calls with their trace before it raises them.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # So does PySpark with what it can't analyse.
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    # The bridge logs a call to a JVM that has gone to the root logger instead of its own.
    logging.getLogger().addFilter(is_not_of_bridge)
    with tempfile.TemporaryDirectory(prefix="lockstep-spark-") as directory:
        log_settings = Path(directory) / "log4j2.properties"
        log_settings.write_text(_log_settings(), encoding="utf-8")
        builder = SparkSession.Builder().master(local_master(settings.master, more_tasks)).appName(name)
        conf = spark_conf(
            settings, log_settings=log_settings, bulk=bulk, libraries=libraries, more_options=more_options
        )
        for key, value in conf.items():
            builder = builder.config(key, value)
        own = str(own_directory()) if settings.is_local else ""
        for key in _OWN_DIRECTORIES if settings.is_local else ():
            if key not in conf:
                builder = builder.config(key, own)
        try:
            session = builder.getOrCreate()
        except Exception as error:  # PySpark has no common class for a JVM that doesn't start
            raise LockstepError(
                f"Spark didn't start: {type(error).__name__}",
                hint=f"check the Java (17 or newer; JAVA_HOME) and the master {settings.master!r}",
            ) from error
    if settings.is_local:
        try:
            write_no_checksums(session)
        except LockstepError:
            stop_session(session)
            raise
    # PySpark's listener for accumulators, which nothing here uses, would print a traceback when the JVM hangs up.
    accumulators = getattr(session.sparkContext, "_accumulatorServer", None)
    if accumulators is not None:
        accumulators.handle_error = lambda _request, _address: None
    return session


def write_no_checksums(session: SparkSession) -> None:
    """Have files on this machine written without a checksum beside each. For both, Hadoop runs `chmod`: four processes
    a batch instead of two. Hadoop's own file system without checksums won't do, since Spark couldn't copy the state of
    a query with it. Raises LockstepError if another file system is configured."""
    context: Any = session.sparkContext
    try:
        files = context._jvm.org.apache.hadoop.fs.FileSystem.getLocal(context._jsc.hadoopConfiguration())
    except Py4JJavaError as error:
        raise LockstepError(
            "Spark's file system for this machine isn't Hadoop's LocalFileSystem",
            hint="remove spark.hadoop.fs.file.impl from [spark.conf], or fs.file.impl from Hadoop's core-site.xml",
        ) from error
    files.setWriteChecksum(False)


class SparkEnded(LockstepError):
    """The JVM has gone, and the session is unusable."""

    def __init__(self) -> None:
        super().__init__(
            "Spark's JVM has ended (killed, or out of memory), so this process ends; nothing was skipped, and the next"
            " start reads the last batches again",
            hint="`lockstep run` and systemd start it again by themselves; otherwise start the command again",
        )


def has_jvm_ended(session: SparkSession, error: BaseException | None = None) -> bool:
    """Whether the JVM that this process has started for the session has ended. ``error`` is what a call of the session
    raised. If the connection broke, the answer may take seconds: a process ends after its connections."""
    # A session by Spark Connect has no gateway, and one of tests no context.
    process = getattr(getattr(getattr(session, "sparkContext", None), "_gateway", None), "proc", None)
    if not isinstance(process, subprocess.Popen):
        return False
    if process.poll() is None and error is not None and _is_broken_connection(error):
        try:
            process.wait(_LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            return False
    return process.poll() is not None


def _is_broken_connection(error: BaseException) -> bool:
    """Whether an error, or one of its causes, is the bridge's own."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, ConnectionError) or (
            isinstance(chain, Py4JError) and not isinstance(chain, Py4JJavaError)
        ):
            return True
        chain = chain.__cause__ or chain.__context__
    return False


def stop_session(session: SparkSession) -> None:
    """Stop Spark, unless its JVM has gone."""
    if not has_jvm_ended(session):
        session.stop()


def is_not_of_bridge(record: logging.LogRecord) -> bool:
    """A filter of the root logger: callers of the bridge get an exception, and report what that means."""
    return Path(record.pathname).parent.name != "py4j"


def local_master(master: str, more_tasks: int) -> str:
    """The master with so many more tasks at once; unchanged if it isn't local. Pure except for this machine's cores.
    Tasks of a local master are threads, and those of long batches wait most of the time."""
    match = _LOCAL.fullmatch(master)
    if not more_tasks or match is None:
        return master
    tasks = (os.cpu_count() or 1) if match["tasks"] == "*" else int(match["tasks"] or 1)
    return f"local[{tasks + more_tasks}{match['failures'] or ''}]"


def own_directory() -> Path:
    """A new directory that only this user may read, removed with the process."""
    directory = tempfile.mkdtemp(prefix="lockstep-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


def spark_conf(
    settings: SparkSettings,
    *,
    log_settings: Path,
    bulk: bool = False,
    libraries: Collection[str] = (),
    more_options: Sequence[str] = (),
) -> dict[str, str]:
    """All of Spark's settings. They are on the JVM's command line, so they must not contain secrets."""
    conf = dict(_SETTINGS)
    compiler = _DRIVER_JVM_BULK if bulk else _DRIVER_JVM
    options = (*compiler, *(more_options or archive_options(java_home())))
    conf["spark.driver.extraJavaOptions"] = " ".join((*options, f"-Dlog4j2.configurationFile={log_settings}"))
    # Loading these in each worker would take up to half a second each, and memory that they could share.
    conf[f"spark.executorEnv.{LIBRARIES_VARIABLE}"] = ",".join(sorted(libraries))
    if settings.is_local:
        # Workers start in another directory, and find a checkout that isn't installed through this.
        conf["spark.executorEnv.PYTHONPATH"] = str(ROOT)
        # Otherwise Spark binds to whatever the host's name resolves to, which on a laptop changes with the network.
        conf["spark.driver.host"] = conf["spark.driver.bindAddress"] = "127.0.0.1"
        # Otherwise every user of this machine can get what tasks are sent, passwords included, and can send Spark
        # objects to load. Spark makes up the secret and keeps it in memory. A local master's own traffic doesn't use
        # its ports.
        conf["spark.authenticate"] = "true"
    else:
        conf |= _CLUSTER_SETTINGS
        if settings.package is not None:
            # Not spark.submit.pyFiles: those are on the path of a task, but not of the daemon that starts earlier.
            conf["spark.archives"] = f"{settings.package.absolute().as_uri()}#{_PACKAGE_DIRECTORY}"
            conf["spark.executorEnv.PYTHONPATH"] = _PACKAGE_DIRECTORY
    for key, own in settings.conf.items():
        conf[key] = _LISTS[key].join((conf[key], own)) if key in _LISTS and key in conf else own
    return conf


def worker_python(settings: SparkSettings) -> str:
    """The program that runs Python workers. This one's path means nothing on another machine."""
    default = sys.executable if settings.is_local else "python3"
    return settings.conf.get("spark.pyspark.python") or default


def _log_settings() -> str:
    silent = "".join(f"logger.s{n}.name = {name}\nlogger.s{n}.level = off\n" for n, name in enumerate(_SILENT))
    return _LOGGING + silent
