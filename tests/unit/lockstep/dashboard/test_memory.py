"""What the page's process loads, and that it gives back what it doesn't need."""

import subprocess
import sys

import pytest

_ONLY_JOBS_NEED = ("pyspark", "py4j", "pyarrow", "numpy", "pandas", "sqlglot")
_CLIENTS = {"opensearch": "opensearchpy", "redis": "redis", "warehouse": "sqlalchemy", "delta": "deltalake"}
_DUCKDB = "duckdb"

_LOAD = """
import sys
import lockstep.cli.main
import lockstep.dashboard.server
import lockstep.dashboard.follow_key, lockstep.dashboard.tail, lockstep.dashboard.view_changes
from sinks.registry import load_client
{more}
print(*[name for name in {names!r} if name in sys.modules])
"""


def _loaded(more: str = "") -> set[str]:
    names = (*_ONLY_JOBS_NEED, *_CLIENTS.values(), _DUCKDB)
    program = _LOAD.format(more=more, names=names)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_page_loads_nothing_that_jobs_alone_need_and_no_client_of_a_store_that_is_not_used() -> None:
    """Spark's client and Arrow would take more than all the rest."""
    assert _loaded() == set()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("opensearch", "sinks.opensearch.settings.OpenSearchSettings(urls=['http://127.0.0.1:9200'])"),
        ("redis", "sinks.redis.settings.RedisSettings(url='redis://127.0.0.1')"),
        ("warehouse", "sinks.warehouse.settings.WarehouseSettings(url='postgresql+psycopg://127.0.0.1/w')"),
    ],
)
def test_a_store_has_its_own_client_loaded_alone(kind: str, settings: str) -> None:
    module = settings.rpartition(".")[0].partition("(")[0].rpartition(".")[0]
    assert _loaded(f"import {module}; load_client({settings})") == {_CLIENTS[kind]}


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
