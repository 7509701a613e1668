"""Calls into Spark's JVM, and what they raise: the only place that knows the bridge's errors and PySpark's. PySpark
turns some Java exceptions into its own classes and lets the bridge raise all others, so either may come from any call.
``jvm_calls`` turns both into one error of ours."""

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
"""Those of them that are an answer. Any other means that the JVM has gone."""

_NOT_IN_TIME: Final = "java.util.concurrent.TimeoutException"


@contextmanager
def jvm_calls(meaning: Callable[[str], LockstepError]) -> Iterator[None]:
    """In this block, errors of calls into the JVM become the error that ``meaning`` makes of their text."""
    try:
        yield
    except JVM_ERRORS as error:
        raise meaning(text_of(error)) from error


@contextmanager
def questions() -> Iterator[None]:
    """For calls into Spark: ``REFUSALS`` are raised as they come, and Unavailable if the JVM has gone."""
    try:
        yield
    except REFUSALS:
        raise
    except Py4JError as error:
        raise Unavailable("the JVM of Spark doesn't answer any more", hint="start the command again") from error


def text_of(error: BaseException) -> str:
    """Spark's text, which may hold values of rows. Only the class if the JVM has gone, since it has the text."""
    try:
        return str(error)
    except (Py4JError, OSError):
        return type(error).__name__


def stop_query(query: StreamingQuery) -> bool:
    """Stop a query. Returns whether it has ended within ``spark.sql.streaming.stopTimeout``; at once if it had before.
    Otherwise it goes on until its batch ends. ``isActive`` is already False then, so only this return value says it.
    Other errors are raised as they come."""
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
