"""A view's result for followers: rows as of an LSN, then changes, in whole steps.

A view is read once for all followers. The newest steps are in memory. A follower that is slower than the steps gets the
changes since its last step from a copy in a file, each key once: no step is left out, several become one.
"""

import asyncio
import contextlib
import hashlib
import logging
import math
import tempfile
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import orjson

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.event import value_text
from cdc.model.lsn import format_lsn
from cdc.model.timeouts import STEP_READ_S
from lockstep.dashboard.view_copy import GONE_S, At, CopyReader, Filter, ViewCopy
from monitor.view_feed import ViewFeed, ViewRecord

logger = logging.getLogger("lockstep.dashboard")

READERS_MAX: Final = 300
VIEWS_MAX: Final = 8
"""Each followed view has a consumer, a thread and a file of its own."""

ROWS_KEPT: Final = 20_000
"""How many rows of the newest steps are in memory. Older ones are read from the file."""

_PORTION: Final = 500
_SEND_S: Final = 1.0
"""How often a reader hears of steps that changed nothing it asked for."""

_ALIVE_S: Final = 15.0
_IDLE_S: Final = 60.0
"""How long a view is followed after its last reader has left."""

LOOK_S: Final = 0.2
"""How often to look whether a generation is live, for a reader that waits for one."""

_NONE_LIVE: Final = "no live generation of the view has been seen yet: `lockstep generations` shows them"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One generation of a view, with the columns of its key."""

    view: str
    generation: int
    key: tuple[str, ...]


@dataclass(slots=True)
class Step:
    """Changes that belong together. Each key comes once."""

    at: At
    records: Sequence[ViewRecord]
    _frames: dict[tuple[str, ...], dict[tuple[str, ...], list[bytes]]] = field(default_factory=dict)

    def frames(self, wanted: Filter) -> Sequence[bytes]:
        """The frames for a filter. They are made once for all readers that filter by the same columns."""
        columns = tuple(wanted)
        if columns not in self._frames:
            by_values: dict[tuple[str, ...], list[bytes]] = {}
            for record in self.records:
                key = orjson.loads(record.key)
                values = tuple(value_text(key[name]) for name in columns)
                value = None if record.value is None else record.value.decode()
                by_values.setdefault(values, []).append(change_frame(record.key.decode(), value))
            self._frames[columns] = by_values
        return self._frames[columns].get(tuple(wanted.values()), ())


class Recent:
    """The newest steps. ``at`` is the newest one, None before the first. Pure."""

    def __init__(self, rows_max: int = ROWS_KEPT) -> None:
        self._rows_max = rows_max
        self._steps: deque[Step] = deque()
        self._rows = 0
        self.at: At | None = None

    def add(self, step: Step) -> None:
        """Add the next step. Drops the oldest to make room, and a step that is too large itself."""
        self.at = step.at
        self._steps.append(step)
        self._rows += len(step.records) + 1
        while self._steps and self._rows > self._rows_max:
            self._rows -= len(self._steps.popleft().records) + 1

    def after(self, number: int) -> list[Step] | None:
        """All steps after this one; None if one of them was dropped."""
        newest = 0 if self.at is None else self.at.number
        if newest - number > len(self._steps):
            return None
        return [step for step in self._steps if step.at.number > number]


def row_frame(key: str, row: str) -> bytes:
    """A row as of the LSN of the next ``synced``."""
    return f'event: row\ndata: {{"key":{key},"row":{row}}}\n\n'.encode()


def change_frame(key: str, row: str | None) -> bytes:
    """A row that is new or has changed, or is gone."""
    if row is None:
        return f'event: delete\ndata: {{"key":{key}}}\n\n'.encode()
    return f'event: upsert\ndata: {{"key":{key},"row":{row}}}\n\n'.encode()


def end_frame(event: str, at: At, event_id: str) -> bytes:
    """Everything before it is of this LSN."""
    document = orjson.dumps({"epoch": at.epoch, "lsn": format_lsn(at.lsn)}).decode()
    return f"event: {event}\nid: {event_id}\ndata: {document}\n\n".encode()


def waiting_frame(message: str) -> bytes:
    return b"event: waiting\ndata: %b\n\n" % orjson.dumps({"message": message})


def trouble_frame(message: str) -> bytes:
    """The last one: why nothing more comes."""
    return b"event: trouble\ndata: %b\n\n" % orjson.dumps({"message": message})


@dataclass(frozen=True, slots=True)
class EventId:
    """What a returning reader has: everything below offset ``end`` of this topic, as of this time. ``topic_id`` is
    Kafka's. ``scope`` stands for the filter's columns and values: with another filter the reader has nothing."""

    topic_id: str
    end: int
    time_s: int
    scope: str

    def __str__(self) -> str:
        return f"{self.topic_id}.{self.end}.{self.time_s}.{self.scope}"

    @classmethod
    def parse(cls, text: str) -> "EventId | None":
        """None for an invalid text."""
        match text.split("."):
            case [topic_id, end, time_s, scope] if end.isdecimal() and time_s.isdecimal() and len(text) < 200:
                return cls(topic_id, int(end), int(time_s), scope)
        return None


class FollowedView:
    """Reads one generation of a view in a thread of its own, and provides what its readers need."""

    def __init__(self, kafka: KafkaSettings, pipeline: str, wanted: Wanted, loop: asyncio.AbstractEventLoop) -> None:
        self._kafka = kafka
        self._pipeline = pipeline
        self._wanted = wanted
        self._loop = loop
        self._news = asyncio.Event()
        self._stop = threading.Event()
        self._copy: ViewCopy | None = None
        self._thread = threading.Thread(target=self._run, name=f"view-{wanted.view}", daemon=True)
        # The topic and the copy keep tombstones for a limited time each.
        self.resumable_s = min(GONE_S, kafka.topics.delete_retention_ms / 1000) / 2
        """A reader that left longer ago starts from the beginning."""
        self.recent = Recent(ROWS_KEPT)
        self.topic_id = ""
        self.readers = 0
        self.left_s = time.monotonic()
        self.trouble: str | None = None
        """Why it doesn't go on."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Make it end within a moment. Its readers are informed."""
        self._stop.set()

    async def news(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), timeout_s)

    def reader(self) -> CopyReader:
        """A reader of the file. Raises Unavailable before the first step."""
        if self._copy is None or self.recent.at is None:
            raise Unavailable("the view's rows are being read")
        return self._copy.reader()

    def _run(self) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="lockstep-view-") as directory:
                self._follow(Path(directory))
            self._call_in_loop(partial(self._end, "the view isn't followed any more: follow it again"))
        except LockstepError as error:
            logger.info("following view %s ended: %s", self._wanted.view, error.message)
            self._call_in_loop(partial(self._end, error.message))
        except Exception:
            logger.exception("following view %s ended by a bug", self._wanted.view)
            self._call_in_loop(partial(self._end, "the view can't be followed, and the dashboard's log says why"))

    def _follow(self, directory: Path) -> None:
        wanted = self._wanted
        feed = ViewFeed(self._kafka.client(), self._pipeline, wanted.view, wanted.generation, stopping=self._is_over)
        self.topic_id = feed.topic_id
        copy = ViewCopy(directory, wanted.key)
        number = 0
        changed: dict[bytes, ViewRecord] = {}
        try:
            with contextlib.closing(feed.portions()) as portions:
                for portion in portions:
                    copy.add(portion.records, now_s=time.time())
                    if len(changed) <= ROWS_KEPT:  # beyond that, the step isn't kept in memory
                        changed.update((record.key, record) for record in portion.records)
                    if portion.step is None:
                        continue
                    number += 1
                    step = portion.step
                    at = At(number, step.end, step.epoch, step.lsn)
                    copy.commit(at, now_s=time.time())
                    self._copy = copy
                    self._call_in_loop(partial(self._add, Step(at, list(changed.values()))))
                    changed = {}
        finally:
            copy.close()

    def _is_over(self) -> bool:
        return self._stop.is_set() or (not self.readers and time.monotonic() - self.left_s > _IDLE_S)

    def _call_in_loop(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call)

    def _add(self, step: Step) -> None:
        self.recent.add(step)
        self._ring()

    def _end(self, message: str) -> None:
        self.trouble = message
        self._ring()

    def _ring(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class ViewChanges:
    """The followed views, and their followers. For the serving loop only."""

    def __init__(
        self, kafka: KafkaSettings, pipeline: str, *, live: Callable[[str], int | None], is_closed: Callable[[], bool]
    ) -> None:
        """``live`` returns the generation of a view that readers see now, None while nobody knows."""
        self._kafka = kafka
        self._pipeline = pipeline
        self._live = live
        self._is_closed = is_closed
        self._followed: dict[Wanted, FollowedView] = {}
        self._readers = 0

    def close(self) -> None:
        for followed in self._followed.values():
            followed.close()

    def follow(self, view: str, key: Sequence[str], wanted: Filter, last_id: str | None) -> AsyncIterator[bytes]:
        """The frames for one reader; waits until a generation is live. Raises Unavailable for one reader too many."""
        if self._readers >= READERS_MAX:
            raise Unavailable(f"{READERS_MAX} readers follow views already")
        return self._frames(view, tuple(key), wanted, last_id)

    async def _frames(
        self, view: str, key: tuple[str, ...], wanted: Filter, last_id: str | None
    ) -> AsyncIterator[bytes]:
        self._readers += 1
        try:
            yield b"retry: 2000\n\n"
            sent_s = -math.inf
            while (generation := self._live(view)) is None:
                if self._is_closed():
                    return
                if time.monotonic() - sent_s > _ALIVE_S:
                    sent_s = time.monotonic()
                    yield waiting_frame(_NONE_LIVE)
                await asyncio.sleep(LOOK_S)
            of_generation = self._of_generation(Wanted(view, generation, key), wanted, last_id)
            async with contextlib.aclosing(of_generation) as frames:
                async for frame in frames:
                    yield frame
        finally:
            self._readers -= 1

    async def _of_generation(self, this: Wanted, wanted: Filter, last_id: str | None) -> AsyncGenerator[bytes, None]:
        try:
            followed = self._following(this)
        except Unavailable as error:
            yield trouble_frame(error.message)
            return
        followed.readers += 1
        try:
            reading = _Reading(followed, wanted, last_id, partial(self._over, this))
            async with contextlib.aclosing(reading.frames()) as frames:
                async for frame in frames:
                    yield frame
        finally:
            followed.readers -= 1
            followed.left_s = time.monotonic()

    def _following(self, this: Wanted) -> FollowedView:
        """What follows it, started if necessary. Raises Unavailable if too many views are followed."""
        for other, followed in list(self._followed.items()):
            if followed.trouble is not None:
                del self._followed[other]
        if this not in self._followed:
            if len(self._followed) >= VIEWS_MAX:
                raise Unavailable(f"{VIEWS_MAX} views are followed already")
            self._followed[this] = FollowedView(self._kafka, self._pipeline, this, asyncio.get_running_loop())
            self._followed[this].start()
        return self._followed[this]

    def _over(self, this: Wanted) -> bool:
        """Whether another generation is live, or the server ends."""
        return self._is_closed() or self._live(this.view) not in (this.generation, None)


class _Reading:
    """One reader: what it has, and what it is sent next."""

    def __init__(
        self, followed: FollowedView, wanted: Filter, last_id: str | None, is_over: Callable[[], bool]
    ) -> None:
        self._followed = followed
        self._wanted = wanted
        self._scope = scope_of(wanted)
        self._last = None if last_id is None else EventId.parse(last_id)
        self._is_over = is_over
        self._at = At(0, 0, 0, 0)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        try:
            async for frame in self._all():
                yield frame
        except LockstepError as error:
            yield trouble_frame(error.message)

    async def _all(self) -> AsyncIterator[bytes]:
        followed = self._followed
        quiet_s = time.monotonic()
        while followed.recent.at is None:
            if self._is_over() or followed.trouble is not None:
                break
            await followed.news(_SEND_S)
            if time.monotonic() - quiet_s > _ALIVE_S:
                quiet_s = time.monotonic()
                yield b": the rows are being read\n\n"
        else:
            async for frame in self._begun():
                yield frame
            async for frame in self._followed_on():
                yield frame
        if followed.trouble is not None:
            yield trouble_frame(followed.trouble)

    async def _begun(self) -> AsyncIterator[bytes]:
        """All rows, or what has changed since the reader left."""
        reader = await asyncio.to_thread(self._followed.reader)
        with contextlib.closing(reader):
            self._at = reader.at
            if self._last is not None and self._may_resume(self._last):
                found, make = reader.since(self._last.end, self._wanted, portion=_PORTION), change_frame
            else:
                yield b"event: reset\ndata: {}\n\n"
                found, make = reader.rows(self._wanted, portion=_PORTION), _row_or_none
            async for frame in self._made(found, make):
                yield frame
        yield end_frame("synced", self._at, self._id())

    def _may_resume(self, last: EventId) -> bool:
        return (
            (last.topic_id, last.scope) == (self._followed.topic_id, self._scope)
            and last.end <= self._at.end
            and 0 <= time.time() - last.time_s < self._followed.resumable_s
        )

    async def _followed_on(self) -> AsyncIterator[bytes]:
        followed, sent = self._followed, self._at
        sent_s = alive_s = time.monotonic()
        while not self._is_over() and followed.trouble is None:
            has_sent = False
            async for frame in self._since():
                yield frame
                has_sent = True
            now_s = time.monotonic()
            if has_sent or (self._at != sent and now_s - sent_s >= _SEND_S):
                yield end_frame("commit", self._at, self._id())
                sent, sent_s, alive_s = self._at, now_s, now_s
            elif now_s - alive_s > _ALIVE_S:
                yield b": nothing has changed\n\n"
                alive_s = now_s
            # The file may be ahead of the steps that this loop knows.
            if followed.recent.at is None or followed.recent.at.number <= self._at.number:
                await followed.news(_SEND_S)

    async def _since(self) -> AsyncIterator[bytes]:
        """What has changed after the step that the reader has, up to the newest one."""
        steps = self._followed.recent.after(self._at.number)
        if steps is not None:
            for step in steps:
                self._at = step.at
                for frame in step.frames(self._wanted):
                    yield frame
            return
        reader = await asyncio.to_thread(self._followed.reader)
        with contextlib.closing(reader):
            found = reader.since(self._at.end, self._wanted, portion=_PORTION)
            self._at = reader.at
            async for frame in self._made(found, change_frame):
                yield frame

    async def _made(
        self, found: Iterator[list[tuple[str, str | None]]], make: Callable[[str, str | None], bytes]
    ) -> AsyncIterator[bytes]:
        began_s = time.monotonic()
        while (portion := await asyncio.to_thread(next, found, None)) is not None:
            yield b"".join(make(key, row) for key, row in portion)
            if time.monotonic() - began_s > STEP_READ_S:
                raise Unavailable(
                    f"the rows weren't read within {STEP_READ_S:.0f} s: filter by columns of the key, or read faster"
                )

    def _id(self) -> str:
        return str(EventId(self._followed.topic_id, self._at.end, int(time.time()), self._scope))


def _row_or_none(key: str, row: str | None) -> bytes:
    assert row is not None
    return row_frame(key, row)


def scope_of(wanted: Filter) -> str:
    return hashlib.sha256(orjson.dumps(sorted(wanted.items()))).hexdigest()[:12]
