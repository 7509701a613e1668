"""Asks a server in a thread of its own, so that the caller needn't wait for the answer."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from cdc.machine_load import machine_slowdown
from cdc.model.errors import LockstepError, Unavailable

T = TypeVar("T")


class Question(Generic[T]):
    """Asks at once, in a daemon thread. A LockstepError is an answer; any other exception is a bug."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._answer: T | LockstepError | None = None
        self._bug: BaseException | None = None
        self._asked_at = time.monotonic()
        # Whether a caller of ``wait`` has got the answer.
        self.is_answered = False
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
        """The answer, or None if it hasn't come in time. Raises the thread's exception if that is a bug."""
        self._thread.join(seconds)
        self.is_answered = not self._thread.is_alive()
        if not self.is_answered:
            return None
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
    """Asks a server one question at a time: while one hangs, no second one is asked."""

    def __init__(self) -> None:
        self._open: Question[T] | None = None

    @property
    def is_open(self) -> bool:
        return self._open is not None

    @property
    def age_s(self) -> float:
        """How long the open question has waited, in seconds."""
        return 0.0 if self._open is None else self._open.age_s

    def ask(self, ask: Callable[[], T], server: str) -> T:
        """A fresh answer. Raises Unavailable for a server that doesn't answer in time, and what ``ask`` raises. The
        answer to an earlier question, whose caller gave up, is discarded as too old."""
        began = time.monotonic()
        while True:
            is_new = self._open is None
            self.begin(ask)
            answer = self.wait(began, answer_s())
            if self.is_open:
                raise Unavailable(f"{server} hasn't answered for {self.age_s:.0f} s")
            if not is_new:
                continue
            if isinstance(answer, Unavailable) and not answer.message.startswith(server):
                raise Unavailable(f"{server}: {answer.message}", hint=answer.hint)
            if isinstance(answer, LockstepError):
                raise answer
            return cast("T", answer)

    def begin(self, ask: Callable[[], T]) -> None:
        self._open = self._open or Question(ask)

    def wait(self, began: float, seconds: float) -> T | LockstepError | None:
        """The answer to the open question; None if it doesn't come within so many seconds of ``began``. A question from
        before ``began`` is known to hang, and isn't waited for again. Raises bugs."""
        assert self._open is not None
        try:
            answer = self._open.wait(max(0.0, min(began, self._open.asked_at) + seconds - time.monotonic()))
        except Exception:
            self._open = None  # otherwise it would say the same for ever
            raise
        if self._open.is_answered:
            self._open = None
        return answer


class Remembered(Generic[T]):
    """An answer, asked for again when it is older than ``seconds``. Callers meanwhile wait for the same answer."""

    def __init__(self, ask: Callable[[], T], *, seconds: float) -> None:
        self._ask = ask
        self._seconds = seconds
        self._lock = threading.Lock()
        self._answer: tuple[float, T] | None = None

    def __call__(self) -> T:
        """Raises what asking raises, and stores nothing then."""
        with self._lock:
            if self._answer is None or time.monotonic() - self._answer[0] > self._seconds:
                answer = self._ask()
                self._answer = time.monotonic(), answer
            return self._answer[1]


ANSWER_TIMEOUT_S = 4.0
"""How long a report waits for each server, so that it can name a server that hangs in time and show the others."""

_SLOWDOWN_MAX = 3.0
"""A busy machine gets at most so many times as long: the answer may wait for this process. The page stays fresh."""


def answer_s() -> float:
    """How long a server has to answer, given how busy this machine is now."""
    return ANSWER_TIMEOUT_S * min(machine_slowdown(), _SLOWDOWN_MAX)
