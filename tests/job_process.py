"""The jobs in a process of their own, as the command runs them: to be watched, stopped, killed and started again.

A second SparkSession in one process shares the first one's JVM with its class path and settings, so tests can't do without.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cdc.kafka.settings import KafkaSettings
from cdc.model.table import TableName
from jobs.settings import SparkSettings
from sinks.registry import SinkSettings
from stack.jars import jar_set
from stack.java import java_home_for_spark

Seen = dict[str, Any]
"""A report: its fields, and ``report``, the name of its class."""


def spark_settings(directory: Path, **changes: Any) -> SparkSettings:
    """Spark on this machine, with its checkpoints and its log below ``directory``."""
    return SparkSettings(
        **{
            "checkpoint_directory": str(directory / "checkpoints"),
            "log_file": directory / "spark.log",
            "jars": tuple(jar_set("spark")),
            "java_home": java_home_for_spark(),
            **changes,
        }
    )


class JobProcess:
    """``run_sinks`` in a child process. Leaving the ``with`` block kills it if it still runs."""

    def __init__(
        self,
        *,
        pipeline: str,
        kafka: KafkaSettings,
        tables: list[TableName],
        sinks: Mapping[str, SinkSettings],
        spark: SparkSettings,
        once: bool = False,
    ) -> None:
        self.reports: list[Seen] = []
        self._arrived = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.job_process"],
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        arguments = {
            "pipeline": pipeline,
            "kafka": kafka,
            "tables": tables,
            "sinks": sinks,
            "spark": spark,
            "once": once,
        }
        self._process.stdin.write(pickle.dumps(arguments))
        self._process.stdin.close()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The driver's process, which leads a group of its own."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def wait_for(self, what: str, timeout_s: float = 300, **fields: Any) -> Seen:
        """The first report of this class with these fields; one that has come already counts."""
        return self.wait_until(
            lambda seen: seen["report"] == what and all(seen.get(name) == value for name, value in fields.items()),
            timeout_s,
        )

    def wait_until(self, matches: Callable[[Seen], bool], timeout_s: float = 300) -> Seen:
        deadline = time.monotonic() + timeout_s
        looked_at = 0
        with self._arrived:
            while True:
                for seen in self.reports[looked_at:]:
                    if matches(seen):
                        return seen
                looked_at = len(self.reports)
                remaining = deadline - time.monotonic()
                if remaining <= 0 or (self._process.poll() is not None and not self._reader.is_alive()):
                    raise AssertionError(f"no such report; the last ones were {self.reports[-5:]}")
                self._arrived.wait(min(remaining, 1))

    def total(self, field: str) -> int:
        """The sum of a field over all batches."""
        return sum(seen[field] for seen in self.reports if seen["report"] == "StatusReport")

    def finish(self, timeout_s: float = 180) -> int:
        """Wait for its end; returns the exit code."""
        code = self._process.wait(timeout_s)
        self._reader.join()
        return code

    def stop(self) -> int:
        """Ask it to stop, as a supervisor does, and wait."""
        self._process.send_signal(signal.SIGTERM)
        return self.finish()

    def kill(self) -> None:
        """End the driver as a crash would; its JVM finds its standard input closed and ends by itself."""
        if self._process.poll() is None:
            self._process.kill()
        self.finish()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with self._arrived:
                    self.reports.append(json.loads(line))
                    self._arrived.notify_all()


def main() -> int:
    from jobs.driver import run_sinks
    from jobs.report import Report

    # Spark's processes get a standard output of their own: this one is for reports.
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def tell(report: Report) -> None:
        fields: Seen = {"report": type(report).__name__}
        for name, value in asdict(report).items():
            fields[name] = str(value) if isinstance(value, Exception) else value
        print(json.dumps(fields), file=output)

    return run_sinks(**pickle.loads(sys.stdin.buffer.read()), report=tell)


if __name__ == "__main__":
    raise SystemExit(main())
