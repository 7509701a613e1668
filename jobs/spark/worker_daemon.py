"""``spark.python.daemon.module``: PySpark's worker daemon with all that workers need loaded before it forks them.

It runs on executors, and lies here because it is Spark's own program: nothing in ``jobs.executor`` imports PySpark.

PySpark's daemon runs a full garbage collection after every task: 16 to 35 ms with these modules loaded. It skips what
was loaded before ``gc.freeze``, which leaves 0.01 ms, and workers share that memory. Measured: CPU of the workers
81 % -> 5 % of a core at 200 events a second. ``jobs.executor.open_sinks`` freezes what a worker loads afterwards.
"""

import gc
import importlib
import os
from contextlib import suppress

import orjson
import pyarrow
import pyarrow.compute
import pyspark.worker
from pyspark import daemon

import jobs.executor.long_batch
import sinks.registry
from jobs.settings import LIBRARIES_VARIABLE

# Only loaded here: nothing may open a connection or start a thread before the fork.
PRELOADED = (orjson, pyarrow, pyarrow.compute, pyspark.worker, jobs.executor.long_batch, sinks.registry)


def load_libraries() -> None:
    """Load what ``LIBRARIES_VARIABLE`` names. One that isn't installed here is left to the sink, which says so."""
    for name in filter(None, os.environ.get(LIBRARIES_VARIABLE, "").split(",")):
        with suppress(ImportError):
            importlib.import_module(name)


def main() -> None:
    """Freeze what is loaded and serve. Returns when Spark closes its end."""
    load_libraries()
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
