"""Somebody has asked to stop in the middle."""

from cdc.model.errors import LockstepError


class Stopped(LockstepError):
    """It isn't done, and may be begun again."""


def stopped() -> LockstepError:
    """The error for who was asked to stop in the middle."""
    return Stopped("stopped before it was done", hint="run the same command again: it goes on")
