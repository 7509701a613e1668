"""What a failed query means for the operator, and how long to wait before the next try."""

import random
from typing import Final

from cdc.model.errors import LockstepError, Overtaken, PositionMismatch, Unavailable

BACKOFF_MAX_S: Final = 30.0
_BACKOFF_FIRST_S: Final = 0.5

# Kafka's client names what ends by itself so, in a failed query's message.
_PASSING: Final = (
    "TimeoutException",
    "DisconnectException",
    "NotLeaderOrFollowerException",
    "CoordinatorNotAvailableException",
    "BrokerNotAvailableException",
    "NetworkException",
    "Failed to construct kafka consumer",
)
# How Spark says that a process in which rows are applied has ended.
_LOST_WORKER: Final = (
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "ExecutorLostFailure",
    # It was killed while rows were on their way to it.
    "IOException: Broken pipe",
    "IOException: Connection reset by peer",
    "ClosedChannelException",
)
# How Spark says that another query has written to the checkpoint: before it wrote this batch, or just while it did.
_TAKEN: Final = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming queries are concurrently using")
# How Spark's Kafka source says that the log has lost records it had not read yet.
_DATA_LOSS: Final = ("KAFKA_DATA_LOSS", "failOnDataLoss", "OffsetOutOfRange", "Some data may have been lost")


class Backoff:
    """How long to wait before the next try: doubling, bounded, and never the same for two jobs."""

    def __init__(self) -> None:
        self._tries = 0

    def next_s(self, error: Unavailable) -> float:
        """Seconds to wait; half of that to all of it is left to chance."""
        longest = min(BACKOFF_MAX_S, max(_BACKOFF_FIRST_S, error.retry_after_s) * 2.0 ** min(self._tries, 10))
        self._tries += 1
        return longest * (1 - random.random() / 2)  # noqa: S311  no secret depends on it


def spark_error(sink: str, text: str) -> LockstepError:
    """A failed query's message -> the error that says what it means for the operator. Pure."""
    if any(word in text for word in _LOST_WORKER):
        return Unavailable(
            f"a Python worker of sink {sink!r} died: killed, or out of memory (spark.window_mb says how much it holds)"
        )
    if any(word in text for word in _TAKEN):
        return Overtaken(
            f"another job applies to sink {sink!r} with the same checkpoint", hint="stop one of the two jobs"
        )
    if any(word in text for word in _DATA_LOSS):
        return PositionMismatch(
            f"the log no longer holds what sink {sink!r} has to read next",
            hint="somebody deleted records or recreated a topic; have capture copy the table"
            f" (lockstep snapshot table TABLE), then lockstep rebuild {sink} --switch",
        )
    if any(word in text for word in _PASSING):
        return Unavailable(f"Kafka doesn't answer the query of sink {sink!r}")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return LockstepError(
        f"the query of sink {sink!r} failed: {lines[0][:300] if lines else 'without a message'}",
        hint="nothing was skipped: the batch is read again at the next start. On a cluster, see that the executors have"
        " this version of Lockstep and its packages: spark.package and spark.python in lockstep.toml",
    )
