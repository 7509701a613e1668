"""cdc.kafka.consumer"""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.kafka.consumer import close_consumer


def test_a_consumer_is_closed() -> None:
    closed = threading.Event()
    close_consumer(cast("Any", SimpleNamespace(close=closed.set)))
    assert closed.is_set()


def test_a_consumer_that_never_ends_its_threads_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.kafka.consumer._CLOSE_S", 0.05)
    ends, began = threading.Event(), threading.Event()

    def close() -> None:
        began.set()
        ends.wait(300)

    close_consumer(cast("Any", SimpleNamespace(close=close)))
    assert began.is_set()
    ends.set()
