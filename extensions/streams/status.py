"""What each stream query has done, and whether a job runs it. Asks only the results' stores. A store that hangs is
reported as silent after some seconds. The others are reported meanwhile.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cdc.model.closing import Closing
from cdc.model.errors import LockstepError, Unavailable, bug
from cdc.model.times import time_text
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.posted import Posted
from extensions.streams.jobs.records import posted_name, waiting_name
from extensions.streams.jobs.resume import Figures, load_figures
from jobs.generations.lease import LastBeat
from jobs.generations.record import Phase
from jobs.generations.status import JobState, JobStatus, job_statuses
from monitor.background_question import Question
from sinks.contract import OpenedSink

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S: Final = 10.0
"""How long to wait for each store. Detecting that a killed job is gone takes several seconds of it."""

WAITING: Final = "waiting"
"""The state of a running job whose topic doesn't exist."""

UNKNOWN: Final = "unknown"
"""The state if the store couldn't be asked."""

STATES: Final = (*(state.value for state in JobState), WAITING)
"""Every known state."""

_DOCTOR: Final = "`lockstep doctor` looks at every server"
RECEIVER_STEP: Final = (
    "mend the receiver, or the query's `webhook`: the rows wait in their topic, and are posted in order"
)


@dataclass(frozen=True, slots=True)
class StreamQueryStatus:
    """One build of a query's result. ``generation`` is None if there is no build, or if the store is unknown.

    ``is_only`` means that there is no other build. ``waits_for`` says what a running job waits for. ``problem`` says
    why the store couldn't be asked; the other fields are then from its last answer. ``posted`` is the webhook's
    progress.
    """

    name: str
    side_topic: str
    generation: int | None = None
    is_live: bool = False
    job: JobStatus | None = None
    figures: Figures = field(default_factory=Figures)
    problem: LockstepError | None = None
    waits_for: str | None = None
    is_only: bool = False
    posted: Posted = field(default_factory=Posted)

    @property
    def label(self) -> str:
        """The query's name, with the number of a build that readers don't see."""
        is_known_by_name = self.is_live or self.is_only or self.generation is None
        return self.name if is_known_by_name else f"{self.name} g{self.generation}"

    @property
    def needs_somebody(self) -> bool:
        return self.problem is not None or (self.job is not None and self.job.needs_somebody)

    @property
    def state(self) -> str:
        if self.problem is not None:
            return UNKNOWN
        if self.job is None:
            return JobState.ABSENT.value
        return WAITING if self._is_waiting else self.job.state.value

    @property
    def _is_waiting(self) -> bool:
        return self.waits_for is not None and self.job is not None and self.job.state is JobState.RUNNING

    @property
    def in_hand(self) -> int | None:
        """How many records the job has read without having written their results; None if unknown."""
        read = None if self.job is None or self.problem is not None else self.job.read
        return None if read is None else max(0, read.records - sum(self.figures.offsets.values()))

    @property
    def since_ms(self) -> int | None:
        """Since when nothing moves, in milliseconds since 1970; None if unknown."""
        return None if self.job is None or self.problem is not None else self.job.since_ms

    @property
    def reason(self) -> str:
        """Why nothing moves; "" if all is well."""
        if self.problem is not None:
            return self.problem.message
        if self._is_waiting:
            return self.waits_for or ""
        if self.job is not None and self.job.state is JobState.SILENT:
            return (
                f"its job ended without a word, or hangs; its last sign of life was at {time_text(self.job.since_ms)}"
            )
        reason = "" if self.job is None else self.job.reason or ""
        return reason or self.why_undelivered

    @property
    def why_undelivered(self) -> str:
        """Why the webhook lacks rows that exist; "" if nothing is in the way."""
        if not self.posted.reason:
            return ""
        return f"{self.posted.reason}; {self.posted.waiting:,} rows wait for it"

    @property
    def hint(self) -> str:
        """What to do about it; empty if there is nothing to do."""
        if self.problem is not None:
            return self.problem.hint or _DOCTOR
        if self.why_undelivered and self.reason == self.why_undelivered:
            return RECEIVER_STEP
        if self.job is None or not self.job.needs_somebody:
            return ""
        return self.job.hint or self.job.start_again

    def to_json(self) -> dict[str, Any]:
        figures = self.figures.to_json()
        del figures["starts"]
        figures["offsets"] = {
            f"{topic}-{partition}": offset for (topic, partition), offset in self.figures.offsets.items()
        }
        return {
            "stream_query": self.name,
            "generation": self.generation,
            "is_live": self.is_live,
            "state": self.state,
            "since_ms": self.since_ms,
            "reason": self.reason or None,
            "hint": self.hint or None,
            "in_hand": self.in_hand,
            "side_topic": self.side_topic,
            "posted": self.posted.posted,
            "undelivered": self.posted.waiting,
            "rejected": self.posted.rejected,
            **figures,
        }


class _Store:
    """The store of one query's result. It is opened once, and again after an error."""

    def __init__(self, plan: StreamQueryPlan) -> None:
        self._plan = plan
        self._opened: OpenedSink | None = None
        self._question: Question[list[StreamQueryStatus]] | None = None
        self._still: dict[int, LastBeat] = {}
        self._said = ""
        self._known = [StreamQueryStatus(plan.name, plan.side_topic.name, is_only=True)]

    def ask(self) -> None:
        """Ask, unless an earlier question is still open."""
        self._question = self._question or Question(self._ask)

    def answer(self, until: float) -> list[StreamQueryStatus]:
        """The answer, by ``until`` of the monotonic clock at the latest."""
        assert self._question is not None
        asked_at, age_s = self._question.asked_at, self._question.age_s
        # A store that hasn't answered for long is known to hang, and isn't waited for again.
        answer: list[StreamQueryStatus] | LockstepError | None
        try:
            answer = self._question.wait(max(0.0, min(until, asked_at + ANSWER_TIMEOUT_S) - time.monotonic()))
        except Exception as error:
            # An error of one store: the others are reported all the same, and this one is asked again.
            answer = bug(error)
            if answer.message != self._said:
                logger.exception("stream query %s can't be looked at, which is tried again", self._plan.name)
                self._said = answer.message
        else:
            self._said = ""
        if answer is None:
            answer = Unavailable(f"its store hasn't answered for {max(age_s, ANSWER_TIMEOUT_S):.0f} s")
        else:
            self._question = None
        if isinstance(answer, LockstepError):
            return [replace(status, problem=answer) for status in self._known]
        self._known = answer
        return answer

    def close(self) -> None:
        # A connection that a thread waits on ends with the process.
        if self._question is None and self._opened is not None:
            self._opened.sink.close()

    def _ask(self) -> list[StreamQueryStatus]:
        try:
            return self._statuses(self._opened or self._open())
        except BaseException:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.sink.close()
            raise

    def _open(self) -> OpenedSink:
        # The object of any generation can be asked for all of them.
        self._opened = self._plan.opened(1)
        return self._opened

    def _statuses(self, opened: OpenedSink) -> list[StreamQueryStatus]:
        generations = [each for each in self._plan.builds(opened) if each.phase is not Phase.RETIRED]
        jobs = job_statuses(
            opened.records,
            [each.number for each in generations],
            now_ms=time.time_ns() // 1_000_000,
            still=self._still,
        )
        has_webhook = self._plan.query.webhook is not None
        name, topic, is_only = self._plan.name, self._plan.side_topic.name, len(generations) == 1
        return [
            StreamQueryStatus(
                name,
                topic,
                each.number,
                each.is_live,
                jobs[each.number],
                load_figures(opened.records.load, each.number),
                waits_for=opened.records.load(waiting_name(each.number)),
                is_only=is_only,
                posted=Posted.parse(opened.records.load(posted_name(each.number))) if has_webhook else Posted(),
            )
            for each in generations
        ] or [StreamQueryStatus(name, topic, is_only=True)]


class StreamQueryCollector(Closing):
    """Asks all stores at once on each call of ``look``."""

    def __init__(self, plans: Sequence[StreamQueryPlan]) -> None:
        self._stores = [_Store(plan) for plan in plans]

    def look(self) -> list[StreamQueryStatus]:
        """Each build of each query, except builds that are being dropped. If a store can't be asked, for whatever
        reason, its query's status says so; the others are reported.
        """
        for store in self._stores:
            store.ask()
        until = time.monotonic() + ANSWER_TIMEOUT_S
        return [status for store in self._stores for status in store.answer(until)]

    def close(self) -> None:
        for store in self._stores:
            store.close()
