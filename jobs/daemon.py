"""``spark.python.daemon.module``: PySpark's daemon, with everything that workers need loaded before it forks them.

PySpark's daemon runs a full garbage collection after every task, 16 to 35 ms with these modules loaded. What is loaded
before ``gc.freeze`` isn't looked at, which leaves 0.01 ms; and workers share its memory. Measured: CPU of the workers 81 %
-> 5 % of a core at 200 events a second.
"""

import gc

import orjson
import pyarrow
import pyarrow.compute
import pyspark.worker
from pyspark import daemon

import jobs.delivery
import sinks.registry

# Only loaded here: nothing may open a connection or start a thread before the fork.
PRELOADED = (orjson, pyarrow, pyarrow.compute, pyspark.worker, jobs.delivery, sinks.registry)


def main() -> None:
    """Freeze what is loaded and serve. Returns when Spark closes its end."""
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
