"""Posts the rows of one build, each at a moment when no command has a turn."""

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final

from cdc.kafka.topic_reader import Record, TopicReader
from cdc.model.errors import LockstepError
from cdc.model.log_message import LogMessage
from extensions.streams.jobs.erased_rows import ErasedRows
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.posted import Posted, posted_document, refused_row
from extensions.streams.jobs.posting_progress import PostingProgress, Replaced
from extensions.streams.jobs.records import POSTER, erased_name
from extensions.streams.jobs.refused_rows import RefusedRows, check_refused
from extensions.streams.jobs.row_delivery import RowDelivery
from extensions.streams.settings import row_webhook
from jobs.clock import now_ms
from jobs.generations.batch_gate import BatchGate
from jobs.generations.lease import GenerationLease

logger = logging.getLogger("lockstep.streams")

TICK_S: Final = 0.2
"""How often, at least, it looks whether a command has its turn. It also looks before each row."""


class Closed(Exception):
    """Posting has to end now."""


class Erased(Exception):
    """Rows were erased since the topic was last read."""


class BuildPosting:
    """Posts one build at a time. For the thread that posts. ``gate`` is entered to post a row; a command that has its
    turn holds it. ``pause`` waits the given seconds, and raises Closed if posting has to end, also for 0 s.
    """

    def __init__(
        self,
        plan: StreamQueryPlan,
        lease: GenerationLease,
        progress: PostingProgress,
        *,
        gate: BatchGate,
        pause: Callable[[float], None],
        wait_first_s: float,
    ) -> None:
        assert plan.query.webhook is not None
        self.has_moved = False
        """Whether a row was taken or refused for good since the reader of this flag reset it."""
        self._plan = plan
        self._lease = lease
        self._progress = progress
        self._gate = gate
        self._pause = pause
        self._wait_first_s = wait_first_s
        self._webhook = row_webhook(plan.name, plan.query.webhook)
        self._erased = ErasedRows(plan.kafka.client())
        self._refused = RefusedRows(plan)
        self._refused_in_a_row = 0
        self._delivery: tuple[str, RowDelivery] | None = None
        """The delivery of the present or last build, by its topic's id."""
        self._looked_at: float | None = None

    def close(self) -> None:
        self._webhook.close()

    def post(self, generation: int) -> None:
        """Post a build's present rows. Raises Closed, Erased, Replaced, TooManyRefused, and what the lease raises."""
        topic, progress = self._progress.topic(generation), self._progress
        at, lost = progress.found(generation)
        if lost:
            if progress.is_given_up(generation):
                return
            subject = {"stream_query": self._plan.name, "topic": topic}
            logger.error(LogMessage("rows may be lost to the webhook", subject, lost))
            self._erased.forget()  # tombstones may be lost too, and posting may go on further back
        progress.remember(generation, at)
        if not at.waiting and not at.reason:
            if lost:
                progress.save(generation, at)
            return
        end = at.offset + at.waiting
        self._erased.look(topic, at, self._lease.record(erased_name(generation)))
        delivery = self._delivery_of(at.topic_id, generation)
        try:
            reader = TopicReader(self._plan.kafka.client(), with_tags=True)
            with closing(reader.records(topic, {0: at.offset})) as records:
                for record in records:
                    self._check_going_on()
                    is_taken = self._is_taken(delivery, topic, generation, record)
                    self.has_moved = True
                    at = _after(at, record.offset + 1, end, is_taken=is_taken)
                    progress.note(generation, at, at_once=not is_taken)
            at = replace(at, offset=max(at.offset, end), waiting=0, since_ms=None, reason="")
            progress.save(generation, at)
        except Closed:
            with suppress(LockstepError, Replaced):  # the next process posts again what isn't stored
                progress.save(generation, at)
            raise

    def _is_taken(self, delivery: RowDelivery, topic: str, generation: int, record: Record) -> bool:
        """Whether the row is done: the receiver has it, or it was erased. False if it became a rejection. Raises what
        ``RowDelivery.refusal`` and ``RefusedRows.keep`` raise.
        """
        if record.value is None or self._erased.has(record):
            return True
        answer = delivery.refusal(record, partial(self._read, topic))
        if answer is None:
            self._refused.close(record.key)
            return True
        reason = refused_row(answer)
        check_refused(self._plan.name, self._refused_in_a_row, reason)
        self._check_going_on()
        at_ms = now_ms()
        with self._gate_passed(generation):
            self._refused.keep(record, topic=topic, generation=generation, reason=reason, at_ms=at_ms)
        self._refused_in_a_row += 1
        step = f"`lockstep rejections list {self._plan.name}` shows it"
        logger.warning(LogMessage("row is rejected", self._row(generation, record), f"{reason}; {step}"))
        return False

    def _row(self, generation: int, record: Record) -> Mapping[str, str | int]:
        return {"stream_query": self._plan.name, "generation": generation, "offset": record.offset}

    def _read(self, topic: str, offset: int) -> Generator[Record, None, None]:
        for record in TopicReader(self._plan.kafka.client()).records(topic, {0: offset}):
            if record.value is None or not self._erased.has(record):
                yield record

    def _delivery_of(self, topic_id: str, generation: int) -> RowDelivery:
        """The delivery of a build's rows: what it knows about them holds for one topic."""
        if self._delivery is not None and self._delivery[0] == topic_id:
            return self._delivery[1]

        def post(record: Record) -> None:
            assert record.value is not None
            with self._gate_passed(generation):
                self._webhook.post(self._document(generation, record.key, record.value))

        def pause(tries: int) -> None:
            self._pause(self._wait_first_s * tries)
            self._check_going_on()

        def received() -> None:
            self._refused_in_a_row = 0

        def overtaken(record: Record) -> None:
            why = "the webhook refused it before, and not any more"
            logger.warning(LogMessage("row is posted after one behind it", self._row(generation, record), why))

        delivery = RowDelivery(post, pause=pause, received=received, overtaken=overtaken)
        self._delivery = topic_id, delivery
        return delivery

    @contextmanager
    def _gate_passed(self, generation: int) -> Iterator[None]:
        """Wait while a command has its turn; no command can begin one inside the block. Raises Closed if posting has to
        end, Replaced if another job posts, Erased if rows were erased in such a turn, and what the lease raises.
        """
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at > TICK_S:
            self._lease.heartbeat()  # the job's own may be late, as while it waits for Spark
            self._looked_at = now
        if not self._gate.enter():
            raise Closed
        try:
            erased = erased_name(generation)
            records = self._lease.records([POSTER, erased])
            self._progress.check_alone(records.get(POSTER))
            if records.get(erased) != self._erased.erased_to:
                raise Erased
            yield
        finally:
            self._gate.leave()

    def _check_going_on(self) -> None:
        """Raises Closed if posting has to end, and what the lease raises."""
        self._pause(0)
        self._lease.check()

    def _document(self, generation: int, key: bytes, row: bytes) -> bytes:
        plan = self._plan
        return posted_document(pipeline=plan.pipeline, query=plan.name, generation=generation, key=key, row=row)


def _after(at: Posted, offset: int, end: int, *, is_taken: bool) -> Posted:
    """The progress after the row before this offset was taken or rejected."""
    return replace(
        at,
        offset=offset,
        posted=at.posted + is_taken,
        waiting=max(0, end - offset),
        since_ms=None,
        reason="",
        rejected=at.rejected + (not is_taken),
    )
