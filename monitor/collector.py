"""Collects the facts of the lag report: asks the source, Kafka and every sink, over connections that stay open."""

import collections
import contextlib
import math
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self

import psycopg

from cdc.kafka.control_topics import ProgressReader, read_state
from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.kafka.topic_names import STATE, control_topic
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.lsn import Lsn, parse_lsn
from cdc.model.table import TableName
from cdc.pipeline import Pipeline
from cdc.postgres.connection import connect, connection_error
from cdc.postgres.dsn import parse_dsn
from cdc.postgres.slot import (
    CAPTURE_SESSIONS,
    SLOT_SESSIONS,
    CaptureSession,
    emit_heartbeat,
    find_capture,
    system_identifier,
)
from cdc.processor import machine_slowdown
from cdc.protocol.control_records import CaptureState, Gap, ProgressRecord, SnapshotPhase
from cdc.stream.slot_guard import wal_rate
from jobs.consistency import KnownConsistency, known_consistency
from jobs.generations.lease import LastBeat
from jobs.generations.record import Generation, Record, check_owner, list_generations
from jobs.generations.status import JobStatus, job_statuses
from jobs.generations.view_state import ToldView, load_told
from monitor.lag import (
    APPLIED,
    IN_KAFKA,
    RECEIVED,
    VISIBLE,
    LagReport,
    SinkFacts,
    SourceFacts,
    elsewhere,
    has_all_of_kafka,
    report,
)
from monitor.open_rejections import OpenRejections
from monitor.question import Question
from monitor.searches import SearchesWatch, StandingSearches
from monitor.stalls import Look, Stalls, unreachable
from monitor.verification import Verification, load_verification
from monitor.visible import Visible, VisibleRows
from sinks.contract import OpenedSink, Progress
from sinks.registry import SinkSettings, load_client, open_sink, with_definition

APPLICATION = "lockstep lag"

_LIST_EVERY_S = 2.0
"""How often the sinks are asked which generations they have."""

_ANSWER_TIMEOUT_S = 4.0
"""How long a report waits for each server. One that hangs is so named in time, and the others are shown."""

_SLOWDOWN_MAX = 3.0
"""So many times as long on a machine that is busy: the answer may wait for this process. The page's looks stay fresh.
"""

_JOBS_S = 4.0
"""So much longer where a sink has said how far it is, and only its jobs are still looked at. On a machine that isn't
busy, what hangs then is named within ten seconds too, the time between two looks included."""

_HEARTBEAT_S = 4.0
"""Where nothing newer was committed, the source gets a heartbeat: who then hangs is seen to."""

_RATE_LOOKS = 60
"""Over how many reports the WAL's rate is measured: about a minute of ``lag --watch``."""

_SILENT_S = 25.0
"""After so long without a status update, what capture said last counts for nothing: it sends one every two seconds."""

_STATE_EVERY_S = 3.0
"""How often the state is read while a table lacks its copy: its topic holds a record for each range of a first copy."""

_TABLES_EVERY_S = 10.0
"""How often it is asked which tables are captured, where nobody says so: capture's state has to be read for that."""

_NOT_BEGUN = Generation(1, True, None)

_Progresses = list[
    tuple[
        Generation,
        Progress | None,
        JobStatus | None,
        str | None,
        ToldView | None,
        KnownConsistency | None,
        Visible | None,
    ]
]
_Answer = _Progresses | LockstepError
_Asking = Literal["source", "others"]


@dataclass(frozen=True, slots=True)
class _Complete:
    """That a sink had everything of before ``at_ms`` when it was at this epoch and watermark."""

    epoch: int
    watermark_lsn: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class _BuiltWith:
    """The settings of a generation by its record, and in which of them rows may be others than today's say.

    Without a record, they are today's.
    """

    record: Record | None
    settings: SinkSettings
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _OfKafka:
    """What Kafka says in a look. ``copying`` is as of a few seconds ago at most, None where no table lacks its copy."""

    published: ProgressRecord | None
    ends: Mapping[tuple[str, int], int]
    open_rejections: Mapping[tuple[str, int], int]
    copying: CaptureState | None


class LagCollector:
    """Collects reports, one after the other, until it is closed.

    A server that is down or hangs is named in the report, and its stages are unknown. Where it is Kafka, the report has
    what the source and the sinks say. Each stage has a state by what earlier reports have seen of it.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        sinks: Mapping[str, SinkSettings],
        *,
        resolve: Callable[[Pipeline], Pipeline] = lambda pipeline: pipeline,
    ) -> None:
        """``sinks`` are the settings of the sinks that reports are about, by their names.

        ``resolve`` asks which tables are captured, and raises LockstepError as ``collect``. It is needed where there
        are patterns that nobody has resolved yet, and called again and again: tables may join, and named ones leave.
        """
        self._configured = pipeline
        self._resolve = resolve
        self._resolved_at = -math.inf
        self._resolved_for = ""
        self._pipeline = pipeline
        self._settings = sinks
        self._connection: psycopg.Connection[Any] | None = None
        self._cluster = TopicAdmin(pipeline.kafka.client())
        self._progress: ProgressReader | None = None
        self._published: ProgressRecord | None = None
        self._sinks: dict[tuple[str, int], OpenedSink] = {}
        self._questions: dict[str, Question[_Progresses]] = {}
        self._of_kafka: Question[_OfKafka] | None = None
        self._asked_sinks = False
        self._built: dict[tuple[str, int], _BuiltWith] = {}
        self._listed: dict[str, tuple[float, list[Generation]]] = {}
        self._known: dict[str, list[Generation]] = {}
        self._verified: dict[str, Verification | None] = {}
        self._searches = {
            name: SearchesWatch.of_sink(name, settings) for name, settings in sinks.items() if settings.has_searches
        }
        self._found_searches: dict[str, StandingSearches | None] = {}
        self._still: dict[str, dict[int, LastBeat]] = {}
        self._open = OpenRejections(pipeline, self._cluster)
        self._state: tuple[int | None, CaptureState | None] = None, None
        self._copying: tuple[float, CaptureState | None] = -math.inf, None
        self._identity: tuple[str | None, str] = None, ""
        self._looks: collections.deque[tuple[float, Lsn]] = collections.deque(maxlen=_RATE_LOOKS)
        self._complete: dict[tuple[str, int], _Complete] = {}
        self._visible: dict[tuple[str, int], VisibleRows] = {}
        self._stalls = Stalls()
        self._whole: Question[LagReport] | None = None
        self._asking: _Asking = "source"
        self._hangs: _Asking | None = None
        self._last: LagReport | None = None
        self._answered: dict[str, bool] = {}
        self._ends: dict[tuple[str, int], int] = {}
        self._most_read: dict[str, int] = {}  # by sink and generation, as their jobs tell
        self._heartbeat_at = -math.inf

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline with the tables of the last report. Before one has found them, its patterns are unresolved."""
        return self._pipeline

    def collect(self, *, with_jobs: bool = True) -> LagReport:
        """The lag now. Raises LockstepError when the source or Kafka refuses.

        ``with_jobs`` says of each sink whether a job applies to it. That takes seconds where one was killed.
        """
        is_open = self._whole is not None and self._asking == self._hangs
        whole = self._whole = self._whole or Question(partial(self._collect, with_jobs=with_jobs))
        try:
            answer = whole.wait(0.0) if is_open else self._wait(whole)
        except Exception:
            self._whole = None  # or it would say the same for ever
            raise
        if answer is None:
            answer = Unavailable(f"{self._source_server()} hasn't answered for {whole.age_s:.0f} s")
        else:
            self._whole = None
        if isinstance(answer, LagReport):
            self._last, self._hangs = answer, None
            return answer
        if not isinstance(answer, Unavailable):
            raise answer
        answer = _named(answer, self._source_server())
        stages = unreachable(self._last, self._settings, answer.message, now_ms=time.time_ns() // 1_000_000)
        last = self._last or LagReport((), None, None, {})
        self._hangs = self._asking if self._whole is not None else None
        self._last = replace(last, stages=stages, silent_servers={})
        return replace(self._last, silent_servers={"source": answer})

    def _wait(self, whole: Question[LagReport]) -> LagReport | LockstepError | None:
        """Wait until it is answered, or the source hasn't for too long. Others have limits of their own."""
        asking, since = self._asking, time.monotonic()
        while (answer := whole.wait(0.05)) is None:
            if self._asking != asking or self._asking == "others":
                asking, since = self._asking, time.monotonic()
            elif time.monotonic() - since > _answer_s():
                break
        return answer

    def _source_server(self) -> str:
        dsn = parse_dsn(self._pipeline.source.dsn)
        return f"the source at {dsn.get('host', 'its socket')}:{dsn.get('port', 5432)}"

    def _collect(self, *, with_jobs: bool) -> LagReport:
        self._asking = "source"
        if not self._looks:
            self._look(self._wal_end())  # so that the first report has a rate too
        if with_jobs:
            self._heartbeat()
        self._asking = "others"
        # Against the flow: a stage that is asked earlier can't be ahead of one that is asked later.
        answers = self._ask_sinks(with_jobs=with_jobs)
        self._asking = "source"
        complete_lsn, is_slot_lost = self._complete_lsn()
        self._asking = "others"
        kafka = self._ask_kafka(answers, is_slot_lost=is_slot_lost)
        self._asking = "source"
        if isinstance(kafka, Unavailable):
            return self._report_without_kafka(kafka, answers, complete_lsn)
        published, copying = kafka.published, kafka.copying
        epoch = 0 if published is None else published.epoch
        facts_of_sinks = self._facts_of_all(answers, epoch, kafka.ends)
        source = self._source(published, complete_lsn, copying)
        sinks = [self._since_when_complete(source, facts, epoch) for facts in facts_of_sinks]
        lag = replace(
            self._report(source, sinks, answers, epoch),
            open_rejections={
                facts.label: kafka.open_rejections.get((facts.name, facts.generation), 0) for facts in sinks
            },
            unreadable_dead_letters=self._open.unreadable,
            refused_rows=self._open.of_webhooks,
            paused_copies=_paused_copies(copying),
            first_copy_paused=copying is not None and copying.first_copy_paused,
        )
        return self._judged(lag, source, answers, is_copying=copying is not None)

    def _report_without_kafka(
        self, silent: Unavailable, answers: Mapping[str, _Answer], complete_lsn: Lsn | None
    ) -> LagReport:
        """What the source and the sinks say, and what was published by the last look that could ask Kafka."""
        published = self._published
        epoch = 0 if published is None else published.epoch
        sinks = self._facts_of_all(answers, epoch, None)
        source = self._source(published, complete_lsn, None)
        if source.published_lsn is None:
            source = replace(source, published_lsn=complete_lsn)
        lag = replace(self._report(source, sinks, answers, epoch), silent_servers={"kafka": silent})
        return self._judged(lag, source, answers, is_copying=False, silent_kafka=silent.message)

    def _facts_of_all(
        self, answers: Mapping[str, _Answer], epoch: int, ends: Mapping[tuple[str, int], int] | None
    ) -> list[SinkFacts]:
        return [facts for name, answer in answers.items() for facts in self._facts(name, answer, epoch, ends)]

    def _report(
        self, source: SourceFacts, sinks: Sequence[SinkFacts], answers: Mapping[str, _Answer], epoch: int
    ) -> LagReport:
        """What doesn't come from Kafka."""
        unanswered = {name: answer for name, answer in answers.items() if isinstance(answer, LockstepError)}
        return replace(
            report(source, sinks, now_ms=time.time_ns() // 1_000_000),
            rejected={facts.label: facts.rejected for facts in sinks if facts.name not in unanswered},
            rebuild_needed={facts.label: names for facts in sinks if (names := self._changed_settings(facts))},
            unanswered=unanswered,
            verified={
                facts.label: verification.in_epoch(epoch)
                for facts in sinks
                if facts.is_live and (verification := self._verified.get(facts.name)) is not None
            },
            searches={
                name: searches
                for name, searches in self._found_searches.items()
                if searches is not None and name not in unanswered
            },
        )

    def _ask_kafka(self, answers: Mapping[str, _Answer], *, is_slot_lost: bool) -> _OfKafka | Unavailable:
        """What Kafka says, or why it can't be asked. Raises LockstepError where it refuses.

        A question of an earlier look that still waits isn't waited for again, and its answer is too old to be taken:
        Kafka is asked after the sinks.
        """
        began, answer_s = time.monotonic(), _answer_s()
        while True:
            question = self._of_kafka = self._of_kafka or Question(
                partial(self._look_at_kafka, answers, is_slot_lost=is_slot_lost)
            )
            try:
                answer = question.wait(max(0.0, min(began, question.asked_at) + answer_s - time.monotonic()))
            except Exception:
                self._of_kafka = None
                raise
            server = f"Kafka at {self._pipeline.kafka.bootstrap_servers}"
            if answer is None:
                return Unavailable(f"{server} hasn't answered for {question.age_s:.0f} s")
            self._of_kafka = None
            if question.asked_at < began:
                continue
            if isinstance(answer, Unavailable):
                return _named(answer, server)
            if isinstance(answer, LockstepError):
                raise answer
            return answer

    def _look_at_kafka(self, answers: Mapping[str, _Answer], *, is_slot_lost: bool) -> _OfKafka:
        """Raises Unavailable and LockstepError."""
        self._look_for_tables()
        published = self._newest_progress()
        ends = self._topic_ends(answers)
        counts = self._open.counts()
        self._look_at_state(published, is_slot_lost=is_slot_lost)
        return _OfKafka(published, ends, counts, self._while_copying(published))

    def _judged(
        self,
        lag: LagReport,
        source: SourceFacts,
        answers: Mapping[str, _Answer],
        *,
        is_copying: bool,
        silent_kafka: str | None = None,
    ) -> LagReport:
        look = self._judged_by(source, answers, time.time_ns() // 1_000_000, is_copying=is_copying)
        return self._stalls.judge(lag, replace(look, silent_kafka=silent_kafka))

    def _judged_by(self, source: SourceFacts, answers: Mapping[str, _Answer], now_ms: int, *, is_copying: bool) -> Look:
        """What this look has seen move, and what holds others up."""
        signs: dict[str, Hashable] = {}
        in_kafka = source.published_lsn, source.complete_lsn, sum(self._ends.values())
        signs[IN_KAFKA] = in_kafka
        signs[RECEIVED] = source.received_lsn, in_kafka
        left_out: set[str] = set()
        blocked: dict[str, str] = {}
        for name, answer in answers.items():
            if isinstance(answer, LockstepError):
                continue
            for generation, progress, job, blocked_by, *_, visible in answer:
                label = SinkFacts(name, generation.number, generation.is_live or len(answer) == 1, 0, 0, None, 0).label
                if progress is not None:
                    # A job that begins again tells of less, or nothing: that is no move.
                    told = 0 if job is None or job.read is None else job.read.records
                    read = self._most_read[label] = max(told, self._most_read.get(label, 0))
                    signs[f"{APPLIED}{label}"] = sum(progress.next_offsets.values()), progress.watermark_lsn, read
                    if progress.skipped:
                        left_out.add(label)
                if visible is not None:
                    signs[f"{VISIBLE}{label}"] = visible
                if blocked_by is not None:
                    blocked[label] = blocked_by
        return Look(
            time.monotonic(),
            now_ms,
            source,
            signs,
            self._pipeline.slot,
            is_copying,
            frozenset(left_out),
            blocked,
            {name: settings.events_per_s for name, settings in self._settings.items()},
            {
                name: settings.visible_after_s
                for name, settings in self._settings.items()
                if settings.visible_after_s is not None
            },
            slowdown=machine_slowdown(),
        )

    def _heartbeat(self) -> None:
        """Have something committed where a stage could hang without anybody's noticing: nobody lacks anything.

        Only while a capture reads the slot: nobody would see it, and the WAL would grow for nothing.
        """
        now = time.monotonic()
        last_commit_ms = 0 if self._published is None else self._published.commit_time_ms
        is_fresh = time.time_ns() // 1_000_000 - last_commit_ms < _HEARTBEAT_S * 1000
        if now - self._heartbeat_at < _HEARTBEAT_S or is_fresh or self._connection is None:
            return
        (is_read,) = self._query(
            "select exists (select from pg_replication_slots where slot_name = %s and active)", self._pipeline.slot
        )
        if is_read:
            self._heartbeat_at = now
            with contextlib.suppress(psycopg.Error, LockstepError):  # a server that only reads, for instance
                emit_heartbeat(self._connection)

    def _ask_sinks(self, *, with_jobs: bool) -> dict[str, _Answer]:
        """Ask all sinks at once, each in its own thread, so that one that hangs delays the report by little."""
        if not self._asked_sinks:  # a server isn't to blame for the time that this takes
            for settings in self._settings.values():
                load_client(settings)
            self._asked_sinks = True
        for name in self._settings:
            if name not in self._questions:
                self._questions[name] = Question(partial(self._ask, name, with_jobs=with_jobs))
        began, answer_s = time.monotonic(), _answer_s()
        answers: dict[str, _Answer] = {}
        for name in self._settings:
            question = self._questions[name]
            # One that has been asked for long is known to hang: it isn't waited for again.
            try:
                answer = question.wait(max(0.0, min(began, question.asked_at) + answer_s - time.monotonic()))
                if answer is None and self._answered.get(name):
                    answer = question.wait(max(0.0, began + answer_s + _JOBS_S - time.monotonic()))
            except Exception:
                del self._questions[name]
                raise
            if answer is None:
                address = _address(self._settings[name])
                answers[name] = Unavailable(f"its server{address} hasn't answered for {question.age_s:.0f} s")
                continue
            del self._questions[name]
            answers[name] = _with_address(answer, _address(self._settings[name]))
            if not isinstance(answer, LockstepError):
                self._known[name] = [generation for generation, *_ in answer]
        return answers

    def _ask(self, name: str, *, with_jobs: bool) -> _Progresses:
        """How far a sink's generations are, and ``with_jobs`` whether a job applies to each.

        Raises Unavailable or LockstepError.
        """
        self._answered[name] = False
        generations = self._generations(name)
        self._answered[name] = True
        if name in self._searches:
            self._found_searches[name] = self._searches[name].look()
        for generation in generations:
            # Both raise for this sink alone: another pipeline's progress says nothing of this one, and what was built
            # with other settings has to go with today's.
            if generation.record is not None:
                check_owner(name, generation.number, generation.record, self._configured.name)
            self._built_with(name, generation)
        if not generations:
            return []
        jobs: Mapping[int, JobStatus] = {}
        if with_jobs:
            jobs = job_statuses(
                self._opened(name, generations[0].number).records,
                [generation.number for generation in generations],
                now_ms=time.time_ns() // 1_000_000,
                sink=name,
                still=self._still.setdefault(name, {}),
            )
        blocked_by = self._opened(name, generations[0].number).blocked_by() if jobs else None
        return [
            (
                generation,
                progress,
                jobs.get(generation.number),
                blocked_by,
                self._told_view(name, generation.number),
                self._consistency(name, generation.number, progress, jobs.get(generation.number)),
                self._visible_of(name, generation, progress),
            )
            for generation in generations
            for progress in [self._opened(name, generation.number).generations.load_progress()]
        ]

    def _told_view(self, name: str, number: int) -> ToldView | None:
        """What the job of a view has told of it."""
        return None if self._settings[name].view is None else load_told(self._opened(name, number).records, number)

    def _visible_of(self, name: str, generation: Generation, progress: Progress | None) -> Visible | None:
        """What queries find, where that isn't all that was applied from the moment on. Of what readers see alone."""
        if progress is None or not generation.is_live:
            return None
        rows = self._visible.setdefault((name, generation.number), VisibleRows())
        idle = rows.idle(progress)
        if idle is not None:
            return idle
        try:
            refreshes = self._opened(name, generation.number).refreshes()
        except Unavailable:
            raise
        except LockstepError:  # a role that may apply, and not ask this
            refreshes = None
        return None if refreshes is None else rows.look(progress, refreshes)

    def _consistency(
        self, name: str, number: int, progress: Progress | None, job: JobStatus | None
    ) -> KnownConsistency | None:
        """As of when its tables are, where it is to be consistent."""
        if not self._settings[name].consistent:
            return None
        records, asides = self._opened(name, number).records, () if job is None else job.asides
        return known_consistency(records, number, progress, asides=asides, pipeline=self._pipeline.name)

    def close(self) -> None:
        for (name, _), opened in list(self._sinks.items()):  # A late answer may open one more.
            if name not in self._questions:  # A connection that a thread waits on ends with the process.
                opened.sink.close()
        for name, searches in self._searches.items():
            if name not in self._questions:
                searches.close()
        if self._of_kafka is None and self._progress is not None:  # the same
            self._progress.close()
        if self._whole is None and self._connection is not None:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _complete_lsn(self) -> tuple[Lsn | None, bool]:
        """Up to where everything is in Kafka, as capture says, and whether the slot is gone or lost.

        None where capture doesn't run, or gives no sign of life. The time of its last sign is by the clock of its
        machine: PostgreSQL doesn't keep when one came.
        """
        complete, is_slot_lost = self._query(
            "select (select r.replay_lsn::text from pg_replication_slots s"
            " join pg_stat_replication r on r.pid = s.active_pid"
            " where s.slot_name = %s and r.reply_time > clock_timestamp() - %s::float8 * interval '1 s'),"
            " not exists (select from pg_replication_slots"
            " where slot_name = %s and coalesce(wal_status, '') <> 'lost')",
            self._pipeline.slot,
            str(_SILENT_S),
            self._pipeline.slot,
        )
        return (parse_lsn(complete) if complete else None), is_slot_lost

    def _since_when_complete(self, source: SourceFacts, sink: SinkFacts, epoch: int) -> SinkFacts:
        """The facts with the time before which everything was applied at the last look that found it so.

        Nothing is known so of a sink that has gone back since: its store was put back, or what is there was undone.
        """
        at = (sink.name, sink.generation)
        known = self._complete.get(at)
        if known is not None and (known.epoch != epoch or sink.watermark_lsn < known.watermark_lsn):
            known = None
        if has_all_of_kafka(source, sink):
            before_ms = 0 if known is None else known.at_ms
            known = self._complete[at] = _Complete(epoch, sink.watermark_lsn, max(source.complete_ms, before_ms))
        return replace(sink, complete_ms=0 if known is None else known.at_ms)

    def _source(
        self, newest: ProgressRecord | None, complete_lsn: Lsn | None, copying: CaptureState | None
    ) -> SourceFacts:
        """``copying`` was read before: what it says of the slot is so by now."""
        row = self._query(
            "select pg_current_wal_insert_lsn()::text, s.active, r.write_lsn::text,"
            " pg_wal_lsn_diff(pg_current_wal_insert_lsn(), s.restart_lsn)::bigint,"
            " case when s.slot_name is not null then coalesce(s.wal_status, 'reserved') end, s.safe_wal_size,"
            " case when a.state = 'active' then coalesce(a.wait_event, '') else 'idle' end, r.reply_time::text,"
            f" {_blocker_of(CAPTURE_SESSIONS)}, {_blocker_of(SLOT_SESSIONS)}"
            " from (select 1) one left join pg_replication_slots s on s.slot_name = %s"
            " left join pg_stat_replication r on r.pid = s.active_pid"
            " left join pg_stat_activity a on a.pid = s.active_pid",
            *(3 * [self._pipeline.slot]),
        )
        wal_end, active, received, retained, wal_status, safe_wal_size, walsender, told_at, *blockers = row
        blocked_by, slot_waits_for = (blocker and f"pid {blocker}" for blocker in blockers)
        capture = self._capture()
        (first_s, first_end), (last_s, last_end) = self._looks[0], self._look(parse_lsn(wal_end))
        return SourceFacts(
            last_end,
            parse_lsn(received) if received else None,
            newest.lsn if newest is not None and newest.lsn else None,
            newest.commit_time_ms if newest is not None and newest.lsn else None,
            bool(active),
            retained,
            wal_status,
            safe_wal_size,
            wal_rate(bytes_written=last_end - first_end, seconds=last_s - first_s),
            *self._of_state(is_slot_lost=wal_status in (None, "lost")),
            complete_lsn=complete_lsn,
            complete_ms=self._complete_as_of_ms(complete_lsn),
            copied_from_lsn=(
                copying.end_lsn if copying is not None and copying.phase is SnapshotPhase.COPYING else None
            ),
            walsender=walsender,
            blocked_by=blocked_by,
            slot_waits_for=slot_waits_for,
            is_captured=capture is not None,
            captured_silent_s=None if capture is None else capture.silent_s,
            told_at=told_at,
            commit_interval_ms=(newest.commit_interval_ms or None) if newest is not None else None,
        )

    def _complete_as_of_ms(self, complete_lsn: Lsn | None) -> int:
        """When the WAL was last seen to end no later than there, in milliseconds since 1970; 0 where it never was."""
        seen = [at for at, wal_end in self._looks if complete_lsn is not None and wal_end <= complete_lsn]
        if not seen:
            return 0
        return time.time_ns() // 1_000_000 - math.ceil((time.monotonic() - seen[-1]) * 1000)

    def _look_at_state(self, newest: ProgressRecord | None, *, is_slot_lost: bool) -> None:
        """Read capture's state once in each epoch, and while the slot is lost.

        Else no gap comes up, and the source doesn't become another server.
        """
        if newest is not None and (is_slot_lost or self._state[0] != newest.epoch):
            pipeline = self._pipeline
            state = read_state(pipeline.kafka.client(), pipeline.name, pipeline.slot)
            is_settled = state is not None and state.epoch == newest.epoch and state.phase is SnapshotPhase.DONE
            self._state = (newest.epoch if is_settled else None), state

    def _of_state(self, *, is_slot_lost: bool) -> tuple[Gap | None, tuple[str, ...]]:
        """The newest gap, and how the source isn't the one that was published from."""
        state = self._state[1]
        if state is None:
            return None, ()
        gaps = state.gaps_now(is_slot_lost=is_slot_lost)
        system_id, database = self._identity
        return gaps[-1] if gaps else None, elsewhere(state, system_id=system_id, database=database)

    def _while_copying(self, newest: ProgressRecord | None) -> CaptureState | None:
        """The state of a few seconds ago at most, while a configured table lacks its copy; else None."""
        pipeline = self._pipeline
        if newest is not None and not set(newest.uncopied) & set(pipeline.topics().values()):
            return None
        read_s, state = self._copying
        if time.monotonic() - read_s > _STATE_EVERY_S:
            state = None
            if newest is not None or self._cluster.exists(control_topic(pipeline.name, STATE)):
                state = read_state(pipeline.kafka.client(), pipeline.name, pipeline.slot)
            self._copying = time.monotonic(), state
        return state

    def _wal_end(self) -> Lsn:
        (wal_end,) = self._query("select pg_current_wal_insert_lsn()::text")
        return parse_lsn(wal_end)

    def _look(self, wal_end: Lsn) -> tuple[float, Lsn]:
        """Remember where the WAL ended, and when."""
        look = time.monotonic(), wal_end
        self._looks.append(look)
        return look

    def _capture(self) -> CaptureSession | None:
        assert self._connection is not None  # it has answered
        try:
            return find_capture(self._connection, self._pipeline.slot)
        except psycopg.OperationalError as error:
            raise connection_error(error) from error

    def _query(self, sql: str, *parameters: str) -> tuple[Any, ...]:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = connect(self._pipeline.source, application=APPLICATION)
                self._identity = system_identifier(self._connection), self._connection.info.dbname
            row = self._connection.execute(sql.encode(), parameters).fetchone()
        except psycopg.OperationalError as error:
            raise connection_error(error) from error
        assert row is not None
        return tuple(row)

    def _look_for_tables(self) -> None:
        """See which tables are captured, now and then. Raises as ``resolve``.

        Where all are named, they are others only after a progress record has said so.
        """
        selection = "" if self._published is None else self._published.selection
        is_known = self._published is not None and self._configured.source.is_resolved
        is_other = selection not in ("", self._resolved_for)
        if not is_other and (time.monotonic() - self._resolved_at < (math.inf if is_known else _TABLES_EVERY_S)):
            return
        found = self._resolve(self._configured)
        self._resolved_at, self._resolved_for = time.monotonic(), selection
        if self._pipeline.source.is_resolved and found.source.table_names == self._pipeline.source.table_names:
            return
        self._pipeline = found
        if self._progress is not None:  # it follows the progress of the tables that there were
            self._progress.close()
            self._progress = None

    def _newest_progress(self) -> ProgressRecord | None:
        if self._progress is None:
            name = self._pipeline.name
            topics = tuple(self._pipeline.topics().values())
            if not set(topics) <= self._cluster.partition_counts(topics, must_see=True).keys():
                return None  # Capture has never run.
            self._progress = ProgressReader(self._pipeline.kafka.client(), name, topics)
        for record in self._progress.new_records():
            self._published = record
        return self._published

    def _generations(self, name: str) -> list[Generation]:
        """A sink's generations, the live one first. A sink that has none yet counts as one with its first."""
        listed_at, generations = self._listed.get(name, (-math.inf, []))
        if time.monotonic() - listed_at > _LIST_EVERY_S:
            generations = list_generations(self._opened(name, 1)) or [_NOT_BEGUN]
            generations.sort(key=lambda generation: not generation.is_live)
            self._verified[name] = load_verification(self._opened(name, 1).records, generations[0].number)
            self._listed[name] = time.monotonic(), generations
        return generations

    def _opened(self, name: str, number: int) -> OpenedSink:
        opened = self._sinks.get((name, number))
        if opened is None:
            opened = self._sinks[name, number] = open_sink(name, self._settings[name], number)
        return opened

    def _facts(
        self, name: str, answer: _Answer, epoch: int, ends: Mapping[tuple[str, int], int] | None
    ) -> Iterator[SinkFacts]:
        """The facts of a sink's generations. Where it couldn't be asked: those that it had last, with nothing known.

        Nothing is known either of one whose watermark is of an epoch before ``epoch``, the newest one. ``ends`` is
        where the topics' partitions end, None where Kafka doesn't answer: nobody knows then how many records are left.
        """
        generations = self._known.get(name, [_NOT_BEGUN])
        if isinstance(answer, LockstepError):
            for generation in generations:
                is_live = generation.is_live or len(generations) == 1
                yield SinkFacts(name, generation.number, is_live, 0, 0, None, 0)
            return
        for generation, progress, job, _, view, consistency, visible in answer:
            # A sink's only generation goes by the sink's name, before readers see it too.
            is_live = generation.is_live or len(answer) == 1
            read = {} if progress is None else dict(progress.next_offsets)
            reached = None if progress is None or progress.epoch < epoch else progress
            told = None if job is None else job.read
            in_hand = None if told is None else max(0, told.records - sum(read.values()))
            is_of_epoch = told is not None and reached is not None and told.epoch == reached.epoch
            behind, held = (None, 0) if ends is None else self._records_left(name, generation, read, job, ends)
            yield SinkFacts(
                name,
                generation.number,
                is_live,
                0 if reached is None else reached.watermark_lsn,
                0 if reached is None else reached.commit_time_ms,
                behind,
                0 if progress is None else progress.rejected,
                job,
                records_held=held,
                has_begun=progress is not None,
                is_view=self._settings[name].view is not None,
                view=view,
                joining=() if progress is None else progress.joining,
                consistency=consistency,
                read_lsn=told.lsn if told is not None and is_of_epoch else 0,
                read_commit_time_ms=told.commit_time_ms if told is not None and is_of_epoch else 0,
                in_hand=in_hand,
                visible=visible,
            )

    def _records_left(
        self,
        name: str,
        generation: Generation,
        read: Mapping[tuple[str, int], int],
        job: JobStatus | None,
        ends: Mapping[tuple[str, int], int],
    ) -> tuple[int | None, int]:
        """The records that a generation hasn't read, and those of them that wait for tables which are set aside."""
        asides = {} if job is None else job.asides
        unread = {self._pipeline.topics().get(table): aside for table, aside in asides.items() if not aside.is_read}
        topics = [topic for topic in self._topics(name, generation) if topic not in unread or unread[topic].awaited]
        held = [topic for topic in topics if topic in unread]
        return _records_behind(topics, read, ends), _records_behind(held, read, ends) or 0

    def _changed_settings(self, facts: SinkFacts) -> tuple[str, ...]:
        """The settings of a live generation that are different in today's configuration."""
        generations = self._known.get(facts.name, [])
        generation = next((known for known in generations if known.number == facts.generation), None)
        if not facts.is_live or generation is None:
            return ()
        return self._built_with(facts.name, generation).changed

    def _built_with(self, name: str, generation: Generation) -> _BuiltWith:
        """Raises LockstepError where what is recorded of it doesn't go with today's settings."""
        settings, record = self._settings[name], generation.record
        if record is None:
            return _BuiltWith(None, settings, ())
        known = self._built.get((name, generation.number))
        if known is None or known.record != record:
            built = with_definition(settings, record.definition)
            known = _BuiltWith(record, built, tuple(record.changed_settings(settings)))
            self._built[name, generation.number] = known
        return known

    def _topics(self, name: str, generation: Generation) -> list[str]:
        """The topics that a generation reads."""
        tables = self._built_with(name, generation).settings.tables
        topics = self._pipeline.topics()
        names = [TableName.parse(table) for table in tables] or self._pipeline.source.keyed_names
        return [topics[table] for table in names if table in topics]

    def _topic_ends(self, answers: Mapping[str, _Answer]) -> Mapping[tuple[str, int], int]:
        """Where the partitions end that any of these sinks reads; those that the brokers don't list are left out."""
        read = {
            topic: None
            for name, answer in answers.items()
            if not isinstance(answer, LockstepError)
            for generation, *_ in answer
            for topic in self._topics(name, generation)
        }
        if not read:
            return {}
        counts = self._cluster.partition_counts(read)
        ends = self._cluster.end_offsets(partitions_of([topic for topic in read if topic in counts], counts))
        self._ends |= ends
        return ends


def _answer_s() -> float:
    """How long a server has to answer, as busy as this machine is now."""
    return _ANSWER_TIMEOUT_S * min(machine_slowdown(), _SLOWDOWN_MAX)


def _records_behind(
    topics: Collection[str], next_offsets: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int]
) -> int | None:
    """None where it isn't known, as while the brokers don't list a topic: it must not pass for an empty one."""
    if not topics or not {topic for topic, _ in ends}.issuperset(topics):
        return None
    return sum(max(0, end - next_offsets.get(at, 0)) for at, end in ends.items() if at[0] in topics)


def _blocker_of(sessions: str) -> str:
    """SQL: who holds what one of these sessions waits for. They are given as the SQL of their processes."""
    return (
        "(select b.pid || ' (' || coalesce(b.application_name, '') || ')' from pg_stat_activity c"
        " cross join lateral unnest(pg_blocking_pids(c.pid)) as by (pid) join pg_stat_activity b on b.pid = by.pid"
        f" where c.pid in ({sessions}) and c.wait_event_type = 'Lock' limit 1)"
    )


def _named(error: Unavailable, server: str) -> Unavailable:
    """The error with the server that it is about."""
    return error if error.message.startswith(server) else Unavailable(f"{server}: {error.message}", hint=error.hint)


def _address(settings: SinkSettings) -> str:
    """Where a sink's server is, without a password."""
    return f" at {settings.address}" if settings.address else ""


def _with_address(answer: _Answer, address: str) -> _Answer:
    """The answer, where it is that a server can't be reached with where that is: not every client says so."""
    if not isinstance(answer, Unavailable) or not address or address.removeprefix(" at ") in answer.message:
        return answer
    return Unavailable(f"its server{address}: {answer.message}", hint=answer.hint)


def _paused_copies(state: CaptureState | None) -> tuple[str, ...]:
    copying = {} if state is None else state.copying
    return tuple(str(name) for name, copy in copying.items() if copy.paused)
