"""A gate that writers of a generation pass, and that lets nobody in while it is held."""

import threading
from collections.abc import Callable


class BatchGate:
    """Stands between a query's batches, the column backfill beside them, and whoever wants them to pause. Thread-safe.
    Up to ``at_once`` writers are inside at the same time."""

    def __init__(self, at_once: int = 1) -> None:
        self._changed = threading.Condition()
        self._at_once = at_once
        self._held = self._closed = False
        self._inside = self._waiting = 0
        self._on_wanted: Callable[[], None] = lambda: None

    def when_wanted(self, call: Callable[[], None]) -> None:
        """Call this, in any thread, as soon as ``is_wanted`` may have become true. It must not block."""
        self._on_wanted = call

    def enter(self) -> bool:
        """Wait until the gate is open, and go in. False if it was closed for good."""
        with self._changed:
            self._waiting += 1
            if not self._is_open():
                self._on_wanted()
                self._changed.wait_for(self._is_open)
            self._waiting -= 1
            self._inside += not self._closed
            return not self._closed

    def _is_open(self) -> bool:
        """Whether ``enter`` returns at once: the caller gets in, or learns that the gate is closed."""
        return self._closed or not (self._held or self._inside >= self._at_once)

    @property
    def is_wanted(self) -> bool:
        """Whether those inside keep somebody waiting."""
        return self._closed or self._held or self._waiting > 0

    def leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def hold(self, timeout_s: float) -> bool:
        """Let nobody in. Returns whether those inside left in time; the gate is held in any case."""
        with self._changed:
            self._held = True
            self._on_wanted()
            return self._changed.wait_for(lambda: not self._inside, timeout_s)

    def release(self) -> None:
        with self._changed:
            self._held = False
            self._changed.notify_all()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def wait_closed(self, timeout_s: float) -> bool:
        """Wait until the gate is closed, but at most so long. Returns whether it is closed."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Let nobody in any more. Returns whether those inside left in time."""
        with self._changed:
            self._closed = True
            self._on_wanted()
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._inside, timeout_s)
