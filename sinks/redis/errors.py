"""Redis's errors as Lockstep's."""

from typing import Final

from cdc.model.errors import LockstepError, StoreRefuses, Unavailable
from sinks.access import certificate_refused, untrusted

# A server's words in cluster mode when a key of the script is on another node.
_OTHER_NODE: Final = "non local key"
# The first words of replies for which redis-py has no class. These end by themselves, ...
_PASSING: Final = ("BUSY", "NOREPLICAS", "UNBLOCKED", "LOADING")
# ... this one doesn't.
_CANT_SAVE: Final = "MISCONF"
_RETRY_AFTER_S: Final = 0.5


def translated(error: Exception, server: str = "redis") -> LockstepError:
    """redis-py's error as Lockstep's. None of them concerns a single table. ``server`` names the server.

    A reply's code is in the error's class, or in the text if there is no class for it.
    """
    from redis import exceptions
    from redis.sentinel import MasterNotFoundError

    words = str(error).splitlines()[0][:200] if str(error) else "connection lost"
    match error:
        case (
            exceptions.AuthenticationError()
            | exceptions.AuthorizationError()
            | exceptions.AuthenticationWrongNumberOfArgsError()
        ):
            return StoreRefuses(f"redis refuses the login: {words}", hint="check user and password of this sink")
        case exceptions.NoPermissionError():
            commands = (
                "EVAL, EVALSHA, SCRIPT|LOAD, HGET, HGETALL, HKEYS, HMGET, HEXISTS, HSET, HSETNX, HDEL, DEL, PEXPIRE, "
                "PTTL, EXISTS, "
                "GET, SET, SETNX, SADD, SMEMBERS, SREM, SCAN, UNLINK, MULTI, EXEC, INFO"
            )
            return StoreRefuses(
                f"redis refuses: {words}", hint=f"grant the sink's user {commands} on the keys of its prefix"
            )
        case exceptions.OutOfMemoryError():
            return StoreRefuses(f"redis refuses: {words}", hint="raise maxmemory, or move other data away")
        case (
            exceptions.AskError() | exceptions.ClusterDownError() | exceptions.ClusterCrossSlotError()
        ):  # MOVED is an AskError too
            return is_cluster()
        case exceptions.NoScriptError():
            return StoreRefuses("redis forgets scripts at once", hint="find out who runs SCRIPT FLUSH all the time")
        case MasterNotFoundError():
            return Unavailable(f"{server}: no Sentinel that answers knows a primary of this name", retry_after_s=1.0)
        case exceptions.ConnectionError() | exceptions.TimeoutError():
            if "certificate verify failed" in str(error):
                return untrusted(server, error)
            ours = certificate_refused(server, error)
            return ours or Unavailable(f"redis: {words}", retry_after_s=_RETRY_AFTER_S)
        case exceptions.ReadOnlyError() | exceptions.TryAgainError():
            return Unavailable(f"redis: {words}", retry_after_s=_RETRY_AFTER_S)
    if _OTHER_NODE in words:
        return is_cluster()
    if words.startswith(_CANT_SAVE):
        return StoreRefuses(
            "redis can't save to its disk", hint="free space, or mend the server's persistence settings"
        )
    if words.startswith(_PASSING):
        return Unavailable(f"redis: {words}", retry_after_s=_RETRY_AFTER_S)
    return StoreRefuses(f"redis refuses: {words}", hint="look at the server's log")


def is_cluster() -> LockstepError:
    """The error for a server that holds only some of the keys."""
    return StoreRefuses(
        "redis is a cluster, over which this sink can't write a batch",
        hint="give this sink the address of a single server (cluster-enabled no), or of a proxy",
    )
