"""The jobs on a Spark cluster: the same calls as on this machine, with another master and the code shipped."""

import itertools
import signal
import sysconfig
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from lockstep.package import package
from sinks.registry import SinkSettings
from stack import process
from stack.process import ProcessId
from stack.stack import Endpoints
from tests.job_process import JobProcess
from tests.job_reports import Seen
from tests.live.test_jobs import Pipeline, put
from tests.spark_cluster import SparkCluster

pytestmark = [pytest.mark.live, pytest.mark.crash, pytest.mark.busy, pytest.mark.soak]

SEEDS = itertools.count(1000)

_CONF = {"spark.driver.host": "127.0.0.1", "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1"}


@pytest.fixture
def pipeline(endpoints: Endpoints, tmp_path: Path) -> Iterator[Pipeline]:
    pipeline = Pipeline(endpoints, tmp_path)
    yield pipeline
    pipeline.log.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    directory = tmp_path / "cluster"
    directory.mkdir()
    with SparkCluster(directory, workers=2) as cluster:
        yield cluster


class ShippedJobs:
    """Starts the pipeline's jobs on the cluster, and makes their tasks import only what was shipped."""

    def __init__(self, pipeline: Pipeline, cluster: SparkCluster) -> None:
        self._pipeline = pipeline
        self._cluster = cluster
        self.sinks: dict[str, SinkSettings] = {"cache": pipeline.cache, pipeline.warehouse_name: pipeline.warehouse}

    def with_everything(self, *, once: bool = False) -> JobProcess:
        """Tasks import everything from the archive, including third-party packages."""
        assert not self._cluster.imports("pyarrow")
        return self._job(package(self._pipeline.directory / "everything.zip", environment=True), _CONF, once=once)

    def with_code_alone(self, *, once: bool = False) -> JobProcess:
        """Third-party packages are on the executors, as in an image of one's own."""
        # A plain entry of the path, whose .pth files aren't read: it doesn't lead to an editable installation.
        packages = {"PYTHONPATH": sysconfig.get_path("purelib")}
        assert self._cluster.imports("pyarrow", packages)
        assert not self._cluster.imports("jobs", packages)
        conf = _CONF | {f"spark.executorEnv.{name}": value for name, value in packages.items()}
        return self._job(package(self._pipeline.directory / "code.zip"), conf, once=once)

    def compare(self) -> None:
        for name, settings in self.sinks.items():
            assert self._pipeline.rows(name, settings) == self._pipeline.expected

    def _job(self, archive: Path, conf: dict[str, str], *, once: bool) -> JobProcess:
        return self._pipeline.process(
            once=once,
            sinks=self.sinks,
            master=self._cluster.master,
            package=archive,
            # Every batch has a task per partition, so that all workers take part in each.
            small_batch_rows=0,
            conf={**conf, "spark.pyspark.python": str(self._cluster.python)},
        )


def test_a_lost_worker_costs_no_row_and_the_next_start_goes_on_where_it_was(
    pipeline: Pipeline, cluster: SparkCluster
) -> None:
    jobs = ShippedJobs(pipeline, cluster)
    lsn = pipeline.write_traffic(50)
    first, second = cluster.workers
    with jobs.with_everything() as job:
        wait_for_lsn(job, jobs.sinks, lsn)
        deadline = time.monotonic() + 120
        while not (cluster.pythons(first) and cluster.pythons(second)):
            assert time.monotonic() < deadline, "a worker got no task"
            pipeline.write_traffic(5, seed=next(SEEDS))
        # A machine is lost: the tasks move to the other one.
        lose([first], pipeline, job, jobs.sinks)
        # Python dies in the last executor, as when memory is short: its tasks fail and are tried again.
        lose(cluster.pythons(second), pipeline, job, jobs.sinks)
        assert job.stop() == 0
    jobs.compare()
    assert cluster.workers_alive() == 1, "or the master gives no answer"
    assert not [seen for seen in job.reports if seen["report"] in ("SinkFailed", "SinkWaiting")]

    pipeline.write(*(put(key, "later") for key in range(1000, 1050)))
    with jobs.with_code_alone(once=True) as job:
        assert job.finish() == 0
    jobs.compare()
    assert job.total("rows") == 50 * len(jobs.sinks)


def lose(lost: Sequence[ProcessId], pipeline: Pipeline, job: JobProcess, sinks: Iterable[str]) -> None:
    """kill -9 processes and their families while tasks run there; returns when the whole log is applied."""
    # Frozen first: they take tasks and don't finish them, so the kill can't fall between two batches.
    for member in {member for worker in lost for member in process.family(worker)}:
        process.send(member, signal.SIGSTOP)
    lsn = pipeline.write_traffic(20, seed=next(SEEDS))
    time.sleep(1)
    assert not all(any(_reaches(seen, sink, lsn) for seen in list(job.reports)) for sink in sinks)
    process.kill(*lost)
    wait_for_lsn(job, sinks, pipeline.write_traffic(20, seed=next(SEEDS)))


def wait_for_lsn(job: JobProcess, sinks: Iterable[str], lsn: int) -> None:
    """Wait until the sinks have applied the log up to there; fails as soon as one of them does."""
    for sink in sinks:
        job.wait_until(lambda seen, sink=sink: _failed(seen) or _reaches(seen, sink, lsn))  # type: ignore[misc]
    assert not [seen for seen in job.reports if _failed(seen)]


def _failed(seen: Seen) -> bool:
    return bool(seen["report"] == "SinkFailed")


def _reaches(seen: Seen, sink: str, lsn: int) -> bool:
    return bool(seen.get("sink") == sink and seen.get("watermark_lsn", 0) >= lsn)
