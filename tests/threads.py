"""Work in threads beside each other or beside a test. What a thread raises, the test raises."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


def at_once(*works: Callable[[], object]) -> None:
    """Run all of it at once. Returns when the last is done."""
    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(work) for work in works]
    for future in futures:
        future.result()


@contextmanager
def beside(*works: Callable[[threading.Event], object]) -> Iterator[None]:
    """Runs work beside the block. Each gets an event that is set at the end of the block."""
    over = threading.Event()
    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(work, over) for work in works]
        try:
            yield
        finally:
            over.set()
    for future in futures:
        future.result()
