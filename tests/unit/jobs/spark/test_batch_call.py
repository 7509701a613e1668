from types import SimpleNamespace
from typing import Any

import pytest

from jobs.spark.batch_call import BatchCall, BatchFailed


class Jvm:
    """What calls us from a thread of its own, and its connections."""

    def __init__(self) -> None:
        self.open: list[object] = []
        calls = SimpleNamespace(getPerThreadConnection=self._connect, connectionStopped=lambda one: None)
        server = SimpleNamespace(getCallbackClient=lambda: calls)
        context = SimpleNamespace(_gateway=SimpleNamespace(java_gateway_server=server))
        self.frame: Any = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))

    def _connect(self) -> Any:
        connection = SimpleNamespace(shutdown=lambda _: self.open.remove(connection))
        self.open.append(connection)
        return connection


class Query:
    def batch(self, _: Any, batch_id: int) -> None:
        if batch_id > 1:
            raise ValueError(self)


def test_the_connection_of_a_querys_thread_is_closed_with_the_query() -> None:
    jvm = Jvm()
    call = BatchCall(Query().batch)
    call(jvm.frame, 0)
    call(jvm.frame, 1)
    assert len(jvm.open) == 1
    call.close()
    assert not jvm.open
    call.close()


def test_a_call_for_a_query_that_is_over_is_refused() -> None:
    call = BatchCall(Query().batch)
    call.close()
    with pytest.raises(BatchFailed):
        call(Jvm().frame, 0)
