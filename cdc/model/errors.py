"""Every error that Lockstep raises on purpose.

::

    LockstepError                 the operator's turn: a message that says what failed and why, and a hint what to do
     +- ConfigurationError        lockstep.toml or the command line is wrong (exit code 2)
     +- MalformedMessage          bytes that aren't what the protocol says; the stream stops, nothing is guessed
     +- ForeignRecord             a record on a topic of ours that no version of Lockstep has written
     +- PositionMismatch          slot, publication or topics don't fit the recorded state; something was skipped
     +- StoreRefuses              a destination takes nothing at all, as when its disk is full
     +- PerhapsStoreRefuses       it takes this not, for want of rights or memory; perhaps it takes nothing at all
     +- NeedsRebuild              what a destination holds of a table doesn't fit it any more; it is built again
     +- UnsupportedChange         the database did something this version can't publish exactly; it stops instead
     +- Fenced                    another process has taken over; this one must not write any more
         +- Overtaken             another process has done more of the same work; the newer of the two may go on
     +- Unavailable               a server can't serve now; the same call may succeed later
         +- DataLost              it is back, perhaps without its last writes: begin again from what is sure
         +- TransactionTimedOut   it ended a transaction that was open for too long; a smaller one may be in time

A bug of ours is an AssertionError. An error is raised or logged, never both. No message holds a row's values.
"""

import traceback
from collections.abc import Callable, Sequence
from typing import Any


class LockstepError(Exception):
    """Something the operator has to know. ``hint`` says what to do about it."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"

    def __reduce__(self) -> "tuple[Callable[..., LockstepError], tuple[Any, ...], dict[str, Any]]":
        # Copied and pickled as it is: a subclass may need arguments that Python would leave out.
        return _made, (type(self), self.args), self.__dict__


def _made(cls: type[LockstepError], arguments: tuple[Any, ...]) -> LockstepError:
    return cls.__new__(cls, *arguments)


class ConfigurationError(LockstepError):
    """The configuration is wrong. ``problems`` lists all of them, each with its key path."""

    def __init__(self, message: str, *, problems: Sequence[str] = (), hint: str | None = None) -> None:
        super().__init__("\n".join([message, *(f"  {problem}" for problem in problems)]), hint=hint)
        self.problems = tuple(problems)


class MalformedMessage(LockstepError):
    """A protocol message that can't be decoded. Shows the position and the first bytes' hex, never a value."""

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
    """A record on a topic of ours, or a message in the WAL, that no version of Lockstep has written."""


class PositionMismatch(LockstepError):
    """The recorded position and the servers disagree. Resuming would skip changes, so nothing was resumed."""


class StoreRefuses(LockstepError):
    """A destination takes nothing at all, as when its disk is full or our login is wrong. No table is to blame."""


class PerhapsStoreRefuses(LockstepError):
    """A destination lacks rights or memory for what it was given. Where that is so of all tables, none is to blame."""


class NeedsRebuild(LockstepError):
    """What a destination holds of a table doesn't fit the table any more, or the settings. To try again is no use: it
    has to be built again, or what was changed is put back.
    """


class UnsupportedChange(LockstepError):
    """A change that can't be published exactly. The run stops before it; the hint holds the way out."""


class Fenced(LockstepError):
    """Another process took over this role. Whatever was not committed yet is left to it."""


class Overtaken(Fenced):
    """Another process has done more of the same work. Who is the newer one may begin again from there."""


class Unavailable(LockstepError):
    """A server can't take the call now. The same call may be made again after ``retry_after_s`` seconds."""

    def __init__(self, message: str, *, hint: str | None = None, retry_after_s: float = 0.5) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class DataLost(Unavailable):
    """A destination has come back, perhaps without its last writes. Repeating the call isn't enough: the caller begins
    again from what is sure to be there."""


class TransactionTimedOut(Unavailable):
    """Kafka has ended a transaction that was open for longer than it allows. With less in it, it may be in time."""


def bug(error: Exception) -> LockstepError:
    """An error that nobody raised on purpose, as one to tell: where it happened, but not its text, which may quote a
    row.
    """
    frames = [
        f"{frame.filename.rpartition('/')[2]}:{frame.name}" for frame in traceback.extract_tb(error.__traceback__)
    ]
    return LockstepError(f"{type(error).__name__} in {' > '.join(frames[-4:])}", hint="this is a bug of Lockstep's")
