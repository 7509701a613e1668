"""Spark in the tests' own process: one for all of them.

A second session in a process gets the first one's JVM with its class path and settings, whatever it asks for. So there is one here, with
all that a job has; what a job does by itself is tested in processes of its own (``tests.job_process``).
"""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from jobs.spark.session import open_session
from tests.job_process import spark_settings


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = open_session(spark_settings(tmp_path_factory.mktemp("spark")), name="tests")
    yield session
    session.stop()
