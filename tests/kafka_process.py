"""One broker of a test's own, with settings of its own."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from stack import process
from stack.kafka import Kafka


@contextmanager
def running_kafka(server: Kafka, taken: Mapping[str, int], directory: Path) -> Iterator[str]:
    """Start it on the ports ``main`` and ``controller``, and yield its address; kill it at the end."""
    both = {name: taken[name] for name in ("main", "controller")}
    running, tail = process.spawn(server.prepare(both, directory))
    assert running is not None, tail.last(20)
    try:
        deadline = time.monotonic() + 120
        while not server.is_ready(both, tail):
            assert process.is_alive(running), tail.last(40)
            assert time.monotonic() < deadline, tail.last(40)
            time.sleep(0.1)
        yield server.address(both)
    finally:
        process.kill(running)
