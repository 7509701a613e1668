"""What Spark calls for each batch of a query, so that nothing of the query stays once it has ended.

The JVM holds what it calls until its garbage is collected, which may take hours where little is going on. And each of
its threads that calls Python has a connection of its own for that, which nobody closes: every query has such a thread.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame


class BatchFailed(Exception):
    """A batch hasn't been done. Whoever did it knows why."""


class BatchCall:
    """A function for ``foreachBatch``: calls ``batch`` until it is closed."""

    def __init__(self, batch: Callable[[DataFrame, int], None]) -> None:
        """``batch`` keeps what it raises for whoever asks: Spark gets no more than the text of it."""
        self._batch: Callable[[DataFrame, int], None] = batch
        self._connection: tuple[Any, Any] | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Raises BatchFailed where ``batch`` raises, and after ``close``.

        Not what ``batch`` has raised: the bridge keeps that, and with it all that the frames of its trace hold.
        """
        if self._connection is None:
            # What we ask the JVM here is answered by the thread that has called us.
            calls = frame.sparkSession.sparkContext._gateway.java_gateway_server.getCallbackClient()  # type: ignore[union-attr]
            self._connection = calls, calls.getPerThreadConnection()
        is_done = False
        with suppress(Exception):
            self._batch(frame, batch_id)
            is_done = True
        if not is_done:
            raise BatchFailed

    def close(self) -> None:
        """Let go of the query, and of the connection of its thread in the JVM. That thread must have ended."""
        self._batch = _refuse
        if self._connection is None:
            return
        calls, connection = self._connection
        self._connection = None
        with suppress(Py4JError, OSError):  # a JVM that has ended has none
            connection.shutdown(False)
            calls.connectionStopped(connection)


def _refuse(_: DataFrame, __: int) -> None:
    raise BatchFailed
