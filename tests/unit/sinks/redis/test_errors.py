"""What waits and what stops in ``sinks.redis.errors``, by redis-py's own errors; tests/contract has real servers'."""

import pytest
from redis import exceptions

from cdc.model.errors import Unavailable
from sinks.redis.errors import translated


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ConnectionError("lost"),
        exceptions.TimeoutError("slow"),
        exceptions.BusyLoadingError("loading"),
        exceptions.ReadOnlyError("read only"),
        exceptions.TryAgainError("TRYAGAIN"),
        exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."),
        exceptions.ResponseError("BUSY Redis is busy running a script."),
    ],
)
def test_what_ends_by_itself_is_waited_for(error: Exception) -> None:
    assert isinstance(translated(error), Unavailable)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (exceptions.AuthenticationError("wrong"), "refuses the login"),
        (exceptions.NoPermissionError("no"), "redis refuses"),
        (exceptions.OutOfMemoryError("full"), "redis refuses"),
        (exceptions.MovedError("1 127.0.0.1:7000"), "is a cluster"),
        (exceptions.AskError("1 127.0.0.1:7000"), "is a cluster"),
        (exceptions.ClusterDownError("CLUSTERDOWN"), "is a cluster"),
        (exceptions.ClusterCrossSlotError("slots"), "is a cluster"),
        (exceptions.ResponseError("ERR Script attempted to access a non local key in a cluster node"), "is a cluster"),
        (exceptions.NoScriptError("gone"), "forgets scripts"),
        (exceptions.ResponseError("MISCONF can't save"), "can't save"),
        (exceptions.ResponseError("ERR whatever"), "redis refuses: ERR whatever"),
        (exceptions.ConnectionError("certificate verify failed"), "isn't trusted"),
    ],
)
def test_what_only_a_person_ends_stops_the_job_with_a_hint(error: Exception, words: str) -> None:
    raised = translated(error)
    assert words in raised.message
    assert not isinstance(raised, Unavailable)
    assert raised.hint
