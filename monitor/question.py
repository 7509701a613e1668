"""A question to a server, asked in a thread of its own: whoever asks needn't wait for the answer."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from cdc.model.errors import LockstepError, Unavailable
from cdc.processor import machine_slowdown

T = TypeVar("T")


class Question(Generic[T]):
    """Asks at once, in a daemon thread. A LockstepError is an answer; any other exception is a bug."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._answer: T | LockstepError | None = None
        self._bug: BaseException | None = None
        self._asked_at = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="lag", daemon=True)
        self._thread.start()

    @property
    def asked_at(self) -> float:
        """When it was asked, by ``time.monotonic``."""
        return self._asked_at

    @property
    def age_s(self) -> float:
        """Seconds since it was asked."""
        return time.monotonic() - self._asked_at

    def wait(self, seconds: float) -> T | LockstepError | None:
        """The answer, or None when it hasn't come in time. Raises what the thread raised where that is a bug."""
        self._thread.join(seconds)
        if self._bug is not None:
            raise self._bug
        return self._answer

    def _work(self) -> None:
        try:
            self._answer = self._ask()
        except LockstepError as error:
            self._answer = error
        except BaseException as error:
            self._bug = error


class Asking(Generic[T]):
    """The same question again and again, one at a time: one that hangs isn't asked a second time."""

    def __init__(self) -> None:
        self._open: Question[T] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a question still waits for its answer."""
        return self._open is not None

    def begin(self, ask: Callable[[], T]) -> Question[T]:
        """The question that is open, or a new one."""
        self._open = self._open or Question(ask)
        return self._open

    def wait(self, seconds: float) -> T | LockstepError | None:
        """As ``Question.wait``. One that is answered, or met a bug, isn't open any more."""
        assert self._open is not None
        try:
            answer = self._open.wait(max(0.0, seconds))
        except Exception:
            self._open = None  # or it would say the same for ever
            raise
        if answer is not None:
            self._open = None
        return answer


_ANSWER_TIMEOUT_S = 4.0
"""How long a report waits for each server. One that hangs is so named in time, and the others are shown."""

_SLOWDOWN_MAX = 3.0
"""So many times as long on a machine that is busy: the answer may wait for this process. The page's looks stay fresh.
"""


def answer_s() -> float:
    """How long a server has to answer, as busy as this machine is now."""
    return _ANSWER_TIMEOUT_S * min(machine_slowdown(), _SLOWDOWN_MAX)


def named(error: Unavailable, server: str) -> Unavailable:
    """The error with the server that it is about."""
    return error if error.message.startswith(server) else Unavailable(f"{server}: {error.message}", hint=error.hint)
