"""The Spark that doctor asks about expressions runs with the Java that runs the jobs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cdc.model.errors import LockstepError
from jobs.settings import SparkSettings
from lockstep.apply import with_java
from lockstep.doctor.spark_sql import SparkSql
from sinks.table_settings import Expressions
from stack.errors import StackError
from tests.builders import ORDERS, table

FOUND = Path("/java/that/was/found")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[SparkSettings]:
    """The settings of each Spark that was started."""
    settings_of: list[SparkSettings] = []

    @contextmanager
    def session_here(settings: SparkSettings, *, bulk: bool) -> Iterator[None]:
        settings_of.append(settings)
        yield

    monkeypatch.setattr("jobs.spark.computed_columns.session_here", session_here)
    monkeypatch.setattr("jobs.spark.computed_columns.expression_problems", lambda *_: ["a problem"])
    monkeypatch.setattr("stack.java.java_home_for_spark", lambda: FOUND)
    return settings_of


def _problems(settings: SparkSettings) -> list[str]:
    with ExitStack() as closing:
        return SparkSql(settings, closing).problems({ORDERS: Expressions({}, "true")}, [table()])


def test_it_has_the_java_of_this_machine(started: list[SparkSettings]) -> None:
    assert _problems(SparkSettings()) == ["a problem"]
    assert [settings.java_home for settings in started] == [FOUND]


def test_a_java_that_is_configured_is_taken(started: list[SparkSettings]) -> None:
    _problems(SparkSettings(java_home=Path("/java/mine")))
    assert [settings.java_home for settings in started] == [Path("/java/mine")]
    assert with_java(SparkSettings(java_home=Path("/java/mine"))).java_home == Path("/java/mine")


def test_a_java_that_cant_be_fetched_is_a_finding_of_the_sink(
    started: list[SparkSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Path:
        raise StackError("no Java was found", hint="install one")

    monkeypatch.setattr("stack.java.java_home_for_spark", refuse)
    with pytest.raises(LockstepError, match="no Java was found") as refused:
        _problems(SparkSettings())
    assert (refused.value.hint, started) == ("install one", [])
