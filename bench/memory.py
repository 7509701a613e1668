"""The memory that any Python process with the same client libraries needs before it does anything."""

import subprocess
import sys

from bench.usage import high_water_mark

_MB = 1_000_000

_PROGRAM = """
import confluent_kafka.admin, orjson, psycopg, pydantic
confluent_kafka.Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
try:
    print(open("/proc/self/status").read())
except OSError:
    import psutil
    print(f"VmHWM: {psutil.Process().memory_info().rss // 1024} kB")
"""


def bare_process_megabytes() -> float:
    """Peak resident memory of such a process."""
    output = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True).stdout
    return (high_water_mark(output) or 0) / _MB
