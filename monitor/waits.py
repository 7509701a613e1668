"""Waits until readers of the sinks see everything up to an LSN: many waiters, one look.

While somebody waits for a sink, one thread asks that sink's store how far it is, again and again, for all of them. The
store is asked directly, so a wait ends as soon as the store says so, whatever the other sinks and Kafka do.

Nobody is let go early. Before the first of the waiters whom a look would let go is, the source and Kafka are asked
whether the sink's LSNs are still of the source's line. Then readers are let find what was applied, and the generation
must be the live one still.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self, TypeVar

from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.model.lsn import format_lsn
from cdc.pipeline_settings import Pipeline
from jobs.generations.lease import LastBeat
from jobs.generations.set_aside import load_asides
from jobs.generations.status import JobState, JobStatus, job_statuses
from monitor.line import Captures, Line
from sinks.contract import OpenedSink, Progress
from sinks.registry import SinkSettings, open_sink

_LOOK_MIN_S: Final = 0.015
_LOOK_MAX_S: Final = 0.5
_LOOK_SHARE: Final = 20
"""A look for somebody who has waited for so many times as long is soon enough."""

_HEARTBEATS_S: Final = 0.05
"""Heartbeats are this far apart at least: each is a commit at the source."""

_LINE_S: Final = 2.0
"""How often the source is asked again while somebody waits for long."""

_CLOSE_S: Final = 2.0
"""How long all threads together are waited for at the end."""

_IDLE_S: Final = 30.0
"""A connection that nobody needs any more stays open for so long."""


_JOB_S: Final = 5.0
"""How often it is asked whether a sink's job runs. To see that one doesn't may take seconds."""

_LONG_S: Final = 1.0
"""Who waits for longer than this is told what holds up the watermark. It is asked for as often."""

_SINCE: Final = "other tables are captured since it was applied to last"
"""Why nobody is let go though the watermark is beyond the LSN."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Waited:
    """What became of a wait for ``lsn``. ``late`` says why, by the name of each sink that hadn't got there in time."""

    lsn: int
    late: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_reached(self) -> bool:
        """Readers of all these sinks see everything that was committed up to ``lsn``."""
        return not self.late

    def to_json(self) -> dict[str, Any]:
        """The document that the server answers with."""
        return {"reached": self.is_reached, "lsn": format_lsn(self.lsn), "late": dict(self.late)}


class SourceLine(Protocol):
    """Whoever knows whether LSNs of the sinks can be compared with those of the source."""

    def heartbeat(self) -> int:
        """Have the source commit something, and return an LSN after it. Raises as ``check``."""

    def check(self) -> Captures:
        """What capture goes on with now. Raises LockstepError when the source isn't the one that is captured, or
        capture can't ever go on, Unavailable when the source or Kafka doesn't answer, or a named table isn't captured.
        """

    def close(self) -> None: ...


class Waits:
    """Waits for the sinks of a pipeline, from any number of threads and tasks. Nothing is open while nobody waits."""

    def __init__(
        self, pipeline: Pipeline, sinks: Mapping[str, SinkSettings], *, line: Callable[[], SourceLine] | None = None
    ) -> None:
        """``sinks`` are the settings of those that can be waited for, by their names."""
        self._settings = sinks
        self._line = _SharedLine(line or (lambda: Line(pipeline)))
        self._lock = threading.Lock()
        self._lookers: dict[str, _Looker] = {}
        self._is_closed = False

    def wait(self, lsn: int, sinks: Collection[str] = (), *, timeout_s: float) -> Waited:
        """Wait until readers of these sinks, or of all where none is named, see everything committed up to ``lsn``.

        ``lsn`` must be of the source, from after the commit (``pg_current_wal_insert_lsn()``).

        Raises ConfigurationError for a sink that isn't there. Raises LockstepError where waiting can't help: the LSN
        lies beyond the source's WAL, capture can't go on, a sink refuses to be asked.
        """
        waiter = self._begin(lsn, sinks, lambda: None)
        try:
            waiter.done.wait(timeout_s)
        finally:
            self._end(waiter)
        return self._outcome(waiter)

    async def wait_async(self, lsn: int, sinks: Collection[str] = (), *, timeout_s: float) -> Waited:
        """The same for asyncio: no thread is held while it waits. Raises as ``wait``."""
        loop = asyncio.get_running_loop()
        told = asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(told.set)

        waiter = self._begin(lsn, sinks, tell)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(told.wait(), timeout_s)
        finally:
            self._end(waiter)
        return self._outcome(waiter)

    def close(self) -> None:
        """End the threads and connections. Whoever waits is late.

        Takes some seconds at most: a thread that hangs in its server's answer ends with the process.
        """
        with self._lock:
            self._is_closed = True
            workers: list[_Worker] = [*self._lookers.values(), self._line]
        for worker in workers:
            worker.close()
        deadline = time.monotonic() + _CLOSE_S
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, lsn: int, sinks: Collection[str], tell: Callable[[], None]) -> "_Waiter":
        unknown = [name for name in sinks if name not in self._settings]
        if unknown or not self._settings:
            raise ConfigurationError(
                f"no such sink: {', '.join(unknown)}" if unknown else "the configuration has no sinks",
                hint=f"sinks of this configuration: {', '.join(self._settings) or 'none'}",
            )
        waiter = _Waiter(lsn, set(sinks or self._settings), tell)
        with self._lock:
            if self._is_closed:
                raise LockstepError("nobody can be waited for any more: this process is stopping")
            for name in waiter.sinks:
                if name not in self._lookers:
                    self._lookers[name] = _Looker(name, self._settings[name], self._line)
            lookers = [self._lookers[name] for name in waiter.sinks]
        self._line.add(waiter)
        for looker in lookers:
            looker.add(waiter)
        return waiter

    def _end(self, waiter: "_Waiter") -> None:
        self._line.remove(waiter)
        for name in waiter.sinks:
            self._lookers[name].remove(waiter)

    def _outcome(self, waiter: "_Waiter") -> Waited:
        with waiter.lock:
            if waiter.error is not None:
                raise waiter.error
            return Waited(waiter.lsn, {name: waiter.why(name) for name in sorted(waiter.sinks - waiter.reached)})


class _Waiter:
    """Somebody who waits. It is done once all sinks have got there, or something says that they never will.

    ``where`` is what looks since it began have found, by the sink's name. ``trouble`` is why the source's line can't be
    asked now.
    """

    def __init__(self, lsn: int, sinks: set[str], tell: Callable[[], None]) -> None:
        self.lsn = lsn
        self.sinks = frozenset(sinks)
        self.reached: set[str] = set()
        self.where: dict[str, str] = {}
        self.trouble: str | None = None
        self.error: Exception | None = None
        self.began_s = time.monotonic()
        self.lock = threading.Lock()
        self.done = threading.Event()
        self._tell = tell

    def why(self, sink: str) -> str:
        """Why a sink hasn't got there."""
        where = self.where.get(sink, "it hasn't answered yet")
        return where if self.trouble in (None, where) else f"{where}; {self.trouble}"

    def reach(self, sink: str) -> None:
        """Its readers see everything."""
        with self.lock:
            self.reached.add(sink)
            is_done = self.reached >= self.sinks
        if is_done:
            self._finish()

    def fail(self, error: Exception) -> None:
        """Waiting can't help."""
        with self.lock:
            if self.error is None and not self.reached >= self.sinks:
                self.error = error
        self._finish()

    def _finish(self) -> None:
        self.done.set()
        self._tell()


class _Worker:
    """A thread that is there while somebody waits, and for a little longer."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._waiters: set[_Waiter] = set()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def add(self, waiter: _Waiter) -> None:
        """Serve a waiter until it is removed."""
        with self._changed:
            self._waiters.add(waiter)
            self._changed.notify_all()
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def remove(self, waiter: _Waiter) -> None:
        with self._changed:
            self._waiters.discard(waiter)

    def close(self) -> None:
        """Have the thread end. Nobody is served any more."""
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
        while (waiters := self._waiting()) is not None:
            try:
                pause_s = self._look(waiters)
            except LockstepError as error:
                pause_s = _LOOK_MAX_S
                if not isinstance(error, Unavailable):
                    for waiter in self._concerned(waiters):
                        waiter.fail(error)
            except Exception as bug:
                pause_s = _LOOK_MAX_S
                for waiter in self._concerned(waiters):
                    waiter.fail(bug)
            with self._changed:
                if self._waiters <= set(waiters) and not self._is_closed:  # whoever has come since needs a look now
                    self._changed.wait(pause_s)

    def _waiting(self) -> list[_Waiter] | None:
        """Those who wait; None once there has been nobody for a while, and what was open is closed."""
        with self._changed:
            if not self._waiters and not self._is_closed:
                self._changed.wait(_IDLE_S)
            if self._waiters and not self._is_closed:
                return list(self._waiters)
            self._thread = None  # whoever comes now starts another one
            close = self._detach()
        close()
        return None

    def _concerned(self, waiters: Collection[_Waiter]) -> list[_Waiter]:
        """Those of them for whom a look may find something."""
        return list(waiters)

    def _look(self, waiters: Collection[_Waiter]) -> float:
        """Look once for these, and return after how many seconds the next look is soon enough. Raises LockstepError."""
        raise NotImplementedError

    def _detach(self) -> Callable[[], None]:
        """Forget what is open, and return how it is closed."""
        raise NotImplementedError


class _SharedLine(_Worker):
    """The source's line for all lookers. For each waiter it has the source commit something, at least once.

    Else a sink would learn that it has everything only with the next change, which may take long.
    """

    def __init__(self, opening: Callable[[], SourceLine]) -> None:
        super().__init__("wait-source")
        self._opening = opening
        self._asking = threading.Lock()
        self._line: SourceLine | None = None
        self._carried: set[_Waiter] = set()

    def check(self) -> Captures:
        """What capture goes on with now. Raises as ``SourceLine.check``."""
        return self._ask(lambda line: line.check())

    def _look(self, waiters: Collection[_Waiter]) -> float:
        try:
            pause_s = self._carry(waiters)
        except Unavailable as error:
            self._say(waiters, error.message)
            raise
        self._say(waiters, None)
        return pause_s

    def _say(self, waiters: Collection[_Waiter], trouble: str | None) -> None:
        for waiter in waiters:
            waiter.trouble = trouble

    def _carry(self, waiters: Collection[_Waiter]) -> float:
        self._carried &= set(waiters)
        new = [waiter for waiter in waiters if waiter not in self._carried]
        if not new:
            self.check()  # raises for whom waiting can't help
            return _LINE_S
        lsn = self._ask(lambda line: line.heartbeat())
        self._carried.update(new)
        for waiter in new:
            if waiter.lsn > lsn:
                waiter.fail(
                    LockstepError(
                        f"{format_lsn(waiter.lsn)} lies beyond the end of the source's WAL, {format_lsn(lsn)}",
                        hint="ask the server that Lockstep captures for its LSN, after the commit",
                    )
                )
        time.sleep(_HEARTBEATS_S)
        return _LINE_S

    def _ask(self, question: Callable[[SourceLine], _Answer]) -> _Answer:
        with self._asking:
            if self._line is None:
                self._line = self._opening()
            return question(self._line)

    def _detach(self) -> Callable[[], None]:
        return self._close_line

    def _close_line(self) -> None:
        with self._asking:
            line, self._line = self._line, None
            if line is not None:
                line.close()


class _Looker(_Worker):
    """Asks one sink's store for all who wait for it."""

    def __init__(self, name: str, settings: SinkSettings, line: _SharedLine) -> None:
        super().__init__(f"wait-{name}")
        self._sink = name
        self._settings = settings
        self._line = line
        self._opened: tuple[int, OpenedSink] | None = None
        self._job: tuple[float, JobStatus] | None = None  # as of when, by the monotonic clock
        self._held: tuple[float, str] | None = None  # the same
        self._still_beats: dict[int, LastBeat] = {}

    def _concerned(self, waiters: Collection[_Waiter]) -> list[_Waiter]:
        return [waiter for waiter in waiters if self._sink not in waiter.reached]

    def _look(self, waiters: Collection[_Waiter]) -> float:
        if concerned := self._concerned(waiters):
            self._let_go(concerned)
        now_s = time.monotonic()
        ages_s = [now_s - waiter.began_s for waiter in self._concerned(waiters)]
        return max(_LOOK_MIN_S, min([_LOOK_MAX_S, *(age_s / _LOOK_SHARE for age_s in ages_s)]))

    def _let_go(self, waiters: Collection[_Waiter]) -> None:
        """Look how far the store is, and let those go whose LSN it has reached."""
        with self._asking(waiters):
            opened = self._open()
            progress = None if opened is None else opened.generations.load_progress()
            if opened is None:
                self._say(waiters, "readers see no generation of it yet")
                return
            if progress is None or not progress.watermark_lsn:
                self._say(waiters, "it hasn't applied everything up to any LSN yet")
                self._still_live()
                return
            applied = f"it has applied everything up to {format_lsn(progress.watermark_lsn)}"
            if progress.joining:
                self._say(
                    waiters, f"{applied}, and doesn't have all yet of what joined since: {', '.join(progress.joining)}"
                )
                self._still_live()
                return
            self._say(waiters, applied)
            now_s = time.monotonic()
            long = [each for each in waiters if each.lsn > progress.watermark_lsn and now_s - each.began_s > _LONG_S]
            if long and (held := self._held_by(opened)):
                self._say(long, f"{applied}: {held}")
            reached = [waiter for waiter in waiters if waiter.lsn <= progress.watermark_lsn]
            if not reached:
                return
            if not self._still_live():
                self._say(reached, "its readers were switched to another generation, which hasn't been asked yet")
                return
        try:
            captures = self._line.check()
        except Unavailable as error:
            self._say(reached, error.message)
            raise
        if captures.epoch != progress.epoch:
            self._say(reached, "it hasn't applied anything yet of what was committed since capture was recovered")
            return
        if captures.selection not in ("", progress.selection):
            # It may have one of the tables that came, and knows nothing of it.
            with self._asking(reached):
                self._say(reached, _SINCE)  # to see that its job doesn't run may take seconds
                self._say(reached, self._why_not_taken_up(opened, progress))
            return
        with self._asking(reached):
            opened.generations.refresh()
        # A switch waits until the new generation has what the old one has. So readers may see either by now.
        for waiter in reached:
            waiter.reach(self._sink)

    def _held_by(self, opened: OpenedSink) -> str:
        """Which tables that are set aside the watermark waits for, and what helps; "" for none.

        Raises what the destination raises.
        """
        now_s = time.monotonic()
        if self._held is None or now_s - self._held[0] >= _LONG_S:
            assert self._opened is not None
            asides = load_asides(opened.records, self._opened[0])
            sentences = [
                aside.sentence(self._sink, str(table)) for table, aside in asides.items() if aside.holds_watermark
            ]
            self._held = now_s, "; ".join(sentences)
        return self._held[1]

    def _why_not_taken_up(self, opened: OpenedSink, progress: Progress) -> str:
        """Why what is stored of a generation isn't true of the tables that are captured now, and what helps.

        Raises what the destination raises.
        """
        now_s = time.monotonic()
        if self._job is None or now_s - self._job[0] >= _JOB_S:
            assert self._opened is not None
            generation = self._opened[0]
            statuses = job_statuses(
                opened.records, [generation], now_ms=time.time_ns() // 1_000_000, still=self._still_beats
            )
            self._job = time.monotonic(), statuses[generation]
        return why_not_taken_up(self._sink, self._job[1], has_told=bool(progress.selection))

    def _say(self, waiters: Collection[_Waiter], where: str) -> None:
        for waiter in waiters:
            waiter.where[self._sink] = where

    @contextlib.contextmanager
    def _asking(self, waiters: Collection[_Waiter]) -> Iterator[None]:
        """While the store is asked; its errors are of this sink."""
        try:
            yield
        except Unavailable as error:
            self._say(waiters, f"it can't be asked: {error.message}")
            raise
        except LockstepError as error:
            raise LockstepError(f"sink {self._sink} can't be asked: {error.message}", hint=error.hint) from error

    def _open(self) -> OpenedSink | None:
        """The live generation, opened; None where there is none."""
        if self._opened is None:
            opened = open_sink(self._sink, self._settings, 1)
            with contextlib.ExitStack() as undoing:
                undoing.callback(opened.sink.close)
                live = opened.generations.live()
                if live == 1:
                    undoing.pop_all()
            if live is None:
                return None
            self._opened = live, opened if live == 1 else open_sink(self._sink, self._settings, live)
        return self._opened[1]

    def _still_live(self) -> bool:
        """Whether readers see the generation that is open; else another one is opened at the next look."""
        assert self._opened is not None
        number, opened = self._opened
        if opened.generations.live() == number:
            return True
        self._opened = self._job = self._held = None
        opened.sink.close()
        return False

    def _detach(self) -> Callable[[], None]:
        opened, self._opened, self._job, self._held = self._opened, None, None, None
        return (lambda: None) if opened is None else opened[1].sink.close


def why_not_taken_up(sink: str, job: JobStatus, *, has_told: bool) -> str:
    """Why a sink hasn't taken up that other tables are captured now, and what helps. Pure.

    ``has_told``: its job has stored of which tables its watermark is true.
    """
    if job.state is not JobState.RUNNING:
        return f"{_SINCE}, and its job doesn't run: {job.sentence(sink)}"
    if has_told:
        return f"{_SINCE}, and its job hasn't taken that up yet"
    return (
        f"{_SINCE}, and its job doesn't tell of which tables its watermark is true. A job of an earlier version of"
        f" Lockstep never does: if this stays so, start `lockstep apply {sink}` or `lockstep run` again"
    )
