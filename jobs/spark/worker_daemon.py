"""``spark.python.daemon.module``: PySpark's worker daemon, which loads all that workers need before it forks them.

It runs on executors, but lies here because it is Spark's own program: nothing in ``jobs.executor`` imports PySpark.

PySpark's daemon runs a full garbage collection after every task: 16 to 35 ms with these modules loaded. It skips what
was loaded before ``gc.freeze``, which leaves 0.01 ms, and workers share that memory. Measured: CPU of the workers 81 %
-> 5 % of a core at 200 events a second. ``jobs.executor.open_sinks`` freezes what a worker loads afterwards.
"""

import gc
import importlib
import os
import socket
from contextlib import suppress
from typing import Final

import orjson
import pyarrow
import pyarrow.compute
import pyspark.worker
from pyspark import daemon

import jobs.executor.follow
import sinks.registry
from jobs.settings import LIBRARIES_VARIABLE

# Only loaded here: nothing may open a connection or start a thread before the fork.
PRELOADED = (orjson, pyarrow, pyarrow.compute, pyspark.worker, jobs.executor.follow, sinks.registry)

GARBAGE_AT: Final = 50_000
"""After how many new objects workers look for garbage cycles. One read has thousands of records, none of them in a
cycle: looking every 700 objects takes a tenth of the time of reading."""


def load_libraries() -> None:
    """Load the modules in ``LIBRARIES_VARIABLE``. A missing one is left to the sink, which reports it."""
    for name in filter(None, os.environ.get(LIBRARIES_VARIABLE, "").split(",")):
        with suppress(ImportError):
            importlib.import_module(name)


def work(sock: socket.socket, authenticated: bool) -> int:
    """PySpark's own worker, but it ends silently when Spark has hung up. That happens to a task whose query was
    stopped, or whose JVM is gone. The driver reports what matters."""
    try:
        return _pyspark_worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)  # at once: what is buffered for Spark would be tried again


_pyspark_worker = daemon.worker


def main() -> None:
    """Freeze what is loaded and serve. Returns when Spark closes its end."""
    # Otherwise PySpark prints a traceback, and waits for the next task of a connection that is gone.
    os.environ["PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"] = "1"
    daemon.worker = work
    load_libraries()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_AT)
    daemon.manager()


if __name__ == "__main__":
    main()
