"""The Spark that doctor asks about stream queries runs with the Java that runs the jobs."""

import os
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.model.errors import LockstepError
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.spark_sql import SparkSql
from jobs.settings import SparkSettings
from stack.errors import StackError

FOUND = Path("/java/that/was/found")
PLAN = cast(StreamQueryPlan, SimpleNamespace(name="busy", query=None, streams={}))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[SparkSettings]:
    """The settings of each Spark that was started."""
    settings_of: list[SparkSettings] = []

    def open_session(settings: SparkSettings, **_: object) -> Any:
        settings_of.append(settings)
        return SimpleNamespace(newSession=lambda: None, stop=lambda: None)

    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    monkeypatch.setattr("pyspark.sql.SparkSession._instantiatedSession", None)
    monkeypatch.setattr("jobs.spark.session.open_session", open_session)
    monkeypatch.setattr("extensions.streams.jobs.planning.examined", lambda *_: (["a problem"], []))
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setattr("stack.java.java_home_for_spark", lambda: FOUND)
    return settings_of


def _problems(settings: SparkSettings) -> list[str]:
    with ExitStack() as closing:
        sql = SparkSql(settings, closing)
        assert sql.examine(PLAN) == sql.examine(PLAN)
        return sql.examine(PLAN)[0]


def test_it_has_the_java_of_this_machine(started: list[SparkSettings]) -> None:
    assert _problems(SparkSettings()) == ["a problem"]
    assert len(started) == 1
    assert os.environ["JAVA_HOME"] == str(FOUND)


def test_a_java_that_cant_be_fetched_is_a_finding_of_the_query(
    started: list[SparkSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Path:
        raise StackError("no Java was found", hint="install one")

    monkeypatch.setattr("stack.java.java_home_for_spark", refuse)
    with pytest.raises(LockstepError, match="no Java was found") as refused:
        _problems(SparkSettings())
    assert (refused.value.hint, started) == ("install one", [])
