"""Posts the rows of a stream query's result to its webhook: each at least once, in the order of the result's topic.

The topic holds the rows while the receiver takes none, so no row is lost, however long that is. The progress is stored
with the result about once a second and whenever something is in the way. After a kill, the rows since then are posted
again with the same ids.

A row that the receiver refuses because of its content becomes a rejection, and later rows go on. It is stored as a dead
letter before the next row is posted. ``extensions.streams.jobs.row_delivery`` decides whether the row is the cause.

Of several jobs, only the one that began to post last posts, whichever build it works on. The job of an earlier build
may hang, and learn of the newer one too late: its rows would take the receiver back.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from cdc.model.errors import Fenced, LockstepError, Unavailable
from extensions.streams.jobs.build_posting import TICK_S, BuildPosting, Closed, Erased
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.posting_progress import PostingProgress, Replaced
from extensions.streams.jobs.refused_rows import TooManyRefused
from jobs.executor.result import Failure
from jobs.generations.batch_gate import BatchGate
from jobs.generations.lease import GenerationLease

_LOOK_S: Final = 2.0

_CLOSE_S: Final = 15.0
"""Longer than a receiver may take for a row. A thread that waits longer for Kafka posts nothing afterwards."""

_WAIT_FIRST_S: Final = 1.0
_WAIT_MAX_S: Final = 60.0


class RowPoster:
    """Posts in a thread of its own, until ``close``. Safe for several threads.

    ``failure`` says why it ended by itself: the receiver refuses too many rows, or another job has begun to post;
    otherwise None. ``generations`` returns the builds to post, the oldest first, and is called at each look; each
    build's rows are posted before the next one's. ``said`` is called with the reason why nothing gets through when it
    changes.
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
        self.failure: TooManyRefused | Unavailable | None = None
        self._name = plan.name
        self._generations = generations
        self._said = said
        self._wait_first_s = wait_first_s
        self._changed = threading.Condition()
        self._is_woken = True
        self._is_closing = False
        self._ends_when_done = False
        self._at_work: int | None = None
        """The build whose rows are being posted or were last."""
        self._gate = BatchGate()
        lease.guard(self._gate)
        self._progress = PostingProgress(plan, lease)
        self._posting = BuildPosting(
            plan, lease, self._progress, gate=self._gate, pause=self._pause, wait_first_s=wait_first_s
        )
        self._thread = threading.Thread(target=self._work, name=f"post-{plan.name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def finish(self, stop: threading.Event, *, while_waiting: Callable[[], None]) -> None:
        """Return once all present rows are posted or ``stop`` is set. Raises as ``while_waiting`` and ``check``."""
        with self._changed:
            self._ends_when_done = self._is_woken = True
            self._changed.notify_all()
        while self._thread.is_alive() and not stop.is_set():
            self._thread.join(TICK_S)
            while_waiting()
        self.check()

    def check(self) -> None:
        """Raises why it ended by itself: TooManyRefused, or Unavailable if another job posts."""
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Post no more. The next job posts the rest."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._gate.close(0)
        self._thread.join(_CLOSE_S)
        self._posting.close()

    def has_posted(self, generation: int) -> bool:
        """Whether the receiver has all rows of a build that gets no more. Raises what store and brokers raise."""
        return self._progress.has_posted(generation)

    def _work(self) -> None:
        tries, reason = 0, ""
        while True:
            try:
                if not tries:
                    self._await_rows()
                self._post_all()
            except Erased:
                tries, reason = 0, ""
                with self._changed:
                    self._is_woken = True
                continue
            except (Closed, Fenced):  # the job that fenced this one posts the rest
                return
            except Replaced:
                self.failure = Unavailable(f"another job has begun to post rows of stream query {self._name!r}")
                return
            except TooManyRefused as error:
                self._keep_reason(error.message)
                self.failure = error
                return
            except Exception as error:
                # Bugs too: nobody restarts this thread, and no row may be skipped.
                failure = Failure.of(error)
                self._keep_reason(failure.message)
                is_bug = not isinstance(error, LockstepError)
                now = failure.message if is_bug or failure.hint is None else f"{failure.message}: {failure.hint}"
            else:
                tries, reason = 0, ""
                if self._ends_when_done and not self._is_woken:  # nothing has come since this pass began
                    return
                continue
            tries = 0 if self._posting.has_moved else tries
            self._posting.has_moved = False
            wait_s = min(self._wait_first_s * 2.0 ** min(tries, 16), _WAIT_MAX_S)
            tries += 1
            if now != reason:
                self._said(now, wait_s)
            reason = now
            try:
                self._pause(wait_s)
            except Closed:
                return

    def _await_rows(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_woken or self._is_closing, _LOOK_S)
            if self._is_closing:
                raise Closed
            self._is_woken = False

    def _post_all(self) -> None:
        self._progress.begin()
        for generation in self._generations():
            self._at_work = generation
            self._posting.post(generation)

    def _keep_reason(self, reason: str) -> None:
        if self._at_work is not None:
            self._progress.keep_reason(self._at_work, reason)

    def _pause(self, seconds: float) -> None:
        """Raises Closed if posting has to end."""
        with self._changed:
            if self._changed.wait_for(lambda: self._is_closing, seconds):
                raise Closed
