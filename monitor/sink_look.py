"""What a sink's store says of its generations and their jobs."""

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from cdc.pipeline_settings import Pipeline
from jobs.consistency import KnownConsistency, known_consistency
from jobs.generations.lease import LastBeat
from jobs.generations.record import Generation, Record, check_owner, list_generations
from jobs.generations.status import JobStatus, job_statuses
from jobs.generations.view_state import ReportedView, load_view
from monitor.background_question import Asking, answer_s
from monitor.lag import SinkFacts, SourceFacts, has_all_of_kafka
from monitor.verification import Verification, load_verification
from monitor.visible import Visible, VisibleRows
from sinks.contract import OpenedSink, Progress
from sinks.registry import SinkSettings, open_sink, with_definition

_LIST_EVERY_S = 2.0
"""How often to ask the sinks for their generations."""

_JOBS_S = 4.0
"""Extra time once a sink has said how far it is, and only its jobs are still looked at. On an idle machine, what hangs
is then still named within ten seconds, including the time between two looks."""

_NOT_BEGUN = Generation(1, True, None)


@dataclass(frozen=True, slots=True)
class OfGeneration:
    """What a store says of a generation. Each part is None if unknown or not applicable."""

    generation: Generation
    progress: Progress | None = None
    job: JobStatus | None = None
    blocked_by: str | None = None
    view: ReportedView | None = None
    consistency: KnownConsistency | None = None
    visible: Visible | None = None


Answer = Sequence[OfGeneration] | LockstepError


@dataclass(frozen=True, slots=True)
class _Complete:
    """A sink had everything from before ``at_ms`` when it was at this epoch and watermark."""

    epoch: int
    watermark_lsn: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class _BuiltWith:
    """A generation's settings by its record, or today's without one; and those that would give other rows today."""

    record: Record | None
    settings: SinkSettings
    changed: tuple[str, ...]


class SinkLook:
    """Looks at a sink repeatedly, until it is closed."""

    def __init__(self, name: str, settings: SinkSettings, pipeline: str) -> None:
        self._name = name
        self._settings = settings
        self._pipeline = pipeline
        self._asking = Asking[Sequence[OfGeneration]]()
        self._opened_sinks: dict[int, OpenedSink] = {}
        self._listed: tuple[float, list[Generation]] = -math.inf, []
        # The generations of the last answer.
        self._known: Sequence[Generation] = [_NOT_BEGUN]
        self._built: dict[int, _BuiltWith] = {}
        self._still: dict[int, LastBeat] = {}
        self._visible: dict[int, VisibleRows] = {}
        self._complete: dict[int, _Complete] = {}
        # Whether its store has answered the open question.
        self._has_answered = False
        self.verified: Verification | None = None

    def begin(self, *, with_jobs: bool) -> None:
        """Ask how far it is, in a thread of its own."""
        self._asking.begin(partial(self.ask, with_jobs=with_jobs))

    def answer(self, began: float) -> Answer:
        """The answer in time, after it was asked at ``began``. Raises bugs."""
        within_s = answer_s()
        answer = self._asking.wait(began, within_s)
        if answer is None and self._has_answered:
            answer = self._asking.wait(began, within_s + _JOBS_S)
        address = f" at {self._settings.address}" if self._settings.address else ""  # without a password
        if answer is None:
            return Unavailable(f"its server{address} hasn't answered for {self._asking.age_s:.0f} s")
        if not isinstance(answer, LockstepError):
            self._known = [of.generation for of in answer]
        elif isinstance(answer, Unavailable) and address and self._settings.address not in answer.message:
            # not every client names the address
            return Unavailable(f"its server{address}: {answer.message}", hint=answer.hint)
        return answer

    def ask(self, *, with_jobs: bool) -> Sequence[OfGeneration]:
        """How far its generations are and, ``with_jobs``, each job's status. Raises Unavailable or LockstepError."""
        self._has_answered = False
        generations = self._generations()
        self._has_answered = True
        for generation in generations:
            # Both checks fail only this sink: another pipeline's progress says nothing of this one, and the settings of
            # the build must fit today's.
            if generation.record is not None:
                check_owner(self._name, generation.number, generation.record, self._pipeline)
            self._built_with(generation)
        if not generations:
            return []
        first = self._opened(generations[0].number)
        jobs: Mapping[int, JobStatus] = {}
        if with_jobs:
            numbers = [generation.number for generation in generations]
            now_ms = time.time_ns() // 1_000_000
            jobs = job_statuses(first.records, numbers, now_ms=now_ms, sink=self._name, still=self._still)
        blocked_by = first.blocked_by() if jobs else None
        return [self._of(generation, jobs.get(generation.number), blocked_by) for generation in generations]

    def _of(self, generation: Generation, job: JobStatus | None, blocked_by: str | None) -> OfGeneration:
        number, opened = generation.number, self._opened(generation.number)
        progress = opened.generations.load_progress()
        view = None if self._settings.view is None else load_view(opened.records, number)
        consistency = None
        if self._settings.consistent:
            held_tables = () if job is None else job.held_tables
            consistency = known_consistency(
                opened.records, number, progress, held_tables=held_tables, pipeline=self._pipeline
            )
        visible = self._visible_of(generation, progress)
        return OfGeneration(generation, progress, job, blocked_by, view, consistency, visible)

    def _visible_of(self, generation: Generation, progress: Progress | None) -> Visible | None:
        """What queries find, for a live generation whose store shows applied rows only after a while."""
        refreshing = self._opened(generation.number).refreshing
        if progress is None or not generation.is_live or refreshing is None:
            return None
        rows = self._visible.setdefault(generation.number, VisibleRows())
        idle = rows.idle(progress)
        if idle is not None:
            return idle
        try:
            return rows.look(progress, refreshing.refreshes())
        except Unavailable:
            raise
        except LockstepError:  # the role may apply, but not read this
            return None

    def _generations(self) -> list[Generation]:
        """Its generations, the live one first. A sink without any counts as one with its first."""
        listed_at, generations = self._listed
        if time.monotonic() - listed_at > _LIST_EVERY_S:
            generations = list_generations(self._opened(1)) or [_NOT_BEGUN]
            generations.sort(key=lambda generation: not generation.is_live)
            self.verified = load_verification(self._opened(1).records, generations[0].number)
            self._listed = time.monotonic(), generations
        return generations

    def _opened(self, number: int) -> OpenedSink:
        opened = self._opened_sinks.get(number)
        if opened is None:
            opened = self._opened_sinks[number] = open_sink(self._name, self._settings, number)
        return opened

    def unknown(self, generation: Generation, count: int) -> SinkFacts:
        """The facts of one of ``count`` generations, with nothing known. A sink's only generation has the sink's name,
        even before readers see it."""
        return SinkFacts(self._name, generation.number, generation.is_live or count == 1, 0, 0, None, 0)

    def facts(
        self, answer: Answer, pipeline: Pipeline, epoch: int, ends: Mapping[tuple[str, int], int] | None
    ) -> Iterator[SinkFacts]:
        """The facts of its generations. If it couldn't be asked: the generations of the last answer, with nothing
        known.

        Nothing is known either if the watermark is of an epoch before ``epoch``, the newest one. ``ends`` is where the
        topics' partitions end; without it (None) Kafka doesn't answer, and the number of records left is unknown.
        """
        if isinstance(answer, LockstepError):
            yield from [self.unknown(generation, len(self._known)) for generation in self._known]
            return
        for of in answer:
            progress, job = of.progress, of.job
            is_live = self.unknown(of.generation, len(answer)).is_live
            read = {} if progress is None else dict(progress.next_offsets)
            reached = None if progress is None or progress.epoch < epoch else progress
            reported = None if job is None else job.read
            in_hand = None if reported is None else max(0, reported.records - sum(read.values()))
            is_of_epoch = reported is not None and reached is not None and reported.epoch == reached.epoch
            behind, held = (None, 0) if ends is None else self._records_left(of, pipeline, read, ends)
            yield SinkFacts(
                self._name,
                of.generation.number,
                is_live,
                0 if reached is None else reached.watermark_lsn,
                0 if reached is None else reached.commit_time_ms,
                behind,
                0 if progress is None else progress.rejected,
                job,
                records_held=held,
                has_begun=progress is not None,
                is_view=self._settings.view is not None,
                view=of.view,
                joining=() if progress is None else progress.joining,
                consistency=of.consistency,
                read_lsn=reported.lsn if reported is not None and is_of_epoch else 0,
                read_commit_time_ms=reported.commit_time_ms if reported is not None and is_of_epoch else 0,
                in_hand=in_hand,
                visible=of.visible,
            )

    def _records_left(
        self,
        of: OfGeneration,
        pipeline: Pipeline,
        read: Mapping[tuple[str, int], int],
        ends: Mapping[tuple[str, int], int],
    ) -> tuple[int | None, int]:
        """The records that a generation hasn't read, and those of them that wait for held tables."""
        held_tables = {} if of.job is None else of.job.held_tables
        unread = {pipeline.topics().get(table): held for table, held in held_tables.items() if not held.is_read}
        topics = self.topics(of.generation, pipeline)
        topics = [topic for topic in topics if topic not in unread or unread[topic].awaited]
        held = [topic for topic in topics if topic in unread]
        return _records_behind(topics, read, ends), _records_behind(held, read, ends) or 0

    def since_when_complete(self, source: SourceFacts, sink: SinkFacts, epoch: int) -> SinkFacts:
        """The facts with the time before which everything was applied, as of the last look that found it so. 0 if the
        sink has gone back since: its store was put back, or its contents were undone."""
        known = self._complete.get(sink.generation)
        if known is not None and (known.epoch != epoch or sink.watermark_lsn < known.watermark_lsn):
            known = None
        if has_all_of_kafka(source, sink):
            before_ms = 0 if known is None else known.at_ms
            known = _Complete(epoch, sink.watermark_lsn, max(source.complete_ms, before_ms))
            self._complete[sink.generation] = known
        return replace(sink, complete_ms=0 if known is None else known.at_ms)

    def changed_settings(self, facts: SinkFacts) -> tuple[str, ...]:
        """The settings of a live generation that differ from today's configuration."""
        generation = next((known for known in self._known if known.number == facts.generation), None)
        return () if not facts.is_live or generation is None else self._built_with(generation).changed

    def _built_with(self, generation: Generation) -> _BuiltWith:
        """Raises LockstepError if the recorded settings don't fit today's."""
        record = generation.record
        if record is None:
            return _BuiltWith(None, self._settings, ())
        known = self._built.get(generation.number)
        if known is None or known.record != record:
            built = with_definition(self._settings, record.definition)
            known = _BuiltWith(record, built, tuple(record.changed_settings(self._settings)))
            self._built[generation.number] = known
        return known

    def topics(self, generation: Generation, pipeline: Pipeline) -> list[str]:
        tables = self._built_with(generation).settings.tables
        topics = pipeline.topics()
        names = [TableName.parse(table) for table in tables] or pipeline.source.keyed_names
        return [topics[table] for table in names if table in topics]

    def close(self) -> None:
        if self._asking.is_open:  # a connection that a thread waits on ends with the process
            return
        for opened in list(self._opened_sinks.values()):  # a late answer may open one more
            opened.sink.close()


def _records_behind(
    topics: Collection[str], next_offsets: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int]
) -> int | None:
    """None if unknown, as while the brokers don't list a topic: it must not pass for an empty one."""
    if not topics or not {topic for topic, _ in ends}.issuperset(topics):
        return None
    return sum(max(0, end - next_offsets.get(at, 0)) for at, end in ends.items() if at[0] in topics)
