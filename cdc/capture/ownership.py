"""Which of several processes of one slot may write: the one that took over last."""

from cdc.model.errors import Fenced
from cdc.protocol.control_records import CaptureState


class Ownership:
    """A starting process takes over once, from the present owner. ``name`` is unique to the process. A process that
    only lost its connections must not take over again: another one may have. A process may also lose them between
    fencing the previous owner and committing its own name; the state then still names that owner."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._before: tuple[str | None] | None = None

    @property
    def is_taken(self) -> bool:
        """Whether this process has fenced its predecessors once."""
        return self._before is not None

    def take(self, state: CaptureState | None) -> None:
        """Take over from the owner in ``state``, the committed one, after older producers are fenced. Raises Fenced if
        another process took over."""
        if self._before is None:
            self._before = (None if state is None else state.owner,)
        self.check(state)

    def check(self, state: CaptureState | None) -> None:
        """Call this after taking over, before fencing again. Raises Fenced if another process took over since. Without
        a state there is no other owner: a process that takes over commits one, so the state was lost."""
        assert self._before is not None
        if state is not None and state.owner not in (self.name, *self._before):
            raise Fenced(
                "another capture process of this slot has taken over; this one stops",
                hint="exactly one may run: if it wasn't you, look for a second `lockstep capture` or `lockstep run`",
            )
