"""Spark's settings, without starting it."""

from pathlib import Path

from jobs.config import SparkSettings
from jobs.session import spark_conf

LOG = Path("log4j2.properties")


def test_own_settings_win() -> None:
    conf = spark_conf(SparkSettings(conf={"spark.speculation": "true", "spark.x": "y"}), log_settings=LOG)
    assert conf["spark.speculation"] == "true"
    assert conf["spark.x"] == "y"


def test_only_a_local_master_learns_where_this_checkout_is() -> None:
    assert "spark.executorEnv.PYTHONPATH" in spark_conf(SparkSettings(), log_settings=LOG)
    remote = spark_conf(SparkSettings(master="spark://cluster:7077"), log_settings=LOG)
    assert "spark.executorEnv.PYTHONPATH" not in remote
    assert "spark.driver.host" not in remote


def test_jars_are_handed_over_by_path() -> None:
    conf = spark_conf(SparkSettings(jars=(Path("a.jar"), Path("b.jar"))), log_settings=LOG)
    assert conf["spark.jars"] == "a.jar,b.jar"
