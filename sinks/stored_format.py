"""The number of the layout in which a sink stores data and bookkeeping, and what to do about another layout (pure)."""

from typing import Final

from cdc.model.errors import LockstepError

STORED_FORMAT: Final = 2
"""What this version writes. Format 1 is what was stored before there was a number."""


def check_stored_format(sink: str, stored: int, *, known: int = STORED_FORMAT, elsewhere: str) -> None:
    """Raise LockstepError if a sink's data has another format. ``elsewhere`` is the setting that moves the sink."""
    if stored == known:
        return
    way_out = f"give the sink another {elsewhere} and let `lockstep apply` build it from the log"
    if stored > known:
        raise LockstepError(
            f"sink {sink!r} was written by a newer Lockstep: its stored format is {stored}, this version knows {known}",
            hint=f"upgrade Lockstep; or {way_out}",
        )
    raise LockstepError(
        f"sink {sink!r} was written by an earlier Lockstep: its stored format is {stored}, this version needs {known}",
        hint=f"{way_out}, then remove what the earlier version has left; or go on with that version",
    )
