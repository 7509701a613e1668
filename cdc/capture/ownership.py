"""Whose turn it is to write: of several processes of one slot, the one that took over last."""

from cdc.model.errors import Fenced
from cdc.protocol.control_records import CaptureState


class Ownership:
    """A process that starts takes over, once, from whoever is the owner by then. ``name`` tells it from all others.

    One that only lost its connections must not take over again: another process may have taken them. Between fencing
    the owner before and committing its own name a process may lose them too; the state then still names that owner.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._before: tuple[str | None] | None = None

    @property
    def is_taken(self) -> bool:
        """Whether this process has fenced its predecessors once."""
        return self._before is not None

    def take(self, state: CaptureState | None) -> None:
        """Take ``state``, the committed one, once older producers are fenced. Raises Fenced when another took over."""
        if self._before is None:
            self._before = (None if state is None else state.owner,)
        self.check(state)

    def check(self, state: CaptureState | None) -> None:
        """For a process that has taken over, before it fences anybody again. Raises Fenced when another did since.

        No state names nobody: whoever takes over commits one, so it was lost.
        """
        assert self._before is not None
        if state is not None and state.owner not in (self.name, *self._before):
            raise Fenced(
                "another capture process of this slot has taken over; this one stops",
                hint="exactly one may run: if it wasn't you, look for a second `lockstep capture` or `lockstep run`",
            )
