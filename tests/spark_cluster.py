"""A Spark standalone cluster on this machine: a master and workers as processes of the installed PySpark.

Its executors run a Python of their own with nothing installed, so tasks import only what the job has shipped.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

import psutil
import pyspark

from stack import ports, process
from stack.java import java_home_for_spark
from stack.process import Launch, ProcessId

SPARK_HOME = Path(pyspark.__file__).parent

_READY_S = 120
_DAEMON = "jobs.spark.worker_daemon"
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class SparkCluster:
    """A master with workers of one core and 1 GB each. Leaving the ``with`` block kills what was started here."""

    def __init__(self, directory: Path, *, workers: int) -> None:
        self._directory = directory
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "JAVA_HOME": str(java_home_for_spark()),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": ports.HOST,
            "SPARK_LOCAL_DIRS": str(directory / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        }
        self._taken: list[int] = []
        self._port, self._page = self._pick_port(), self._pick_port()
        self._count = workers
        self._master: list[ProcessId] = []
        self._workers: dict[int, ProcessId] = {}

    @property
    def master(self) -> str:
        return f"spark://{ports.HOST}:{self._port}"

    @property
    def python(self) -> Path:
        return self._directory / "python" / "bin" / "python"

    @property
    def workers(self) -> Sequence[ProcessId]:
        return [*self._workers.values()]

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._kill_all()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill_all()

    def imports(self, module: str, environment: Mapping[str, str] | None = None) -> bool:
        """Whether the executors' Python finds this module by itself, or with these environment variables."""
        done = subprocess.run(
            [str(self.python), "-c", f"import {module}"],
            check=False,
            cwd=self._directory,
            env={**self._environment, **(environment or {})},
            capture_output=True,
        )
        return done.returncode == 0

    def workers_alive(self) -> int:
        """How many workers the master considers alive; 0 while it doesn't answer."""
        try:
            with urlopen(f"http://{ports.HOST}:{self._page}/json/", timeout=5) as answer:
                state: dict[str, Any] = json.load(answer)
        except (OSError, json.JSONDecodeError):
            return 0  # no answer in time, or no JSON: the master has only begun to answer
        return int(state["aliveworkers"])

    def pythons(self, worker: ProcessId) -> list[ProcessId]:
        """The Python processes of this worker's executors; those that fork the others come first."""
        return [member for member in process.family(worker) if _DAEMON in _command(member)]

    def executors(self, worker: ProcessId) -> list[ProcessId]:
        return [member for member in process.family(worker) if _EXECUTOR in _command(member)]

    def kill_worker(self, number: int) -> None:
        """``kill -9`` of a worker with its executors, as when its machine is lost."""
        process.kill(self._workers.pop(number))

    def start_worker(self, number: int) -> None:
        """Start a killed worker again; returns when the master knows it."""
        self._spawn_worker(number)
        self._wait_alive()

    def _start(self) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self._directory / "python")], check=True)
        ports_of_master = ("--port", str(self._port), "--webui-port", str(self._page))
        self._master.append(self._spawn("master", "master.Master", *ports_of_master))
        for number in range(self._count):
            self._spawn_worker(number)
        self._wait_alive()

    def _spawn_worker(self, number: int) -> None:
        name = f"worker{number}"
        self._workers[number] = self._spawn(
            name,
            "worker.Worker",
            *("--port", str(self._pick_port()), "--webui-port", str(self._pick_port())),
            *("--cores", "1", "--memory", "1g", "--work-dir", str(self._directory / name)),
            self.master,
        )

    def _wait_alive(self) -> None:
        """Wait until the master knows all workers that were started."""
        deadline = time.monotonic() + _READY_S
        while self.workers_alive() < len(self._workers):
            if time.monotonic() > deadline or not all(map(process.is_alive, (*self._master, *self.workers))):
                logs = "\n".join(log.read_text()[-2000:] for log in sorted(self._directory.glob("*.log")))
                raise AssertionError(f"the cluster didn't start:\n{logs}")
            time.sleep(0.1)

    def _kill_all(self) -> None:
        process.kill(*self._master, *self.workers)

    def _spawn(self, name: str, kind: str, *arguments: str) -> ProcessId:
        launcher = str(SPARK_HOME / "bin" / "spark-class")
        launch = Launch(
            command=[launcher, f"org.apache.spark.deploy.{kind}", "--host", ports.HOST, *arguments],
            environment=self._environment,
            directory=self._directory,
            log=self._directory / f"{name}.log",
        )
        started, tail = process.spawn(launch)
        assert started is not None, tail.last(20)
        return started

    def _pick_port(self) -> int:
        self._taken.append(ports.pick(taken=self._taken))
        return self._taken[-1]


def _command(member: ProcessId) -> list[str]:
    try:
        return psutil.Process(member.pid).cmdline()
    except psutil.NoSuchProcess:
        return []
