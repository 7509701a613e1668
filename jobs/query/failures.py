"""What a failed query means for the operator, and how long to wait before the next try."""

import random
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from cdc.model.errors import LockstepError, Unavailable

BACKOFF_MAX_S: Final = 30.0
_BACKOFF_FIRST_S: Final = 0.5

# What Kafka's client calls passing failures in a failed query's message.
_PASSING: Final = (
    "TimeoutException",
    "DisconnectException",
    "NotLeaderOrFollowerException",
    "CoordinatorNotAvailableException",
    "BrokerNotAvailableException",
    "NetworkException",
    "Failed to construct kafka consumer",
)
# What Spark says when a process that applies rows has ended.
_LOST_WORKER: Final = (
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "ExecutorLostFailure",
    # The worker was killed while rows were on their way to it.
    "IOException: Broken pipe",
    "IOException: Connection reset by peer",
    "ClosedChannelException",
)

# The error condition in Spark's messages. The text before the first one holds no values of rows.
_CONDITION: Final = re.compile(r"(?:^|[\s:])\[(?P<name>[A-Z][A-Z0-9_]*(?:\.[A-Z][A-Z0-9_]*)*)\] ")
_SQLSTATE: Final = re.compile(r"SQLSTATE: ([0-9A-Z]{5})\b")
# Conditions that only wrap another one.
_WRAPPERS: Final = frozenset({"STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR", "FAILED_EXECUTE_UDF"})
_DATA_EXCEPTION: Final = "22"  # the SQL standard's class of errors about values
_EXCEPTION: Final = re.compile(
    r"(?:^|[\s:])(?P<name>(?:java|javax|org|com|scala|py4j|pyspark)(?:\.\w+)+(?:Exception|Error))\b"
)
# Exceptions of the system, of files and of modules: their messages hold paths and names, but no values of rows.
_OF_SYSTEM: Final = re.compile(
    r"(?:^|[\s:])(?P<told>(?:(?:java\.(?:io|nio|net)|org\.apache\.hadoop)(?:\.\w+)+(?:Exception|Error)|"
    r"java\.lang\.OutOfMemoryError|ModuleNotFoundError|ImportError|OSError|PermissionError): [^\n]{0,300})"
)
_OF_VALUE: Final = (
    "nothing was skipped. An expression of the configuration can't be reckoned for some row: try_cast, try_divide, get"
    " and their like give null there instead"
)


class Backoff:
    """How long to wait before the next try: doubles up to a limit, with jitter so that two jobs differ."""

    def __init__(self) -> None:
        self._tries = 0

    def next_s(self, error: Unavailable) -> float:
        """Seconds to wait: a random time between half of the present limit and all of it."""
        longest = min(BACKOFF_MAX_S, max(_BACKOFF_FIRST_S, error.retry_after_s) * 2.0 ** min(self._tries, 10))
        self._tries += 1
        return longest * (1 - random.random() / 2)  # noqa: S311  no secret depends on it


def spark_error(
    sink: str, text: str, others: Mapping[Sequence[str], LockstepError] = MappingProxyType({})
) -> LockstepError:
    """The error that says what a failed query's message means for the operator. Pure. ``others`` are further errors,
    each by words any of which identifies it."""
    cause, is_of_value = _cause(text)
    if is_of_value:  # such text may hold any of the words below
        return LockstepError(f"the query of sink {sink!r} failed: {cause}", hint=_OF_VALUE)
    if any(word in text for word in _LOST_WORKER):
        return Unavailable(
            f"a Python worker of sink {sink!r} died: killed, or out of memory (docs/sizing.md says how much it holds)"
        )
    for words, error in others.items():
        if any(word in text for word in words):
            return error
    if any(word in text for word in _PASSING):
        return Unavailable(f"Kafka doesn't answer the query of sink {sink!r}")
    return LockstepError(
        f"the query of sink {sink!r} failed: {cause}",
        hint="nothing was skipped: the batch is read again at the next start. On a cluster, see that the executors have"
        " this version of Lockstep and its packages: spark.package, and spark.pyspark.python in [spark.conf]",
    )


def _cause(text: str) -> tuple[str, bool]:
    """Spark's message without parameters, which may be values of rows; and whether a value is to blame."""
    condition = next((found for found in _CONDITION.finditer(text) if found["name"] not in _WRAPPERS), None)
    if condition is not None:
        state = _SQLSTATE.search(text, condition.end())
        if state is None:
            return f"Spark says {condition['name']}", False
        is_of_value = state[1].startswith(_DATA_EXCEPTION) and not condition["name"].startswith("KAFKA_")
        return f"Spark says {condition['name']} (SQLSTATE {state[1]})", is_of_value
    if (of_system := _OF_SYSTEM.search(text)) is not None:
        return of_system["told"].strip(), False
    names = [found["name"] for found in _EXCEPTION.finditer(text)]
    return (f"Spark has raised {names[-1]}" if names else "Spark doesn't say why"), False
