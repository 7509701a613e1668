"""How long a worker keeps its sink open."""

from dataclasses import replace

import pytest

from jobs.executor import open_sinks
from sinks.contract import OpenedSink
from sinks.memory import MemorySink, MemoryStore, open_memory
from sinks.redis.settings import RedisSettings
from sinks.registry import SinkSettings
from tests.task_records import TOPIC, Recording, put, run, task


def test_a_sink_stays_open_from_task_to_task(store: MemoryStore) -> None:
    opened = []

    def open_it(_name: str, _settings: SinkSettings, _generation: int) -> OpenedSink:
        opened.append(1)
        return open_memory(store, 1)

    what = replace(task(MemorySink(store, 1)), open=open_it)
    run(what, [put(1, "a", lsn=8)])
    run(what, [put(1, "b", lsn=16)])
    assert len(opened) == 1
    run(replace(what, settings=RedisSettings(prefix="other")), [put(1, "c", lsn=24)])
    assert len(opened) == 2


@pytest.mark.parametrize("server", [None, "3f2a"])
def test_a_sink_is_told_which_server_has_the_jobs_progress_when_it_is_opened(
    store: MemoryStore, server: str | None
) -> None:
    required = list[str]()

    def open_it(_name: str, _settings: SinkSettings, _generation: int) -> OpenedSink:
        return replace(open_memory(store, 1), require_server=required.append)

    what = replace(task(MemorySink(store, 1)), open=open_it, server=server)
    run(what, [put(1, "a", lsn=8)])
    run(what.only([TOPIC]), [put(1, "b", lsn=16)])
    assert required == ([] if server is None else [server])


class _Closing(MemorySink):
    """Knows whether it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_sink_that_no_task_uses_any_more_is_closed_when_another_is_opened(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped, used = _Closing(store, 1), Recording(store)
    run(task(dropped), [put(1, "a", lsn=8)])
    run(replace(task(used), sink="other"), [put(1, "a", lsn=8)])
    monkeypatch.setattr(open_sinks, "IDLE_S", 0.0)
    run(replace(task(used), sink="other"), [put(1, "b", lsn=16)])
    assert not dropped.closed, "nothing is opened, so nothing is closed"
    run(replace(task(MemorySink(store, 2)), generation=2), [put(1, "a", lsn=8)])
    assert dropped.closed
