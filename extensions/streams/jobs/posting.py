"""Posts the rows of a stream query's result to its webhook: each at least once, in the order of the result's topic.

The topic holds the rows for as long as the receiver takes none, so however long that is none is lost. How far they are
posted is kept with the result, about once a second and whenever something is in the way: a job that is killed posts
those since then again, with the same ids.

A row that the receiver refuses for what it is becomes a rejection, and those behind it go on. It is kept as a dead
letter before the next one is posted. ``extensions.streams.jobs.row_delivery`` says when it is the row.

Of several jobs the one that has begun to post last posts alone, whichever build it works on. The job of an earlier
build may hang, and learn only afterwards that there is a newer one: the receiver would go back with its rows.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final

from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_reader import Record, TopicReader
from cdc.model.errors import Fenced, LockstepError, Unavailable
from cdc.model.log_message import LogMessage
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.posted import Posted, going_on, kept_back, posted_document, refused_row
from extensions.streams.jobs.records import POSTER, erased_name, posted_name
from extensions.streams.jobs.refused_rows import RefusedRows, TooManyRefused, check_refused
from extensions.streams.jobs.row_delivery import RowDelivery
from extensions.streams.settings import row_webhook
from extensions.streams.topic_names import stream_result_topic
from jobs.clock import now_ms
from jobs.executor.result import Failure
from jobs.generations.batch_gate import BatchGate
from jobs.generations.lease import GenerationLease
from jobs.generations.record import Phase, record_name
from jobs.generations.record import Record as GenerationRecord

logger = logging.getLogger("lockstep.streams")

SAVE_EVERY_S: Final = 1.0
_LOOK_S: Final = 2.0
_TICK_S: Final = 0.2
"""So often it looks whether a command has its turn, at least; no row is posted without a look before."""

_CLOSE_S: Final = 15.0
"""Longer than a receiver may take for a row. A thread that waits for Kafka for longer posts nothing after that."""

_WAIT_FIRST_S: Final = 1.0
_WAIT_MAX_S: Final = 60.0


class _Closed(Exception):
    """It is to end now."""


class _Replaced(Exception):
    """Another job posts."""


class _Erased(Exception):
    """Rows were erased since the topic was looked at."""


class RowPoster:
    """Posts in a thread of its own, until ``close``. Safe for several threads.

    ``failure`` says why it has ended by itself, None while it hasn't: the receiver refuses too many rows, or another
    job has begun to post.

    ``generations`` says which builds' rows are to be posted, the oldest first; each one's are posted before the next
    one's. It is asked at each look. ``said`` is told why nothing gets through, whenever the reason changes.
    """

    def __init__(
        self,
        plan: StreamQueryPlan,
        lease: GenerationLease,
        *,
        generations: Callable[[], Sequence[int]],
        said: Callable[[str, float], None],
        wait_first_s: float = _WAIT_FIRST_S,
    ) -> None:
        assert plan.query.webhook is not None
        self.failure: TooManyRefused | Unavailable | None = None
        self._plan = plan
        self._lease = lease
        self._generations = generations
        self._said = said
        self._wait_first_s = wait_first_s
        self._cluster = TopicAdmin(plan.kafka.client())
        self._webhook = row_webhook(plan.name, plan.query.webhook)
        self._changed = threading.Condition()
        self._is_woken = True
        self._is_closing = False
        self._ends_when_done = False
        self._known: dict[int, Posted] = {}
        self._at_work: int | None = None
        """The build whose rows are being posted, or were last."""
        self._saved_at = 0.0
        self._refused = RefusedRows(plan)
        self._refused_in_a_row = 0
        self._delivery: tuple[str, RowDelivery] | None = None
        """Of the topic with this id, whose rows are being posted, or were last."""
        self._has_posted_more = False
        """A row was taken or refused for good since the last failure."""
        self._run = uuid.uuid4().hex
        self._has_begun = False
        self._gate = BatchGate()
        """One is inside who posts a row. A command that has its turn holds it."""
        self._looked_at: float | None = None
        lease.guard(self._gate)
        self._erased_to: str | None = None
        """What the record says, of the build at work, as of the last look at the topic."""
        self.tombstones: dict[bytes, int] = {}
        """Key of an erased row -> the offset of its newest tombstone, of the same."""
        self._looked_for: tuple[str, str | None] | None = None
        """The topic's id and that record, where the look has come to its end: later rows need no other one."""
        self._thread = threading.Thread(target=self._work, name=f"post-{plan.name}", daemon=True)
        self._thread.start()

    @property
    def is_held_up(self) -> bool:
        """Whether it has a row to post, and a command has its turn."""
        return self._gate.is_awaited

    def wake(self) -> None:
        """There may be new rows."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def finish(self, stop: threading.Event, *, while_waiting: Callable[[], None]) -> None:
        """Return once all rows that are there are posted, or ``stop`` is set.

        Raises what ``while_waiting`` does, and as ``check``.
        """
        with self._changed:
            self._ends_when_done = self._is_woken = True
            self._changed.notify_all()
        while self._thread.is_alive() and not stop.is_set():
            self._thread.join(_TICK_S)
            while_waiting()
        self.check()

    def check(self) -> None:
        """Raise why it has ended by itself: TooManyRefused, or Unavailable where another job posts."""
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Post no more. What isn't posted by then is posted by the next job."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._gate.close(0)
        self._thread.join(_CLOSE_S)
        self._webhook.close()

    def has_posted(self, generation: int) -> bool:
        """Whether the receiver has all rows of a build that gets no more. Raises what store and brokers raise."""
        known = Posted.parse(self._lease.record(posted_name(generation)))
        at, lost = self._going_on(self._topic(generation), known)
        # What is lost is said by the thread, which notes that it was.
        return not lost and not at.waiting

    def _topic(self, generation: int) -> str:
        return stream_result_topic(self._plan.pipeline, self._plan.name, generation)

    def _going_on(self, topic: str, known: Posted) -> tuple[Posted, str]:
        """As ``going_on``, by what the brokers say now."""
        if not self._cluster.exists(topic):
            return going_on(known, topic_id=None, begin=0, end=0)
        at = topic, 0
        topic_id = self._cluster.topic_ids([topic])[topic]
        begin, end = self._cluster.begin_offsets([at])[at], self._cluster.end_offsets([at])[at]
        return going_on(known, topic_id=topic_id, begin=begin, end=end)

    def _is_given_up(self, generation: int) -> bool:
        """Whether a build is on its way out: nobody waits for its rows, and its topic goes."""
        record = self._lease.record(record_name(generation))
        return record is not None and GenerationRecord.from_json(record).phase is Phase.RETIRED

    def _work(self) -> None:
        tries, reason = 0, ""
        while True:
            try:
                if not tries:
                    self._await_rows()
                self._post_all()
            except _Erased:
                tries, reason = 0, ""
                with self._changed:
                    self._is_woken = True
                continue
            except (_Closed, Fenced):  # by whom it is fenced posts the rest
                return
            except _Replaced:
                self.failure = Unavailable(f"another job has begun to post rows of stream query {self._plan.name!r}")
                return
            except TooManyRefused as error:
                self._keep_reason(error.message)
                self.failure = error
                return
            except Exception as error:
                # A bug, too: nobody starts this thread again, and rows must not be passed over.
                failure = Failure.of(error)
                self._keep_reason(failure.message)
                is_bug = not isinstance(error, LockstepError)
                now = failure.message if is_bug or failure.hint is None else f"{failure.message}: {failure.hint}"
            else:
                tries, reason = 0, ""
                if self._ends_when_done and not self._is_woken:  # nothing has come since this pass began
                    return
                continue
            tries = 0 if self._has_posted_more else tries
            self._has_posted_more = False
            wait_s = min(self._wait_first_s * 2.0 ** min(tries, 16), _WAIT_MAX_S)
            tries += 1
            if now != reason:
                self._said(now, wait_s)
            reason = now
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing, wait_s)
                if self._is_closing:
                    return

    def _await_rows(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_woken or self._is_closing, _LOOK_S)
            if self._is_closing:
                raise _Closed
            self._is_woken = False

    def _post_all(self) -> None:
        if not self._has_begun:  # before it looks how far rows are posted: from then on nobody else says so
            self._lease.save_record(POSTER, self._run)
            self._has_begun = True
        for generation in self._generations():
            self._at_work = generation
            self._post(generation)

    def _keep_reason(self, reason: str) -> None:
        """Store why nothing gets through, as far as the store lets us: ``said`` has it in any case."""
        generation = self._at_work
        if generation is None:
            return
        name = posted_name(generation)
        with suppress(Exception):  # what is to be told is the error before it
            if self._is_given_up(generation):  # its records go, and must not come back
                return
            known = self._known.get(generation) or Posted.parse(self._lease.record(name))
            at = self._known[generation] = kept_back(known, reason, now_ms=now_ms())
            self.save(name, at)

    def _post(self, generation: int) -> None:
        """Post what a build's topic holds by now."""
        topic, name = self._topic(generation), posted_name(generation)
        known = self._known.get(generation) or Posted.parse(self._lease.record(name))
        at, lost = self._going_on(topic, known)
        if lost:
            if self._is_given_up(generation):
                return
            subject = {"stream_query": self._plan.name, "topic": topic}
            logger.error(LogMessage("rows may be lost to the webhook", subject, lost))
            self._looked_for = None  # tombstones may be lost too, and it may go on further back
        self._known[generation] = at
        if not at.waiting and not at.reason:
            if lost:
                self.save(name, at)
            return
        end = at.offset + at.waiting
        self.look_for_erased(topic, generation, at)
        delivery = self._delivery_of(at.topic_id, generation)
        try:
            reader = TopicReader(self._plan.kafka.client(), with_tags=True)
            with closing(reader.records(topic, {0: at.offset})) as records:
                for record in records:
                    self._check_going_on()
                    is_taken = self._is_taken(delivery, topic, generation, record)
                    self._has_posted_more = True
                    offset = record.offset + 1
                    at = replace(
                        at,
                        offset=offset,
                        posted=at.posted + is_taken,
                        waiting=max(0, end - offset),
                        since_ms=None,
                        reason="",
                        rejected=at.rejected + (not is_taken),
                    )
                    self._known[generation] = at
                    if not is_taken or time.monotonic() - self._saved_at > SAVE_EVERY_S:
                        self.save(name, at)
            at = replace(at, offset=max(at.offset, end), waiting=0, since_ms=None, reason="")
            self._known[generation] = at
            self.save(name, at)
        except _Closed:
            with suppress(LockstepError, _Replaced):  # the next process posts again what isn't noted
                self.save(name, at)
            raise

    def _is_taken(self, delivery: RowDelivery, topic: str, generation: int, record: Record) -> bool:
        """Whether the receiver has the row, or the row is kept as a rejection.

        Raises as ``RowDelivery.refusal`` and as ``RefusedRows.keep``.
        """
        if record.value is None or self._is_erased(record):
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
        """Which row it is, for the log."""
        return {"stream_query": self._plan.name, "generation": generation, "offset": record.offset}

    def _read(self, topic: str, offset: int) -> Generator[Record, None, None]:
        for record in TopicReader(self._plan.kafka.client()).records(topic, {0: offset}):
            if record.value is None or not self._is_erased(record):
                yield record

    def look_for_erased(self, topic: str, generation: int, at: Posted) -> None:
        """Find which of the rows that aren't posted yet were erased, unless that is known from an earlier pass."""
        erased_to = self._lease.record(erased_name(generation))
        looked_for = at.topic_id, erased_to
        if looked_for == self._looked_for:
            return
        self._looked_for, self.tombstones = None, {}
        self._erased_to = erased_to
        if erased_to is not None and int(erased_to) > at.offset:
            with closing(TopicReader(self._plan.kafka.client()).records(topic, {0: at.offset})) as records:
                for record in records:
                    if record.offset >= int(erased_to):
                        break
                    if record.value is None:
                        self.tombstones[record.key] = record.offset
        self._looked_for = looked_for

    def _is_erased(self, record: Record) -> bool:
        return self.tombstones.get(record.key, -1) > record.offset

    def _delivery_of(self, topic_id: str, generation: int) -> RowDelivery:
        """The delivery of a build's rows: what it knows of them holds for one topic."""
        if self._delivery is not None and self._delivery[0] == topic_id:
            return self._delivery[1]

        def post(record: Record) -> None:
            assert record.value is not None
            with self._gate_passed(generation):
                self._webhook.post(self._document(generation, record.key, record.value))

        def received() -> None:
            self._refused_in_a_row = 0

        def overtaken(record: Record) -> None:
            why = "the webhook refused it before, and not any more"
            logger.warning(LogMessage("row is posted after one behind it", self._row(generation, record), why))

        delivery = RowDelivery(post, pause=self._pause, received=received, overtaken=overtaken)
        self._delivery = topic_id, delivery
        return delivery

    @contextmanager
    def _gate_passed(self, generation: int) -> Iterator[None]:
        """Wait while a command has its turn; none has one inside.

        Raises _Closed where it is to end, _Replaced where another job posts, _Erased where rows were erased in such a
        turn, and what the lease raises.
        """
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at > _TICK_S:
            self._lease.heartbeat()  # the job's own may be late, as while it waits for Spark
            self._looked_at = now
        if not self._gate.enter():
            raise _Closed
        try:
            erased = erased_name(generation)
            records = self._lease.records([POSTER, erased])
            self._check_alone(records.get(POSTER))
            if records.get(erased) != self._erased_to:
                raise _Erased
            yield
        finally:
            self._gate.leave()

    def _pause(self, tries: int) -> None:
        """Wait before a row is posted again. Raises as ``_check_going_on``."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing, self._wait_first_s * tries)
        self._check_going_on()

    def _check_going_on(self) -> None:
        """Raise _Closed where it is to end, and what the lease raises."""
        if self._is_closing:
            raise _Closed
        self._lease.check()

    def _check_alone(self, poster: str | None) -> None:
        """Raise _Replaced where another job has begun to post since this one did. A store that was put back may lack
        who it was.
        """
        if poster not in (None, self._run):
            raise _Replaced

    def save(self, name: str, at: Posted) -> None:
        """Store how far rows are posted, unless another one posts by now."""
        self._check_alone(self._lease.record(POSTER))
        self._lease.save_record(name, at.text())
        self._saved_at = time.monotonic()

    def _document(self, generation: int, key: bytes, row: bytes) -> bytes:
        plan = self._plan
        return posted_document(pipeline=plan.pipeline, query=plan.name, generation=generation, key=key, row=row)
