"""What the sinks are asked for a report."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobs.generations.lease import GenerationLease
from jobs.generations.status import JobState
from monitor.collector import LagCollector
from sinks.memory import open_memory
from sinks.redis.settings import RedisSettings
from tests.generations import prepared_store


def test_nobody_waits_for_signs_of_life_who_does_not_ask_about_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    store = prepared_store(1)
    GenerationLease(open_memory(store), 1, now_ms=lambda: 0).heartbeat()  # killed long ago
    monkeypatch.setattr("monitor.collector.TopicAdmin", lambda _: None)
    monkeypatch.setattr("monitor.collector.OpenRejections", lambda *_: None)
    monkeypatch.setattr("monitor.collector.open_sink", lambda _, __, generation: open_memory(store, generation))
    asked: list[list[int]] = []

    def running_of(_: object, doubtful: list[int], __: object) -> frozenset[int]:
        asked.append(doubtful)
        return frozenset()

    monkeypatch.setattr("jobs.generations.status.running_of", running_of)
    pipeline = cast("Any", SimpleNamespace(kafka=SimpleNamespace(client=dict)))
    with LagCollector(pipeline, {"cache": RedisSettings()}) as collector:
        [(_, _, job)] = collector._ask("cache", with_jobs=False)
        assert (job, asked) == (None, [])
        [(_, _, job)] = collector._ask("cache", with_jobs=True)
        assert job is not None
        assert (job.state, asked) == (JobState.SILENT, [[1]])
