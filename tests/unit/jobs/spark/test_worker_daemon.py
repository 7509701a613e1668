"""What a Python worker says when Spark goes away under it."""

import subprocess
import sys

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
