"""What a Python worker has of its daemon, and what it says when Spark goes away under it."""

import subprocess
import sys

from jobs.spark import worker_daemon
from jobs.spark.shipped_code import ROOT

_HUNG_UP = """
import os, socket, sys
import pyspark.worker
from pyspark import daemon
from jobs.spark import worker_daemon

ours, sparks = socket.socketpair()

def a_task(infile, outfile):
    sparks.close()
    outfile.write(b"x" * 1_000)

daemon.manager = lambda: None
worker_daemon.main()
pyspark.worker.main = a_task
sys.argv = ["worker"]
daemon.worker(ours, True)
print("goes on", file=sys.stderr)
"""


def test_a_worker_whose_spark_has_hung_up_ends_without_a_word() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HUNG_UP], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


_LOOKS = """
import gc
from pyspark import daemon
from jobs.spark import worker_daemon

daemon.manager = lambda: print(gc.get_threshold()[0], gc.get_freeze_count() > 0)
worker_daemon.main()
"""


def test_workers_do_not_look_for_garbage_among_the_records_that_they_read() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOOKS], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stderr, done.stdout) == ("", f"{worker_daemon.GARBAGE_AT} True\n")
