"""A command's turn to post rows of a query's result to its webhook. The query's jobs post none meanwhile.

A command that posts an older build's row first looks whether a newer build has another row of its key. Without a turn,
the job could post that row between the look and the post, and the older row would take the receiver back.

``stream_posting_pause`` is a coordination record of the query, for all builds: each job posts nothing until the record
is gone, as ``g<n>.pause_request`` works for the jobs of a sink. A job that starts meanwhile obeys before its first row.
No job obeys for longer than ``PAUSE_MAX_S``, since the command may have died.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Final, TypeVar

from cdc.model.errors import Unavailable
from cdc.model.timeouts import PAUSE_MAX_S
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.records import POSTING_PAUSE
from jobs.generations.lease import SILENCE_S, SYSTEM_CLOCK, Clock, wait_for_pauses
from jobs.generations.record import Generation
from sinks.contract import CoordinationRecords, OpenedSink

_TURN_S: Final = PAUSE_MAX_S / 3
"""How long a turn lasts. The rest of the pause is longer than a receiver may take for a row."""

_GONE_S: Final = PAUSE_MAX_S + SILENCE_S
"""A request this old that was never renewed is from a command that was killed while no job ran."""

_LOOK_S: Final = 0.2

_LOOKS: Final = 3
"""How many turns one look may take if each turn is too short for it."""

_Found = TypeVar("_Found")


class PostingTurn:
    """One command's turns, one after the other. For one thread. ``say`` is called if another command has its turn.
    ``opened`` may be of any build; ``builds`` lists all builds.
    """

    def __init__(
        self,
        opened: OpenedSink,
        query: str,
        *,
        builds: Callable[[], Sequence[Generation]],
        say: Callable[[str], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._opened = opened
        self._query = query
        self._builds = builds
        self._say = say
        self._clock = clock
        self._request: str | None = None
        self._began_s = 0.0

    @property
    def records(self) -> CoordinationRecords:
        return self._opened.records

    def take(self) -> bool:
        """Return when no job posts, and none will for as long as one row may take. Returns whether this is another turn
        than the last, so that other commands may have had turns in between. Raises Unavailable if a job doesn't let go,
        and what ``builds`` and the destination raise.
        """
        is_another = False
        while not self._is_in_force():
            is_another = True
            self._builds()  # raises for a build of another pipeline before any job is asked
            self._ask()
            self._await_jobs()
        return is_another

    def looked(self, look: Callable[[bool], _Found]) -> _Found:
        """Take a turn, and return what ``look`` finds within it; results from before the turn may be outdated. ``look``
        gets whether other commands may have had turns since its last call. After it, as much time is left as after
        ``take``. Raises what ``take`` and ``look`` raise, and Unavailable if each look takes longer than a turn.
        """
        is_another = self.take()
        for _ in range(_LOOKS):
            found = look(is_another)
            if not (is_another := self.take()):
                return found
        raise Unavailable(
            f"to look what there is of {self._query} takes longer than a turn to post its rows, {_TURN_S:.0f} s",
            hint="run the same command again when Kafka and the result's store have less to do",
        )

    def end(self) -> None:
        """Let jobs post again. Raises what the destination raises."""
        if self._request is not None and self.records.load(POSTING_PAUSE) == self._request:
            self.records.save(POSTING_PAUSE, None)
        self._request = None

    def _is_in_force(self) -> bool:
        is_recent = self._clock.monotonic_s() - self._began_s < _TURN_S
        return self._request is not None and is_recent and self.records.load(POSTING_PAUSE) == self._request

    def _ask(self) -> None:
        """Create our request, once there is none of another command."""
        request, others, since_s = uuid.uuid4().hex, None, 0.0
        while True:
            began_s = self._clock.monotonic_s()
            if self.records.create(POSTING_PAUSE, request):
                break
            known = self.records.load(POSTING_PAUSE)
            if known is None:
                continue
            is_gone = known == others and began_s - since_s > _GONE_S
            if known == self._request or is_gone:
                self.records.save(POSTING_PAUSE, request)
                break
            if known != others:
                if others is None:
                    self._say(
                        f"another command posts rows of {self._query} just now, or was killed while it did: this one"
                        f" waits, for {_GONE_S:.0f} s at most in the second case"
                    )
                others, since_s = known, began_s
            self._clock.sleep(_LOOK_S)
        self._request, self._began_s = request, began_s

    def _await_jobs(self) -> None:
        assert self._request is not None
        builds = [each.number for each in self._builds()]
        try:
            wait_for_pauses(self.records, builds, self._request, self._clock)
        except Unavailable as error:
            raise Unavailable(
                f"the job of stream query {self._query!r} doesn't let go of the row that it posts: {error.message}",
                hint="`lockstep streams list` says what its receiver does; nothing was posted beside it",
            ) from None


@contextmanager
def posting_turns(
    plan: StreamQueryPlan, *, say: Callable[[str], None], clock: Clock = SYSTEM_CLOCK
) -> Iterator[PostingTurn]:
    """Turns to post this query's rows, until the block ends. No job is asked before ``take``. Raises as the
    destination.
    """
    opened = plan.opened(1)
    with closing(opened.sink):
        turn = PostingTurn(opened, plan.name, builds=partial(plan.builds, opened), say=say, clock=clock)
        try:
            yield turn
        finally:
            turn.end()
