"""Sinks that a test opens for a moment."""

from collections.abc import Iterator
from contextlib import contextmanager

from sinks.contract import OpenedSink


@contextmanager
def closing_sink(opened: OpenedSink) -> Iterator[OpenedSink]:
    try:
        yield opened
    finally:
        opened.sink.close()
