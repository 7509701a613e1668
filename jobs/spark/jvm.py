"""Calls into Spark's JVM, and what they raise: the only place that knows the bridge's errors and PySpark's.

PySpark turns some Java exceptions into its own classes and lets the bridge raise all others, so either may come from
any call. ``jvm_calls`` makes one error of ours of both.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from cdc.model.errors import LockstepError, Unavailable

JVM_ERRORS: Final = (PySparkException, Py4JError)
"""What a call may raise."""

REFUSALS: Final = (PySparkException, Py4JJavaError)
"""Those of them that are an answer. Any other says that the JVM has gone."""

_NOT_IN_TIME: Final = "java.util.concurrent.TimeoutException"


@contextmanager
def jvm_calls(meaning: Callable[[str], LockstepError]) -> Iterator[None]:
    """In this block, what calls into the JVM raise becomes the error that ``meaning`` makes of its text."""
    try:
        yield
    except JVM_ERRORS as error:
        raise meaning(text_of(error)) from error


@contextmanager
def questions() -> Iterator[None]:
    """In this block Spark is asked; ``REFUSALS`` are raised as they come, and Unavailable where the JVM has gone."""
    try:
        yield
    except REFUSALS:
        raise
    except Py4JError as error:
        raise Unavailable("the JVM of Spark doesn't answer any more", hint="start the command again") from error


def text_of(error: BaseException) -> str:
    """What Spark says, which may hold values of rows. The class alone where the JVM has gone: it has the text."""
    try:
        return str(error)
    except (Py4JError, OSError):
        return type(error).__name__


def stop_query(query: StreamingQuery) -> bool:
    """Have Spark stop a query. Whether it has ended within ``spark.sql.streaming.stopTimeout``; at once if it had.

    A query that hasn't goes on until its batch ends, and ``isActive`` is False of it meanwhile: only this tells. Other
    errors are raised as they come.
    """
    try:
        query.stop()
    except JVM_ERRORS as error:
        if not _is_not_in_time(error):
            raise
        return False
    return True


def _is_not_in_time(error: BaseException) -> bool:
    if isinstance(error, Py4JJavaError):
        return bool(error.java_exception.getClass().getName() == _NOT_IN_TIME)
    return isinstance(error, PySparkException) and _NOT_IN_TIME in text_of(error)
