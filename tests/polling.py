"""A reader that polls as any user of a store would, in a thread beside the test."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager


class Poller(ABC):
    """A subclass says what to read: its ``_poll`` goes on until ``over`` is set."""

    def __init__(self) -> None:
        self.over = threading.Event()

    @contextmanager
    def polling(self) -> Iterator[None]:
        thread = threading.Thread(target=self._poll)
        thread.start()
        try:
            yield
        finally:
            self.over.set()
            thread.join()

    @abstractmethod
    def _poll(self) -> None: ...
