"""cdc.pipeline_settings: what one capture is, asked for again and again where there are thousands of tables."""

import pickle
from dataclasses import replace
from typing import Any

import pytest

from cdc import pipeline_settings as pipeline_module
from cdc.capture.settings import CaptureSettings
from cdc.kafka.settings import KafkaSettings
from cdc.model.table import TableName
from cdc.model.table_pattern import TablePattern
from cdc.pipeline_settings import Pipeline
from cdc.postgres import settings as settings_module
from cdc.postgres.settings import SourceSettings

_FOUND = [TableName("many", f"t{n}") for n in range(2_000)]


class _Counted:
    """A function that is called, and how often."""

    def __init__(self, function: Any) -> None:
        self.calls = 0
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self._function(*arguments)


def _pipeline(*tables: str) -> Pipeline:
    source = SourceSettings(dsn="host=db dbname=app", tables=tables, exclude_tables=("many.*_old",))
    return Pipeline("shop", source, KafkaSettings(bootstrap_servers="kafka:9092"), CaptureSettings())


def test_each_topic_is_named_once_however_often_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = _Counted(pipeline_module.table_topic)
    monkeypatch.setattr(pipeline_module, "table_topic", counted)
    pipeline = _pipeline("many.*").capturing(_FOUND)
    assert all(pipeline.topics()[name] == f"shop.many.{name.name}" for name in _FOUND)
    assert counted.calls == len(_FOUND)


def test_a_pipeline_goes_to_another_process_also_after_its_topics_were_asked_for() -> None:
    pipeline = _pipeline("many.*").capturing(_FOUND)
    topics = pipeline.topics()
    assert pickle.loads(pickle.dumps(pipeline)).topics() == topics


def test_patterns_are_parsed_once_and_not_for_each_table(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = _Counted(TablePattern.parse)
    monkeypatch.setattr(settings_module, "TablePattern", type("_", (), {"parse": counted}))
    pipeline = _pipeline("many.*", "never.asked_before_*")
    before = counted.calls
    assert len(pipeline.capturing(_FOUND).source.table_names) == len(_FOUND)
    assert all(pipeline.source.may_have(name) for name in _FOUND)
    assert counted.calls - before <= 3, "each of the three texts at most once"


@pytest.mark.parametrize(("is_awaited", "every_s"), [(False, 0.1), (True, 0.02)])
def test_progress_comes_often_where_somebody_waits_for_it(*, is_awaited: bool, every_s: float) -> None:
    assert replace(_pipeline("many.*"), has_whole_transactions=is_awaited).progress_every_s == every_s
