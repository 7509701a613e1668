"""Makes a generation the live one, so that no reader sees a row go back."""

import math
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from cdc.machine_load import patient
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.timeouts import CATCHES_UP_S, PAUSE_MAX_S
from jobs.clock import now_ms
from jobs.consistency import load_consistency
from jobs.generations.columns import load_columns
from jobs.generations.lease import SYSTEM_CLOCK, Clock, pause_request_name, wait_for_pause
from jobs.generations.status import JobState, job_status
from jobs.offsets import Offsets
from sinks.contract import OpenedSink, Progress

PREVIOUS: Final = "previous"
"""The coordination record that names the generation that was live before the last switch."""

_SWITCH_S: Final = PAUSE_MAX_S / 2
"""How long a switch waits for the new generation once it has asked the old one's job to pause."""

_IN_FORCE_S: Final = PAUSE_MAX_S * 3 / 4
"""How long after that it relies on the pause: the job may go on before it has removed the request."""

_LOOK_S: Final = 0.2

_SAY_S: Final = 5.0
"""How often a switch says what it waits for."""


def switch(
    open_generation: Callable[[int], OpenedSink],
    target: int,
    *,
    log_ends: Callable[[], Offsets],
    clock: Clock = SYSTEM_CLOCK,
    say: Callable[[str], None] = lambda _: None,
) -> int | None:
    """Make a generation the live one, and return which was live before. No reader sees a row go back.

    The live generation's jobs pause until the new one has applied everything that readers may have seen. The live one's
    progress doesn't show that, since a job that failed within a batch has written rows without saving progress. So the
    new one must apply everything that the log has by then. ``say`` is called now and then with what the switch waits
    for.

    ``log_ends`` are those of the topics that the new one's job reads. It gets no more of any other topic, such as that
    of a table that has left capture. So it must already have as much of such a topic as the live one, if it has any of
    it.

    Raises LockstepError if the new one lacks something and doesn't catch up, and at once if it can't. Raises
    Unavailable if another switch begins meanwhile, and what ``Generations.switch`` raises.
    """
    with _opened(open_generation, target) as new:
        live = new.generations.live()
        if live == target:
            return live
        if live is None:
            new.generations.switch()
            return None
        with _opened(open_generation, live) as old:
            _approach(new, target, old, live, log_ends, clock, say)
            request, request_name = uuid.uuid4().hex, pause_request_name(live)
            began = clock.monotonic_s()
            old.records.save(request_name, request)
            say(f"generation {live} is asked to pause")
            try:
                wait_for_pause(old.records, live, request, clock)
                wanted_offsets = log_ends()
                _check_unread(new, target, old, live, wanted_offsets)
                while (lacking := _lacking(new, target, wanted_offsets, _topics_read(old))) != _NOTHING:
                    if clock.monotonic_s() - began > _SWITCH_S:
                        raise lacking.error(target, live)
                    clock.sleep(_LOOK_S)
                _check_in_force(old, request_name, request, clock.monotonic_s() - began)
                if new.generations.live() != live:
                    raise Unavailable("another switch of this sink has ended meanwhile", hint="try it again")
                new.records.save(PREVIOUS, str(live))
                new.generations.switch()
            finally:
                if old.records.load(request_name) == request:
                    old.records.save(request_name, None)
    return live


def _check_in_force(old: OpenedSink, request_name: str, request: str, elapsed_s: float) -> None:
    """Raise Unavailable if the old generation's job need not pause any more, and so may have shown newer rows.
    ``elapsed_s`` is the time since it was asked to."""
    if elapsed_s > _IN_FORCE_S or old.records.load(request_name) != request:
        raise Unavailable("another switch of this sink has begun, or this one took too long", hint="try it again")


def missing_records(
    progress: Progress | None, wanted_offsets: Offsets, wanted_topics: Collection[str] = frozenset()
) -> int:
    """How many records of topics that it has ever read, or that are wanted, a generation lacks below these offsets."""
    if progress is None:
        return sum(wanted_offsets.values())
    return sum(
        max(0, offset - progress.next_offsets.get((topic, partition), 0))
        for (topic, partition), offset in wanted_offsets.items()
        if topic in progress.topic_ids or topic in wanted_topics
    )


def _approach(
    new: OpenedSink,
    target: int,
    old: OpenedSink,
    live: int,
    log_ends: Callable[[], Offsets],
    clock: Clock,
    say: Callable[[str], None],
) -> None:
    """Wait until the new generation has what the log has now: it may lack records that came while it was compared.
    Raises LockstepError if it doesn't catch up, at once if its job ended with an error, and as ``_check_unread``."""
    wanted_offsets = log_ends()
    _check_unread(new, target, old, live, wanted_offsets)
    wanted_topics = _topics_read(old)
    last, moved_at, said_at = None, clock.monotonic_s(), -math.inf
    while (lacking := _lacking(new, target, wanted_offsets, wanted_topics)) != _NOTHING:
        now = clock.monotonic_s()
        if now - said_at >= _SAY_S:
            job = job_status(new.records, target, now_ms=now_ms())
            if job.state is JobState.STOPPED:
                raise LockstepError(f"{lacking.error(target, live).message}\n{job.sentence(f'generation {target}')}")
            idle = job.sentence(f"generation {target}")
            say(f"waiting for generation {target}: {lacking}" + ("" if idle is None else f"\n{idle}"))
            said_at = now
        if lacking != last:
            last, moved_at = lacking, now
        if now - moved_at > patient(CATCHES_UP_S):
            raise lacking.error(target, live)
        clock.sleep(_LOOK_S)


@dataclass(frozen=True, slots=True)
class _Lacking:
    """What a generation lacks of what readers may have seen: ``events``, values of new ``columns`` in older rows, or,
    if it is to be consistent, the ``step`` that makes it so."""

    events: int
    columns: bool
    step: bool = False

    def __str__(self) -> str:
        if self.events:
            return f"{self.events:,} events are missing"
        return "rows lack a new column's default" if self.columns else "it isn't consistent yet"

    def error(self, target: int, live: int) -> LockstepError:
        message = (
            f"generation {target} lacks {self.events} events that readers may have seen in generation {live}:"
            " they would see older rows"
        )
        if not self.events:
            message = f"generation {target} lacks a new column's default in some rows, which its job writes now"
            if not self.columns:
                message = f"generation {target} isn't consistent yet: it may have parts of transactions"
        return LockstepError(message, hint="let `lockstep apply` or `lockstep run` bring it up to date, then try again")


_NOTHING: Final = _Lacking(0, columns=False)


def _topics_read(opened: OpenedSink) -> set[str]:
    """The topics whose rows readers of a generation may have seen."""
    progress = opened.generations.load_progress()
    return set() if progress is None else {topic for topic, _ in progress.next_offsets}


def _check_unread(new: OpenedSink, target: int, old: OpenedSink, live: int, log_ends: Offsets) -> None:
    """Raise LockstepError if the new generation has less than the old one of a topic that its job no longer reads. Its
    job reads the topics of ``log_ends``, so what it lacks of others stays missing."""
    lacking = lacked_for_good(old.generations.load_progress(), new.generations.load_progress(), log_ends)
    if lacking:
        topics = ", ".join(f"topic {topic} ({count:,})" for topic, count in lacking.items())
        raise LockstepError(
            f"generation {target} lacks events that readers may have seen in generation {live}, and its job doesn't"
            f" read them any more: they would see older rows. They are of {topics}",
            hint="where the table isn't captured any more, `lockstep rebuild SINK --switch` builds a generation without"
            " it; where it was taken out of the sink, `lockstep resume SINK TABLE` lets it catch up",
        )


def lacked_for_good(old: Progress | None, new: Progress | None, log_ends: Offsets) -> dict[str, int]:
    """How many records of each topic outside ``log_ends`` the old generation has applied and the new one hasn't. Pure.
    Only of topics that both have read: a generation with nothing of a table is one without that table."""
    if old is None or new is None:
        return {}
    read = {topic for topic, _ in log_ends}
    known = new.topic_ids.keys() | {topic for topic, _ in new.next_offsets}
    lacking = dict[str, int]()
    for (topic, partition), offset in sorted(old.next_offsets.items()):
        missing = offset - new.next_offsets.get((topic, partition), 0)
        if topic in known - read and missing > 0:
            lacking[topic] = lacking.get(topic, 0) + missing
    return lacking


def _lacking(new: OpenedSink, target: int, wanted_offsets: Offsets, wanted_topics: Collection[str]) -> _Lacking:
    columns = load_columns(new.records, target)
    is_filled = columns is None or columns.is_filled
    missing = missing_records(new.generations.load_progress(), wanted_offsets, wanted_topics)
    consistency = load_consistency(new.records, target)
    return _Lacking(missing, not is_filled, consistency is not None and not consistency.is_reached)


@contextmanager
def _opened(open_generation: Callable[[int], OpenedSink], number: int) -> Iterator[OpenedSink]:
    opened = open_generation(number)
    try:
        yield opened
    finally:
        opened.sink.close()
