"""Every error that Lockstep raises on purpose.

::

    LockstepError                 the operator must act: the message says what failed and why, the hint what to do
     +- ConfigurationError        lockstep.toml or the command line is wrong (exit code 2)
     +- MalformedMessage          bytes break the protocol; the stream stops, nothing is guessed
     +- ForeignRecord             a record on one of our topics that no version of Lockstep wrote
     +- PositionMismatch          slot, publication or topics don't fit the recorded state; changes were skipped
     +- StoreRefuses              a destination accepts no writes at all, for instance because its disk is full
     +- PerhapsStoreRefuses       it refuses this write for lack of rights or memory, and perhaps all writes
     +- NeedsRebuild              a table's data in a destination no longer fits the table; it must be rebuilt
     +- UnsupportedChange         the database made a change that this version can't publish exactly; it stops
     +- Fenced                    another process has taken over; this one must not write any more
         +- Overtaken             another process is further with the same work; the newer of the two may go on
     +- Unavailable               a server can't serve now; the same call may succeed later
         +- DataLost              it is back, perhaps without its last writes: restart from what is certain
         +- TransactionTimedOut   it ended a transaction that was open for too long; a smaller one may fit

A bug of ours is an AssertionError. An error is raised or logged, never both. No message holds a row's values.
"""

import traceback
from collections.abc import Callable, Sequence
from typing import Any


class LockstepError(Exception):
    """An error that the operator must know about. ``hint`` says what to do."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"

    def __reduce__(self) -> "tuple[Callable[..., LockstepError], tuple[Any, ...], dict[str, Any]]":
        # Copied and pickled by state: a subclass may need arguments that Python would leave out.
        return _made, (type(self), self.args), self.__dict__


def _made(cls: type[LockstepError], arguments: tuple[Any, ...]) -> LockstepError:
    return cls.__new__(cls, *arguments)


class ConfigurationError(LockstepError):
    """The configuration is wrong. ``problems`` lists every problem, each with its key path."""

    def __init__(self, message: str, *, problems: Sequence[str] = (), hint: str | None = None) -> None:
        super().__init__("\n".join([message, *(f"  {problem}" for problem in problems)]), hint=hint)
        self.problems = tuple(problems)


class MalformedMessage(LockstepError):
    """A protocol message that can't be decoded. Shows the position and the first byte in hex, never a value."""

    def __init__(self, reason: str, *, position: int, message: bytes, lsn: int | None = None) -> None:
        head = message[:1].hex()
        where = "" if lsn is None else f", at LSN {lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
        super().__init__(
            f"malformed replication message: {reason}, at byte {position} of {len(message)},"
            f" type byte {head or 'none'}{where}",
            hint="nothing was skipped; keep the slot and report this together with the server's version",
        )
        self.reason = reason
        self.position = position


class ForeignRecord(LockstepError):
    """A record on one of our topics, or a message in the WAL, that no version of Lockstep wrote."""


class PositionMismatch(LockstepError):
    """The recorded position and the servers disagree. Resuming would skip changes, so nothing was resumed."""


class StoreRefuses(LockstepError):
    """A destination accepts nothing at all, for instance because its disk is full or our login is wrong. No table
    causes it."""


class PerhapsStoreRefuses(LockstepError):
    """A destination lacks rights or memory for a write. If every table fails so, no table causes it."""


class NeedsRebuild(LockstepError):
    """A destination's data of a table no longer fits the table or the settings. Retrying doesn't help: rebuild it, or
    undo the change."""


class UnsupportedChange(LockstepError):
    """A change that can't be published exactly. The run stops before it; the hint says how to go on."""


class Fenced(LockstepError):
    """Another process took over this role, and with it everything that isn't committed yet."""


class Overtaken(Fenced):
    """Another process is further with the same work. The newer of the two may restart from there."""


class Unavailable(LockstepError):
    """A server can't take the call now. The same call may be made again after ``retry_after_s`` seconds."""

    def __init__(self, message: str, *, hint: str | None = None, retry_after_s: float = 0.5) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class DataLost(Unavailable):
    """A destination is back, perhaps without its last writes. Repeating the call isn't enough: the caller restarts from
    what is certain to be there."""


class TransactionTimedOut(Unavailable):
    """Kafka ended a transaction that was open for longer than it allows. A smaller one may fit."""


def bug(error: Exception) -> LockstepError:
    """A LockstepError for an unexpected exception: its place in the code, without its text, which may quote a row."""
    frames = [
        f"{frame.filename.rpartition('/')[2]}:{frame.name}" for frame in traceback.extract_tb(error.__traceback__)
    ]
    return LockstepError(f"{type(error).__name__} in {' > '.join(frames[-4:])}", hint="this is a bug of Lockstep's")
