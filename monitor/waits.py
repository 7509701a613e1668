"""Waits until readers of the sinks see everything up to an LSN: many waiters, one look.

While somebody waits for a sink, one thread repeatedly asks that sink's store how far it is, for all waiters. It asks
the store directly, so a wait ends as soon as the store says so, whatever the other sinks do.

No wait ends early. Before a look ends waits, the source and Kafka are asked whether the sink's LSNs still belong to the
source's line. Then what was applied is made visible, and the generation must still be the live one.
"""

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from cdc.model.closing import Closing
from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.model.lsn import format_lsn
from cdc.pipeline_settings import Pipeline
from jobs.generations.held_tables import load_held_tables
from jobs.generations.lease import LastBeat
from jobs.generations.status import JobState, JobStatus, job_statuses
from monitor.background_question import Remembered
from monitor.comparable_lsns import Captures, Line
from sinks.contract import OpenedSink, Progress
from sinks.registry import SinkSettings, open_sink

_LOOK_MIN_S: Final = 0.015
_LOOK_MAX_S: Final = 0.5
_LOOK_SHARE: Final = 20
"""The pause before a look is the time already waited, divided by this."""

_HEARTBEATS_S: Final = 0.05
"""The minimum time between heartbeats: each is a commit at the source."""

_LINE_S: Final = 2.0
"""How often the source is asked again during long waits."""

CLOSE_S: Final = 2.0
"""How long to wait for all threads together at the end."""

_IDLE_S: Final = 30.0
"""How long an unused connection stays open."""

_JOB_S: Final = 5.0
"""How often to ask whether a sink's job runs. It may take seconds to see that one doesn't."""

_LONG_S: Final = 1.0
"""After so long, a waiter learns what holds up the watermark. It is looked up as often."""

_SINCE: Final = "other tables are captured since it was applied to last"
"""Why no wait ends although the watermark is beyond the LSN."""


@dataclass(frozen=True, slots=True)
class Waited:
    """The outcome of a wait for ``lsn``. ``late`` says why, by the name of each sink that wasn't there in time."""

    lsn: int
    late: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_reached(self) -> bool:
        """Whether readers of all these sinks see everything that was committed up to ``lsn``."""
        return not self.late

    def to_json(self) -> dict[str, Any]:
        """The document that the server answers with."""
        return {"reached": self.is_reached, "lsn": format_lsn(self.lsn), "late": dict(self.late)}


class SourceLine(Protocol):
    """Says whether LSNs of sinks can be compared with the source's; see ``monitor.comparable_lsns.Line``."""

    def heartbeat(self) -> int: ...

    def check(self) -> Captures: ...

    def close(self) -> None: ...


class Waits(Closing):
    """Waits for the sinks of a pipeline, from any number of threads and tasks. Nothing is open while nobody waits."""

    def __init__(
        self, pipeline: Pipeline, sinks: Mapping[str, SinkSettings], *, line: Callable[[], SourceLine] | None = None
    ) -> None:
        """``sinks`` are the settings of the sinks that can be waited for, by name."""
        shared = _SharedLine(line or (lambda: Line(pipeline)))
        self._lookers = {name: _Looker(name, settings, shared) for name, settings in sinks.items()}

    def wait(self, lsn: int, sinks: Collection[str] = (), *, timeout_s: float) -> Waited:
        """Wait until readers of these sinks, or of all if none is named, see everything committed up to ``lsn``.

        ``lsn`` must be of the source, from after the commit (``pg_current_wal_insert_lsn()``). Raises
        ConfigurationError for an unknown sink. Raises LockstepError if waiting can't help: the LSN lies beyond the
        source's WAL, capture can't go on, a sink refuses to be asked.
        """
        done = threading.Event()
        with self._waiting(lsn, sinks, done.set) as waiter:
            done.wait(timeout_s)
        return waiter.outcome()

    async def wait_async(self, lsn: int, sinks: Collection[str] = (), *, timeout_s: float) -> Waited:
        """As ``wait``, for asyncio: no thread is held while it waits."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(done.set)

        with self._waiting(lsn, sinks, wake) as waiter, contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), timeout_s)
        return waiter.outcome()

    def close(self) -> None:
        """End the threads and connections. Pending waits are late. Takes some seconds at most: a thread that hangs in
        its server's answer ends with the process."""
        for looker in self._lookers.values():
            looker.close()
        deadline = time.monotonic() + CLOSE_S
        for looker in self._lookers.values():
            looker.join(max(0.0, deadline - time.monotonic()))

    @contextlib.contextmanager
    def _waiting(self, lsn: int, sinks: Collection[str], wake: Callable[[], None]) -> Iterator["_Waiter"]:
        unknown = [name for name in sinks if name not in self._lookers]
        if unknown or not self._lookers:
            raise ConfigurationError(
                f"no such sink: {', '.join(unknown)}" if unknown else "the configuration has no sinks",
                hint=f"sinks of this configuration: {', '.join(self._lookers) or 'none'}",
            )
        waiter = _Waiter(lsn, frozenset(sinks or self._lookers), wake)
        try:
            for name in waiter.sinks:
                self._lookers[name].add(waiter)
            yield waiter
        finally:
            for name in waiter.sinks:
                self._lookers[name].remove(waiter)


class _Waiter:
    """One wait. ``wake`` is called once all sinks are there, or it is known that they never will be."""

    def __init__(self, lsn: int, sinks: frozenset[str], wake: Callable[[], None]) -> None:
        self.lsn = lsn
        self.sinks = sinks
        self.reached: set[str] = set()
        # What looks since its start have found, by the sink's name.
        self.where: dict[str, str] = {}
        # Why the source's line can't be asked now.
        self.trouble: str | None = None
        # Whether the source has committed something since its start.
        self.is_carried = False
        self.began_s = time.monotonic()
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._wake = wake

    def reach(self, sink: str) -> None:
        """The sink's readers see everything."""
        with self._lock:
            self.reached.add(sink)
            is_done = self.reached >= self.sinks
        if is_done:
            self._wake()

    def fail(self, error: Exception) -> None:
        """Waiting can't help."""
        with self._lock:
            if not self.reached >= self.sinks:
                self._error = self._error or error
        self._wake()

    def outcome(self) -> Waited:
        """Raises the error if waiting can't help."""
        with self._lock:
            if self._error is not None:
                raise self._error
            return Waited(self.lsn, {name: self._why(name) for name in sorted(self.sinks - self.reached)})

    def _why(self, sink: str) -> str:
        where = self.where.get(sink, "it hasn't answered yet")
        return where if self.trouble in (None, where) else f"{where}; {self.trouble}"


class _SharedLine:
    """The source's line for all lookers, open while one of them looks. It makes the source commit something for each
    waiter: otherwise a sink would learn that it has everything only with the next change, which may take long."""

    def __init__(self, opening: Callable[[], SourceLine]) -> None:
        self._opening = opening
        self._lock = threading.Lock()
        self._line: SourceLine | None = None
        self._lookers = 0
        self._heartbeat_s = self._asked_s = -math.inf

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """A looker may ask during this block."""
        with self._lock:
            self._lookers += 1
        try:
            yield
        finally:
            with self._lock:
                self._lookers -= 1
                line, self._line = (None, self._line) if self._lookers else (self._line, None)
            if line is not None:
                line.close()

    def check(self) -> Captures:
        """What capture goes on with now. Raises as ``Line.check``."""
        with self._lock:
            return self._opened().check()

    def carry(self, waiters: Collection[_Waiter]) -> None:
        """Have the source commit something after these waits began, and check now and then that it is the same source.
        Raises as ``Line.check``."""
        with self._lock:
            new = [waiter for waiter in waiters if not waiter.is_carried]
            now_s = time.monotonic()
            if now_s - (self._heartbeat_s if new else self._asked_s) < (_HEARTBEATS_S if new else _LINE_S):
                return
            self._asked_s = now_s
            if not new:
                self._opened().check()
                return
            lsn = self._opened().heartbeat()
            self._heartbeat_s = time.monotonic()
        for waiter in new:
            waiter.is_carried = True
            if waiter.lsn > lsn:
                waiter.fail(
                    LockstepError(
                        f"{format_lsn(waiter.lsn)} lies beyond the end of the source's WAL, {format_lsn(lsn)}",
                        hint="ask the server that Lockstep captures for its LSN, after the commit",
                    )
                )

    def _opened(self) -> SourceLine:
        self._line = self._line or self._opening()
        return self._line


class _Live:
    """The generation of a sink that readers see, open. Each method raises what the destination raises."""

    def __init__(self, sink: str, number: int, opened: OpenedSink) -> None:
        self.number = number
        self.opened = opened
        self._sink = sink
        self._still_beats: dict[int, LastBeat] = {}
        self.held = Remembered(self._ask_held, seconds=_LONG_S)
        """Which tables hold the watermark, and what helps; "" if none."""
        self.job = Remembered(self._ask_job, seconds=_JOB_S)
        """Whether its job runs."""

    def _ask_held(self) -> str:
        held_tables = load_held_tables(self.opened.records, self.number)
        return "; ".join(
            held.sentence(self._sink, str(table)) for table, held in held_tables.items() if held.holds_watermark
        )

    def _ask_job(self) -> JobStatus:
        now_ms = time.time_ns() // 1_000_000
        return job_statuses(self.opened.records, [self.number], now_ms=now_ms, still=self._still_beats)[self.number]


class _Looker:
    """Asks one sink's store for all waiters, in a thread that exists while somebody waits."""

    def __init__(self, name: str, settings: SinkSettings, line: _SharedLine) -> None:
        self._sink = name
        self._settings = settings
        self._line = line
        self._changed = threading.Condition()
        self._waiters: set[_Waiter] = set()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._live: _Live | None = None

    def add(self, waiter: _Waiter) -> None:
        """Serve a waiter until it is removed. Raises LockstepError once it is closed."""
        with self._changed:
            if self._is_closed:
                raise LockstepError("this process is stopping, and takes no more waits")
            self._waiters.add(waiter)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"wait-{self._sink}", daemon=True)
                self._thread.start()

    def remove(self, waiter: _Waiter) -> None:
        with self._changed:
            self._waiters.discard(waiter)

    def close(self) -> None:
        """Make the thread end. Nobody is served any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread, for so long at most."""
        with self._changed:
            thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _work(self) -> None:
        with self._line.used():
            while (waiters := self._waiting()) is not None:
                try:
                    self._look(waiters)
                except Unavailable:
                    pass  # each waiter knows, and the store is asked again
                except Exception as error:  # of the destination, or a bug
                    for waiter in self._late(waiters):
                        waiter.fail(error)
                with self._changed:
                    if self._waiters <= set(waiters) and not self._is_closed:  # a new waiter needs a look now
                        self._changed.wait(self._pause_s(waiters))

    def _waiting(self) -> list[_Waiter] | None:
        """The waiters; None once there have been none for a while and connections are closed."""
        with self._changed:
            if not self._waiters and not self._is_closed:
                self._changed.wait(_IDLE_S)
            if self._waiters and not self._is_closed:
                return list(self._waiters)
            self._thread = None  # the next waiter starts another one
            live, self._live = self._live, None
        if live is not None:
            live.opened.sink.close()
        return None

    def _late(self, waiters: Collection[_Waiter]) -> list[_Waiter]:
        return [waiter for waiter in waiters if self._sink not in waiter.reached]

    def _pause_s(self, waiters: Collection[_Waiter]) -> float:
        now_s = time.monotonic()
        ages_s = [now_s - waiter.began_s for waiter in self._late(waiters)]
        return max(_LOOK_MIN_S, min([_LOOK_MAX_S, *(age_s / _LOOK_SHARE for age_s in ages_s)]))

    def _look(self, waiters: Collection[_Waiter]) -> None:
        """Look how far the store is, and end the waits whose LSN it has reached. Raises LockstepError."""
        late = self._late(waiters)
        progress, reached = self._store_has(late)
        if reached and progress is not None:
            self._let_go(reached, progress)
        try:
            self._line.carry(self._late(late))
        except Unavailable as error:
            for waiter in late:
                waiter.trouble = error.message
            raise
        for waiter in late:
            waiter.trouble = None

    def _store_has(self, waiters: Collection[_Waiter]) -> tuple[Progress | None, list[_Waiter]]:
        """The progress of what readers see, and the waiters whose LSN it has reached. The others get its position."""
        if not waiters:
            return None, []
        with self._asking(waiters):
            live = self._open()
            if live is None:
                self._say(waiters, "readers see no generation of it yet")
                return None, []
            progress = live.opened.generations.load_progress()
            where = _where(progress)
            self._say(waiters, where)
            if progress is None or not progress.watermark_lsn or progress.joining:
                self._still_live(live)
                return None, []
            now_s = time.monotonic()
            long = [each for each in waiters if each.lsn > progress.watermark_lsn and now_s - each.began_s > _LONG_S]
            if long and (held := live.held()):
                self._say(long, f"{where}: {held}")
            reached = [waiter for waiter in waiters if waiter.lsn <= progress.watermark_lsn]
            if reached and not self._still_live(live):
                self._say(reached, "its readers were switched to another generation, which hasn't been asked yet")
                return None, []
            return progress, reached

    def _let_go(self, waiters: Collection[_Waiter], progress: Progress) -> None:
        """End these waits, unless the sink's LSNs are of another line, or of other tables. Raises LockstepError."""
        try:
            captures = self._line.check()
        except Unavailable as error:
            self._say(waiters, error.message)
            raise
        live = self._live
        assert live is not None
        if captures.epoch != progress.epoch:
            self._say(waiters, "it hasn't applied any commit after capture's recovery yet")
            return
        with self._asking(waiters):
            if captures.selection not in ("", progress.selection):
                # It may have one of the tables that joined, and not know that.
                self._say(waiters, _SINCE)  # it may take seconds to see that its job doesn't run
                self._say(waiters, why_not_taken_up(self._sink, live.job()))
                return
            if live.opened.refreshing is not None:
                live.opened.refreshing.refresh()
        # A switch waits until the new generation has what the old one has, so readers may already see either one.
        for waiter in waiters:
            waiter.reach(self._sink)

    def _say(self, waiters: Collection[_Waiter], where: str) -> None:
        for waiter in waiters:
            waiter.where[self._sink] = where

    @contextlib.contextmanager
    def _asking(self, waiters: Collection[_Waiter]) -> Iterator[None]:
        """Asks the store during this block; its errors name this sink."""
        try:
            yield
        except Unavailable as error:
            self._say(waiters, f"it can't be asked: {error.message}")
            raise
        except LockstepError as error:
            raise LockstepError(f"sink {self._sink} can't be asked: {error.message}", hint=error.hint) from error

    def _open(self) -> _Live | None:
        """The live generation, opened; None if there is none."""
        if self._live is None:
            opened = open_sink(self._sink, self._settings, 1)
            with contextlib.ExitStack() as undoing:
                undoing.callback(opened.sink.close)
                live = opened.generations.live()
                if live == 1:
                    undoing.pop_all()
            if live is None:
                return None
            self._live = _Live(self._sink, live, opened if live == 1 else open_sink(self._sink, self._settings, live))
        return self._live

    def _still_live(self, live: _Live) -> bool:
        """Whether readers see the open generation; otherwise the next look opens another one."""
        if live.opened.generations.live() == live.number:
            return True
        self._live = None
        live.opened.sink.close()
        return False


def _where(progress: Progress | None) -> str:
    """The store's position, in words."""
    if progress is None or not progress.watermark_lsn:
        return "it hasn't applied everything up to any LSN yet"
    applied = f"it has applied everything up to {format_lsn(progress.watermark_lsn)}"
    if progress.joining:
        return f"{applied}, but not all of the topics that joined since: {', '.join(progress.joining)}"
    return applied


def why_not_taken_up(sink: str, job: JobStatus) -> str:
    """Why a sink doesn't have the present captured tables yet, and what helps. Pure."""
    if job.state is JobState.RUNNING:
        return f"{_SINCE}, and its job hasn't taken that up yet"
    return f"{_SINCE}, and its job doesn't run: {job.sentence(sink)}"
