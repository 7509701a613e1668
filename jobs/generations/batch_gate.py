"""Where batches pass one at a time, and none while somebody holds the gate."""

import threading


class BatchGate:
    """Between a query's batches and whoever wants them to pause. Safe for several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy = self._held = self._closed = False
        self._waiting = 0

    def enter(self) -> bool:
        """Wait until the gate is open, and go in; False when it was closed for good."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: self._closed or not (self._held or self._busy))
            self._waiting -= 1
            self._busy = not self._closed
            return self._busy

    @property
    def is_wanted(self) -> bool:
        """Whether the one inside keeps somebody waiting."""
        return self._closed or self._held or self._waiting > 0

    def leave(self) -> None:
        with self._changed:
            self._busy = False
            self._changed.notify_all()

    def hold(self, timeout_s: float) -> bool:
        """Let nobody in; whether the one inside has left in time. The gate is held in any case."""
        with self._changed:
            self._held = True
            return self._changed.wait_for(lambda: not self._busy, timeout_s)

    def release(self) -> None:
        with self._changed:
            self._held = False
            self._changed.notify_all()

    @property
    def is_closed(self) -> bool:
        """Whether nobody gets in any more."""
        return self._closed

    def close(self, timeout_s: float) -> bool:
        """Let nobody in any more; whether the one inside has left in time."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._busy, timeout_s)
