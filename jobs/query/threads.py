"""The threads beside a query's batches, and what they share.

========================  =====================================  =================================  ==================
thread                    reads                                  writes                             ends when
========================  =====================================  =================================  ==================
``sink-<sink>-g<n>``      whether the query is active            starts and stops the query         the job is over
``SinkJob.run``
Spark's own               the log's ends, the task's results     the destination, dead letters,     the query ends
``Batches.run``                                                  progress, ``QueryState``
``watermark-<sink>``      ``__progress``, after each batch and   progress (``ProgressKeeper``       ``ended``, after a
``follow_watermark``      when something was published, and the  locks), ``failure``                last look
                          ids of the topics that it tells of
``log-<sink>``            whether something is written to        ``batch_done``, ``news``           soon after the
``listen_to_log``         ``__progress`` or ``__schema``: of                                        query; not awaited
                          ``log``, one of the process
``lease-<sink>``          the same as the next one, while the    the heartbeat                      the job is over
``JobLease.kept``         job has no query
``heartbeat-<sink>``      the pause request, other claims        the heartbeat, the batch gate,     ``ended``
``keep_lease``                                                   ``failure``
``batches-<sink>``        ``under_way``                          reports                            ``ended``
``report_long_batches``
``tasks-<sink>``          what tasks of a long batch have        progress, reports, the batch's     ``ended``
``listen_to_tasks``       applied, whether the gate is wanted    end, ``failure``
``columns-<sink>``        the destination's rows                 the rows that lack a column, step  all rows have it,
``fill_columns``                                                 by step, beside the batches        or the gate closed
``schema-<sink>``         ``__schema``, topics, orders,          ``ending``, ``failure``            soon after the
``ended_early``           after ``news``                                                            query; not awaited
========================  =====================================  =================================  ==================
"""

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from cdc.kafka.topic_admin import TopicAdmin
from cdc.machine_load import processor_wait_share
from cdc.model.errors import DataLost, Fenced, LockstepError, PositionMismatch, Unavailable
from cdc.model.table import Table, TableName
from jobs.generations.lease import GenerationLease
from jobs.query.log_bell import Bell
from jobs.query.schema_watch import SchemaWatch
from jobs.query.sink_plan import SinkPlan
from jobs.query.topic_watch import Looks, TopicWatch
from jobs.report import BatchGoesOn, Reporter, SinkWaiting
from sinks.contract import Progress

POLL_S: Final = 0.1

TICK_S: Final = 0.5
"""How often a sink looks for pause requests, and at most for progress records that no batch asks for."""

QUIET_S: Final = 5.0
"""How often a sink looks at the log without being woken."""

_LISTEN_S: Final = 1.0
SILENT_S: Final = 1.0
"""How long to wait for the bell, and how long to pause after brokers didn't answer."""

_JUST_NOW_S: Final = 0.05
LOOK_FIRST_S: Final = 0.1
"""How long a task's report may wait for its progress record, so that the watermark is stored with it."""

SCHEMA_LOOK_S: Final = 1.0
"""How often a running job looks for a table's new shape."""

ORDERS_LOOK_S: Final = 2.0
"""How often it looks for new orders: that asks the destination."""

_LONG_BATCH_S: Final = 15.0
_SLOW_ROWS_PER_S: Final = 2_000
"""A batch that takes longer, and longer than its rows at this rate, is reported repeatedly: a server that hangs says
nothing, and neither does a lock. A task reports nothing before its end, so a long first load is no reason to worry."""


def patience_s(rows: int) -> float:
    """How long a batch of at most so many rows may take before it is reported. Pure."""
    return _LONG_BATCH_S + rows / _SLOW_ROWS_PER_S


class ServerAnswer:
    """How long the destination takes to answer heartbeats. One thread waits, others look."""

    def __init__(self) -> None:
        self._asked_at: float | None = None
        self._last_s = 0.0
        self.refusal: str | None = None
        """Why the destination didn't take the last heartbeat; None if it did."""

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Time the answer that this block waits for."""
        began = self._asked_at = time.monotonic()
        try:
            yield
        finally:
            self._last_s, self._asked_at = time.monotonic() - began, None

    def took_s(self, now_s: float) -> float:
        """How long the last answer took, or the pending one takes so far if that is longer."""
        asked_at = self._asked_at
        return max(self._last_s, 0.0 if asked_at is None else now_s - asked_at)


class QueryState:
    """What the threads of one query share. ``news`` is set when something was published."""

    def __init__(self, news: threading.Event | None = None) -> None:
        self.news = news or threading.Event()
        self.ended = threading.Event()
        self.batch_done = threading.Event()
        self.resting = threading.Event()
        """Set while the query is idle (``jobs.query.idle_wait``)."""
        self.woken = threading.Event()
        """Set when an idle wait must check whether it is over: after each look for progress records, and at the end."""
        self.looked = threading.Event()
        """Set after each look for progress records."""
        self.learned_at = float("-inf")
        """When a look last found progress records, by the monotonic clock."""
        self.stored_lsn = 0
        """The watermark that was last stored with a task's report."""
        self.bell_is_deaf = threading.Event()
        """Set when the bell didn't ring for something."""
        self.filling = threading.Event()
        """Set while older rows still lack columns."""
        self.failure: Exception | None = None
        """The first one."""
        self.under_way: tuple[int, float] | None = None
        """The id of the running batch, and when it began in seconds of the monotonic clock."""
        self.planned_rows = 0
        """How many rows the running batch has at most."""
        self.heard_at = 0.0
        """When the task of a long batch last reported, by the same clock."""
        self.server_answer = ServerAnswer()

    def is_overdue(self, now_s: float, *, reported_at_s: float) -> bool:
        """Whether the running batch takes longer than its rows should, since it began or since its last report."""
        if self.under_way is None:
            return False
        if now_s - self.under_way[1] < patience_s(self.planned_rows):
            return False
        return now_s - max(self.heard_at, reported_at_s) >= _LONG_BATCH_S

    def keep_failure(self, error: Exception) -> None:
        self.failure = self.failure or error

    def look_first(self) -> None:
        """Request a look for progress records, unless some just came. Waits for the look, but not for brokers."""
        if time.monotonic() - self.learned_at > _JUST_NOW_S:
            self.looked.clear()
            self.batch_done.set()
            self.looked.wait(LOOK_FIRST_S)

    def has_stored(self, watermark_lsn: int) -> None:
        """A task's report is stored. Requests another look if its progress record wasn't there yet."""
        if watermark_lsn == self.stored_lsn:
            self.batch_done.set()
        self.stored_lsn = watermark_lsn

    def wait_woken(self, timeout_s: float) -> None:
        """Wait for ``woken``, but no longer."""
        self.woken.wait(timeout_s)
        self.woken.clear()

    def fail(self, error: Exception) -> None:
        """End the query, from a thread beside the batches."""
        self.keep_failure(error)
        self.ended.set()


@contextmanager
def side_threads(
    state: QueryState,
    sink: str,
    targets: Mapping[str, Callable[[], None]],
    *,
    not_awaited: Mapping[str, Callable[[], None]],
) -> Iterator[None]:
    """Run these functions, each in a thread, until the block ends; then set ``ended`` and wait for them. The threads of
    ``not_awaited`` end soon after that."""
    threads = [threading.Thread(target=target, name=f"{name}-{sink}", daemon=True) for name, target in targets.items()]
    others = [threading.Thread(target=run, name=f"{name}-{sink}", daemon=True) for name, run in not_awaited.items()]
    for thread in (*threads, *others):
        thread.start()
    try:
        yield
    finally:
        state.ended.set()
        state.batch_done.set()
        for thread in threads:
            thread.join()


def listen_to_log(state: QueryState, bell: Bell) -> None:
    """Wake the others as soon as something is published. Closes the bell at the end."""
    try:
        while not state.ended.is_set():
            if state.bell_is_deaf.is_set():
                # A consumer may get nothing for ever from a restarted broker; a new consumer does.
                state.bell_is_deaf.clear()
                bell.close()
            try:
                if bell.rings(_LISTEN_S):
                    spacing_s = POLL_S if state.resting.is_set() else TICK_S
                    state.ended.wait(max(0.0, state.learned_at + spacing_s - time.monotonic()))
                    state.news.set()
                    state.batch_done.set()
            except LockstepError:  # the looks report it
                state.ended.wait(SILENT_S)
    except Exception as error:  # a bug of ours must not leave a job that notices everything late
        state.fail(error)
    finally:
        bell.close()


def follow_watermark(state: QueryState, sink: str, read_progress: Callable[[], bool], report: Reporter) -> None:
    """Raise the watermark when progress records arrive, even while no batch runs. ``read_progress`` reads them, and
    returns whether there were any."""
    waiting = last = False
    while not last:
        was_done = state.batch_done.wait(TICK_S if waiting else QUIET_S)
        state.batch_done.clear()
        last = state.ended.is_set()  # one more look, for what the last batch applied
        try:
            if read_progress():
                state.learned_at = time.monotonic()
                if not was_done:
                    state.bell_is_deaf.set()
                    state.news.set()
            waiting = False
        except DataLost as error:
            state.fail(error)
        except Unavailable as error:
            if not waiting:
                report(SinkWaiting(sink, error.message, TICK_S))
            waiting = True
        except Exception as error:  # a bug of ours must not leave a job whose watermark never moves
            state.fail(error)
        state.woken.set()
        state.looked.set()


def keep_lease(state: QueryState, lease: GenerationLease) -> None:
    """Show others that a job applies to this generation, and pause on request. Ends the query if another job has taken
    over, or the destination was put back."""
    while not state.ended.wait(TICK_S):
        try:
            with state.server_answer.awaited():
                state.server_answer.refusal = beat(lease)
        except Exception as error:  # otherwise batches could wait for ever for whoever requested a pause
            state.fail(error)


def beat(lease: GenerationLease) -> str | None:
    """Send the lease's heartbeat. Returns why the destination didn't take it: the batches use it too, and report what
    is wrong with it. Raises Fenced and DataLost, and no other LockstepError."""
    try:
        lease.heartbeat()
    except (Fenced, DataLost):
        raise
    except LockstepError as error:
        return error.message
    return None


def listen_to_tasks(state: QueryState, serve: Callable[[threading.Event], None]) -> None:
    """Take the reports of long batches. ``serve`` returns when the event is set."""
    try:
        serve(state.ended)
    except Exception as error:  # a batch that can't be ended would go on for ever
        state.fail(error)


def store_reported(state: QueryState, store: Callable[[], Progress]) -> Progress | None:
    """Store what the task of a long batch has applied. None if that fails for now; a lasting failure ends the query. A
    destination that lost data must end it too: otherwise the batch would go on behind the gap."""
    try:
        return store()
    except DataLost as error:
        state.fail(error)
    except Unavailable:
        pass  # the keeper has it, and stores it the next time
    except Exception as error:
        state.fail(error)
    return None


def fill_columns(state: QueryState, fill: Callable[[], None]) -> None:
    """Give older rows the columns that they lack, beside the batches. ``fill`` ends early if the gate closes."""
    try:
        fill()
    except Exception as error:
        state.fail(error)
    finally:
        state.filling.clear()
        state.batch_done.set()  # the watermark may have waited only for this


def report_long_batches(state: QueryState, plan: SinkPlan, report: Reporter) -> None:
    """Report a batch that takes much longer than its rows should, and what is known of the reason."""
    reported_at = 0.0
    while not state.ended.wait(TICK_S):
        under_way, now = state.under_way, time.monotonic()
        if under_way is not None and state.is_overdue(now, reported_at_s=reported_at):
            reported_at = now
            report(
                BatchGoesOn(
                    plan.name,
                    plan.generation,
                    under_way[0],
                    elapsed_s=now - under_way[1],
                    answer_s=state.server_answer.took_s(now),
                    wait_share=processor_wait_share(),
                    refusal=state.server_answer.refusal,
                )
            )


@dataclass(slots=True)
class EarlyEnd:
    """Why a query ends before its job: a ``failure`` is final, anything else lets the next query begin."""

    ending: threading.Event = field(default_factory=threading.Event)
    failure: Exception | None = None


def _now_and_then(look: Callable[[], bool], every_s: float) -> Callable[[], bool]:
    """The same look, at most once in ``every_s``; False in between."""
    looked_s = -math.inf

    def is_due_and_finds() -> bool:
        nonlocal looked_s
        if (now_s := time.monotonic()) - looked_s < every_s:
            return False
        looked_s = now_s
        return look()

    return is_due_and_finds


@contextmanager
def ended_early(
    plan: SinkPlan,
    cluster: TopicAdmin,
    tables: Mapping[TableName, Table],
    topics: TopicWatch,
    *,
    uncopied: Collection[TableName] = (),
    news: threading.Event,
    has_orders: Callable[[], bool] = lambda: False,
) -> Iterator[EarlyEnd]:
    """Set ``ending`` when a table's shape changes, an ``uncopied`` table gets its first shape, ``has_orders`` returns
    True, or a topic isn't the same any more. The last is a ``failure`` too. ``news`` is set when something was
    published, and cleared here."""
    early, over = EarlyEnd(), threading.Event()
    watch = SchemaWatch(cluster, plan.kafka.client(), plan.pipeline, tables, uncopied)
    looks = Looks(len(topics))
    has_other_orders = _now_and_then(has_orders, ORDERS_LOOK_S)

    def has_log_moved() -> bool:
        """Whether the next query must read other shapes. Looks only when that is due."""
        has_news = news.is_set()
        news.clear()
        if not looks.is_due(time.monotonic(), has_news=has_news or topics.has_heard):
            return False
        topics.look(cluster)
        has_moved = watch.has_moved()
        looks.has_looked(time.monotonic())
        return has_moved

    def watch_log() -> None:
        while not over.wait(SCHEMA_LOOK_S) and not early.ending.is_set():
            try:
                if has_log_moved() or has_other_orders():
                    early.ending.set()
            except PositionMismatch as error:
                early.failure = error
                early.ending.set()
            except LockstepError:
                pass  # the batches read the log too, and report when it can't be read
            except Exception as error:  # a bug of ours must not leave a job that looks no more
                early.failure = error
                early.ending.set()

    if not plan.once:
        # Nobody waits for its end, which may take as long as brokers that don't answer.
        threading.Thread(target=watch_log, name=f"schema-{plan.name}", daemon=True).start()
    try:
        yield early
    finally:
        over.set()
