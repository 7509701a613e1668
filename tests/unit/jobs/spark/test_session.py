"""Spark's settings, without starting it."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import py4j
import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession

from jobs.settings import SparkSettings
from jobs.spark.class_archive import archive_file
from jobs.spark.session import (
    has_jvm_ended,
    is_not_of_bridge,
    local_master,
    own_directory,
    spark_conf,
    stop_session,
    worker_python,
)
from jobs.spark.shipped_code import ROOT
from sinks.delta.settings import DeltaSettings
from sinks.opensearch.settings import OpenSearchSettings
from sinks.redis.settings import RedisSettings
from sinks.registry import SinkSettings
from sinks.warehouse.settings import WarehouseSettings

LOG = Path("log4j2.properties")
CLUSTER = "spark://cluster:7077"


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", "local[4]"),
        ("local[2]", "local[5]"),
        ("local[2, 4]", "local[5, 4]"),
        ("local[*]", f"local[{(os.cpu_count() or 1) + 3}]"),
        (CLUSTER, CLUSTER),
    ],
)
def test_a_local_master_runs_more_tasks(master: str, expected: str) -> None:
    assert local_master(master, 3) == expected
    assert local_master(master, 0) == master


def test_own_settings_win() -> None:
    conf = spark_conf(SparkSettings(conf={"spark.speculation": "true", "spark.x": "y"}), log_settings=LOG)
    assert conf["spark.speculation"] == "true"
    assert conf["spark.x"] == "y"


def test_only_a_local_master_learns_where_this_checkout_is() -> None:
    assert "spark.executorEnv.PYTHONPATH" in spark_conf(SparkSettings(), log_settings=LOG)
    remote = spark_conf(SparkSettings(master=CLUSTER), log_settings=LOG)
    assert "spark.executorEnv.PYTHONPATH" not in remote
    assert "spark.driver.host" not in remote
    assert "spark.driver.bindAddress" not in remote


def test_executors_of_a_cluster_unpack_the_archive_and_import_from_it() -> None:
    conf = spark_conf(SparkSettings(master=CLUSTER, package=Path("/x/some package.zip")), log_settings=LOG)
    location, _, directory = conf["spark.archives"].partition("#")
    assert location == "file:///x/some%20package.zip"
    assert conf["spark.executorEnv.PYTHONPATH"] == directory


def test_own_archives_and_paths_come_after_those_that_the_jobs_need() -> None:
    own = {"spark.archives": "e.tgz#e", "spark.executorEnv.PYTHONPATH": "e/packages"}
    settings = SparkSettings(master=CLUSTER, package=Path("/x/p.zip"), conf=own)
    conf = spark_conf(settings, log_settings=LOG)
    assert conf["spark.archives"] == "file:///x/p.zip#lockstep_package,e.tgz#e"
    assert conf["spark.executorEnv.PYTHONPATH"] == "lockstep_package:e/packages"


def test_an_own_list_of_archives_stays_as_it_is_where_the_jobs_need_none() -> None:
    conf = spark_conf(SparkSettings(master=CLUSTER, conf={"spark.archives": "e.tgz#e"}), log_settings=LOG)
    assert conf["spark.archives"] == "e.tgz#e"


def test_on_a_cluster_a_failed_task_is_tried_again() -> None:
    assert spark_conf(SparkSettings(), log_settings=LOG)["spark.task.maxFailures"] == "1"
    assert int(spark_conf(SparkSettings(master=CLUSTER), log_settings=LOG)["spark.task.maxFailures"]) > 1


def test_the_path_of_this_python_is_not_imposed_on_other_machines() -> None:
    assert worker_python(SparkSettings()) == sys.executable
    assert worker_python(SparkSettings(master=CLUSTER)) == "python3"
    own = {"spark.pyspark.python": "/mine"}
    assert worker_python(SparkSettings(master=CLUSTER, conf=own)) == "/mine"


def test_the_class_archive_is_used_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    java.mkdir()
    (java / "release").write_text('JAVA_VERSION="17"')
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(java))

    def options() -> str:
        return spark_conf(SparkSettings(), log_settings=LOG)["spark.driver.extraJavaOptions"]

    assert "SharedArchiveFile" not in options()
    archive = archive_file(java)
    assert archive is not None
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive} " in options()
    (java / "release").write_text('JAVA_VERSION="21"')
    assert "SharedArchiveFile" not in options()
    assert archive_file(None) is None
    assert archive_file(tmp_path / "nowhere") is None


def test_workers_are_told_what_to_load() -> None:
    sinks: list[SinkSettings] = [
        RedisSettings(),
        OpenSearchSettings(),
        WarehouseSettings(url=SecretStr("postgresql+psycopg://warehouse/shop")),
        WarehouseSettings(url=SecretStr("duckdb:////var/lib/shop.duckdb")),
        # This one's library makes a thread when it is loaded.
        DeltaSettings(root="/lake"),
    ]
    libraries = {library for settings in sinks for library in settings.libraries}
    conf = spark_conf(SparkSettings(), log_settings=LOG, libraries=libraries)
    variable = "LOCKSTEP_LIBRARIES"
    loads = (
        "import os, sys; from jobs.spark.worker_daemon import load_libraries; before = {*sys.modules};"
        " threads = os.listdir('/proc/self/task'); load_libraries()"
    )
    shows = (
        "print(*sorted({'redis', 'opensearchpy', 'psycopg', 'sqlalchemy', 'duckdb', 'deltalake'} &"
        " ({*sys.modules} - before)), os.listdir('/proc/self/task') == threads)"
    )
    environment = os.environ | {variable: conf[f"spark.executorEnv.{variable}"] + ",not_installed"}
    done = subprocess.run(
        [sys.executable, "-c", f"{loads}; {shows}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["duckdb", "opensearchpy", "psycopg", "redis", "sqlalchemy", "True"]


def test_nobody_else_can_look_into_a_directory_of_ours() -> None:
    directory = own_directory()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert own_directory() != directory


class _Session:
    """What is looked at of a session: the process of its JVM."""

    def __init__(self, process: object) -> None:
        self.sparkContext = SimpleNamespace(_gateway=SimpleNamespace(proc=process))


def test_a_jvm_that_was_killed_has_ended_once_its_connection_broke() -> None:
    process = subprocess.Popen(["sleep", "600"])
    running = cast(SparkSession, _Session(process))
    try:
        assert not has_jvm_ended(running)
        process.kill()
        assert has_jvm_ended(running, ConnectionResetError())  # which comes before the process is seen to end
        assert has_jvm_ended(running)
        stop_session(running)  # does nothing: there is nothing to stop
    finally:
        process.kill()
        process.wait()


def test_what_the_bridge_tells_the_root_logger_is_left_out() -> None:
    def record(path: str) -> logging.LogRecord:
        return logging.LogRecord("root", logging.ERROR, path, 1, "Exception while sending command.", None, None)

    assert not is_not_of_bridge(record(str(Path(py4j.__file__).parent / "java_gateway.py")))
    assert is_not_of_bridge(record(__file__))
