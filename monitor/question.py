"""A question to a server, asked in a thread of its own: whoever asks needn't wait for the answer."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from cdc.model.errors import LockstepError

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
