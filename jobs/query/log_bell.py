"""One bell for all queries of a process that read the same log. Each bell keeps a request open at the broker until
something is written, which costs the broker work at each commit. One bell serves a driver's queries of all sinks."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from cdc.kafka.control_topics import Heard, LogBell

_LISTEN_S: Final = 1.0
_SILENT_S: Final = 1.0
"""How long to wait for the bell, and how long to pause after brokers didn't answer."""

_HEARD_MAX: Final = 100
"""How many heard records a listener stores; older ones are read from the log."""


class Bell(Protocol):
    """Rings soon after something was published. It may ring for nothing, and it may stay silent."""

    def rings(self, timeout_s: float) -> bool: ...

    def close(self) -> None: ...


class HearingBell(Bell, Protocol):
    """Stores what it rang for last, as ``LogBell`` does."""

    heard: Heard | None


class SharedBell:
    """A bell with many listeners, each in a thread of its own. One more thread rings for them while there are any."""

    def __init__(self, bell: HearingBell) -> None:
        self._bell = bell
        self._changed = threading.Condition()
        self._listeners: set[Listener] = set()
        self._is_to_be_new = False
        self._is_heard = False

    def listener(self) -> "Listener":
        """A listener that begins to listen with its first call of ``rings``."""
        return Listener(self)

    def add(self, listener: "Listener") -> None:
        """Ring for it from now on."""
        with self._changed:
            self._listeners.add(listener)
            if not self._is_heard:
                self._is_heard = True
                threading.Thread(target=self._hear, name="log", daemon=True).start()

    def remove(self, listener: "Listener") -> None:
        """Stop ringing for it. It may have found the bell silent, so the others get a new bell."""
        with self._changed:
            self._listeners.discard(listener)
            self._is_to_be_new = True
            self._changed.notify_all()

    def _hear(self) -> None:
        while self._goes_on():
            try:
                if self._bell.rings(_LISTEN_S):
                    self._report(None, self._bell.heard)
            except Exception as error:
                self._report(error)
                with self._changed:
                    self._changed.wait_for(lambda: not self._listeners, _SILENT_S)

    def _goes_on(self) -> bool:
        with self._changed:
            if self._listeners and not self._is_to_be_new:
                return True
            self._is_to_be_new = False
        self._bell.close()  # takes a moment; others don't wait for it
        with self._changed:
            self._is_heard = bool(self._listeners)
            return self._is_heard

    def _report(self, error: Exception | None, heard: Heard | None = None) -> None:
        with self._changed:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.hear(error, heard)


class Listener:
    """One listener of a shared bell."""

    def __init__(self, bell: SharedBell) -> None:
        self.bell = bell
        self._rung = threading.Event()
        self._error: Exception | None = None
        self._is_added = False
        self._heard: deque[Heard] = deque(maxlen=_HEARD_MAX)

    def hear(self, error: Exception | None, heard: Heard | None = None) -> None:
        """The bell rang, or failed."""
        if heard is not None:
            self._heard.append(heard)
        self._error = error
        self._rung.set()

    def rings(self, timeout_s: float) -> bool:
        """Wait for the bell. The first call returns at once. Raises what the bell raises."""
        if not self._is_added:
            self._is_added = True
            self._rung.set()
            self.bell.add(self)
        has_rung = self._rung.wait(timeout_s)
        self._rung.clear()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return has_rung

    def take_heard(self) -> Sequence[Heard]:
        """What the bell rang for since the last call, as far as it is known."""
        return [self._heard.popleft() for _ in range(len(self._heard))]

    def close(self) -> None:
        """Stop listening. The next ``rings`` begins anew."""
        if self._is_added:
            self._is_added = False
            self.bell.remove(self)


_lock: Final = threading.Lock()
_bells: Final[dict[tuple[object, ...], SharedBell]] = {}


def listener_to(client: Mapping[str, str | int], pipeline: str) -> Listener:
    """A listener of the bell of this pipeline's log; the process has one bell for each."""
    with _lock:
        key = (pipeline, *sorted(client.items()))
        if key not in _bells:
            _bells[key] = SharedBell(LogBell(client, pipeline))
        return _bells[key].listener()
