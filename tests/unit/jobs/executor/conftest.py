"""Each test starts without open sinks."""

from collections.abc import Iterator

import pytest

from jobs.executor import open_sinks
from sinks.memory import MemorySink, MemoryStore
from tests.task_records import ORDERS


@pytest.fixture(autouse=True)
def _no_open_sinks() -> Iterator[None]:
    yield
    open_sinks.held.clear()


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    MemorySink(store, 1).prepare([ORDERS])
    return store
