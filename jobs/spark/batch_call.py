"""The function that Spark calls for each batch of a query, made so that nothing of a query remains after its end. The
JVM holds what it calls until its garbage is collected, which may take hours while little happens. And each of its
threads that calls Python has a connection of its own for that, which nobody closes: every query has such a thread."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame


class BatchFailed(Exception):
    """A batch failed. Its function knows why."""


class BatchCall:
    """A function for ``foreachBatch``: calls ``batch`` until it is closed."""

    def __init__(self, batch: Callable[[DataFrame, int], None]) -> None:
        """``batch`` must itself store what it raises: Spark gets only the text of it."""
        self._batch: Callable[[DataFrame, int], None] = batch
        self._connection: tuple[Any, Any] | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Raises BatchFailed if ``batch`` raises, and after ``close``. It doesn't pass on the exception of ``batch``:
        the bridge would keep it, with everything that its frames hold."""
        if self._connection is None:
            # Our calls into the JVM meanwhile are answered by the thread that has called us.
            calls = frame.sparkSession.sparkContext._gateway.java_gateway_server.getCallbackClient()  # type: ignore[union-attr]
            self._connection = calls, calls.getPerThreadConnection()
        is_done = False
        with suppress(Exception):
            self._batch(frame, batch_id)
            is_done = True
        if not is_done:
            raise BatchFailed

    def close(self) -> None:
        """Release the query, and the connection of its thread in the JVM. That thread must have ended."""
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
