"""The jobs in a process of their own, as the command runs them: for kills, signals and the cluster.

Spark's JVM takes twelve seconds of both cores to start. All other tests use Spark in their own process
(``tests.spark_session``).
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cdc.kafka.settings import KafkaSettings
from cdc.model.table import TableName
from jobs.extension_jobs import JobBeside
from jobs.settings import SparkSettings
from lockstep.apply import use_java
from sinks.registry import SinkSettings
from stack.jars import jar_set
from tests.job_reports import Reports, seen

ENDING = {"spark.default.parallelism": "1"}
"""Settings of Spark that leave no task for a batch that goes on: each batch ends where the log ends."""


def spark_settings(directory: Path, **changes: Any) -> SparkSettings:
    """Spark on this machine, with its checkpoints below ``directory``."""
    use_java()
    conf = {"spark.jars": ",".join(map(str, jar_set("spark")))} | changes.pop("conf", {})
    return SparkSettings(
        **{
            "checkpoint_directory": str(directory / "checkpoints"),
            "conf": conf,
            **changes,
        }
    )


class JobProcess(Reports):
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
        beside: Sequence[JobBeside] = (),
    ) -> None:
        super().__init__()
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
            "beside": beside,
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

    def poll(self) -> int | None:
        return None if self._reader.is_alive() else self._process.poll()

    def finish(self, timeout_s: float = 300) -> int:
        code = self._process.wait(timeout_s)
        self._reader.join()
        return code

    def stop(self) -> int:
        """Ask it to stop, as a supervisor does, and wait."""
        self._process.send_signal(signal.SIGTERM)
        return self.finish()

    def kill(self) -> None:
        """End the driver as a crash would. Its JVM finds its standard input closed and ends by itself."""
        if self._process.poll() is None:
            self._process.kill()
        self.finish()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.add(json.loads(line))


def run_sinks(
    *, pipeline: str, kafka: KafkaSettings, tables: Sequence[TableName], spark: SparkSettings, **arguments: Any
) -> int:
    """``jobs.driver.run_sinks`` for these tables; ``arguments`` are all but its source."""
    from jobs import driver

    return driver.run_sinks(driver.Source(pipeline, kafka, tables, spark), **arguments)


def main() -> int:
    # Spark's processes get a standard output of their own: this one is for reports.
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return run_sinks(
        **pickle.loads(sys.stdin.buffer.read()), report=lambda report: print(json.dumps(seen(report)), file=output)
    )


if __name__ == "__main__":
    raise SystemExit(main())
