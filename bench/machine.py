"""The measured machine: figures mean little without it."""

import os
import platform
from importlib.metadata import version
from typing import Any

import psutil

from cdc.stream.row_encoding import chosen_row_encoding
from sinks.sink_kernel import chosen_sink_kernel
from stack import versions

_PACKAGES = ("lockstep", "confluent-kafka", "psycopg", "pyspark", "redis", "opensearch-py", "orjson")

BUSY_LOAD_PER_CORE = 0.25
"""Above this the machine does something else, which affects the figures as much as Lockstep does."""


def facts() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "memory_mb": round(psutil.virtual_memory().total / 1_000_000),
        "processor": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "rows_are_encoded_by": str(chosen_row_encoding()),
        "rows_are_written_by": str(chosen_sink_kernel()),
        "load_average_at_start": [round(load, 2) for load in os.getloadavg()],
        "versions": {
            "python": platform.python_version(),
            "postgresql": versions.POSTGRES_SERVER,
            "kafka": versions.KAFKA,
            "debezium": versions.DEBEZIUM,
            "flink": versions.FLINK,
            "valkey": versions.VALKEY,
            **{name: version(name) for name in _PACKAGES},
        },
    }


def busy_warning(load: float, cores: int) -> str | None:
    if load <= BUSY_LOAD_PER_CORE * cores:
        return None
    return f"warning: the load average is {load:.1f} on {cores} cores: these figures will be worse than the machine is"
