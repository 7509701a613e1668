"""Shows at each sink that a driver is starting, before any of its jobs can show itself.

Starting Spark and loading a sink's code takes seconds, and minutes on a busy machine. Until a job claims its
generation, nobody would know that one is on its way. ``starting`` is a coordination record of the destination, for all
of its generations, and changes about every two seconds. It is removed once a job of the sink is at work, or the driver
ends. The record of a killed driver stays, and no longer changes.
"""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

import orjson

from cdc.model.errors import LockstepError
from jobs.clock import now_ms
from jobs.generations.lease import HEARTBEAT_S
from sinks.contract import OpenedSink

STARTING_NAME: Final = "starting"


def starting_record(run: str, beats: int, *, since_ms: int, at_ms: int) -> str:
    """The record's text. ``run`` tells drivers apart."""
    return orjson.dumps({"run": run, "beats": beats, "since_ms": since_ms, "at_ms": at_ms}).decode()


class StartingSigns:
    """Shows at each sink that its job is on its way, in a thread for each: a server that hangs delays no other."""

    def __init__(self, sinks: Mapping[str, Callable[[], OpenedSink]]) -> None:
        """``sinks`` open a connection to each sink, by name, for use by these threads only."""
        self._run = uuid.uuid4().hex
        self._over = {name: threading.Event() for name in sinks}
        for name, opens in sinks.items():
            # Nobody waits for their ends, which may take as long as a server that doesn't answer.
            threading.Thread(
                target=self._show, args=(opens, self._over[name]), name=f"starting-{name}", daemon=True
            ).start()

    def end(self, name: str) -> None:
        """Stop showing this sink's start. Harmless if it was ended already, or isn't shown."""
        if name in self._over:
            self._over[name].set()

    def end_all(self) -> None:
        for over in self._over.values():
            over.set()

    def _show(self, opens: Callable[[], OpenedSink], over: threading.Event) -> None:
        since_ms, beats = now_ms(), 0
        while not over.is_set():
            # A destination that takes nothing now may soon: the job itself reports what is wrong with it.
            with suppress(LockstepError):
                opened = opens()
                try:
                    while not over.is_set():
                        beats += 1
                        text = starting_record(self._run, beats, since_ms=since_ms, at_ms=now_ms())
                        opened.records.save(STARTING_NAME, text)
                        over.wait(HEARTBEAT_S)
                    if self._is_ours(opened):
                        opened.records.save(STARTING_NAME, None)
                finally:
                    opened.sink.close()
            over.wait(HEARTBEAT_S)

    def _is_ours(self, opened: OpenedSink) -> bool:
        """Whether no other driver has begun since."""
        text = opened.records.load(STARTING_NAME)
        return text is not None and bool(orjson.loads(text)["run"] == self._run)


@contextmanager
def showing_start(sinks: Mapping[str, Callable[[], OpenedSink]]) -> Iterator[StartingSigns]:
    """Show the start until the block ends, and for each sink until its ``end``."""
    signs = StartingSigns(sinks)
    try:
        yield signs
    finally:
        signs.end_all()
