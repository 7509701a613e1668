"""What the page's process loads, and that it gives back what it doesn't need."""

import subprocess
import sys

import pytest

_LOAD = """
import sys
import lockstep.cli.main
import lockstep.dashboard.server
import lockstep.dashboard.follow_key, lockstep.dashboard.tail, lockstep.dashboard.view_changes
from sinks.registry import load_client

def tell():
    names = "pyspark py4j pyarrow numpy pandas sqlglot opensearchpy redis sqlalchemy deltalake duckdb".split()
    print(*[name for name in names if name in sys.modules])

tell()
from sinks.opensearch.settings import OpenSearchSettings
load_client(OpenSearchSettings(urls=["http://127.0.0.1:9200"]))
tell()
from sinks.redis.settings import RedisSettings
load_client(RedisSettings(url="redis://127.0.0.1"))
tell()
from sinks.warehouse.settings import WarehouseSettings
load_client(WarehouseSettings(url="postgresql+psycopg://127.0.0.1/w"))
tell()
"""


def test_the_page_loads_nothing_that_jobs_alone_need_and_of_clients_those_of_the_stores_that_are_used() -> None:
    """Spark's client and Arrow would take more than all the rest."""
    done = subprocess.run([sys.executable, "-c", _LOAD], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "opensearchpy", "opensearchpy redis", "opensearchpy redis sqlalchemy"]


def test_memory_that_is_free_goes_back() -> None:
    """Blocks too small to be given back one by one, with one in use at their end."""
    program = """
import ctypes, psutil
from lockstep.dashboard.memory import bound_areas, give_back
bound_areas()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
taken = [libc.malloc(50_000) for _ in range(1000)]
for block in taken:
    ctypes.memset(block, 1, 50_000)
for block in taken[:-1]:
    libc.free(block)
before = psutil.Process().memory_info().rss
give_back()
print(before - psutil.Process().memory_info().rss)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    if not sys.platform.startswith("linux"):
        pytest.skip("only glibc can")
    assert int(done.stdout) > 20_000_000
