"""What is wrong now, as conditions that each have a name, a subject and a next step. Pure: facts in, conditions out.

A condition has the same name and subject for as long as it is open, so that it is told once. Its sentence may change.
No sentence holds a row's value.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from cdc.model.errors import LockstepError
from cdc.model.times import time_text
from jobs.generations.status import JobState
from monitor.alerts.certificates import Validity
from monitor.alerts.settings import AlertSettings
from monitor.lag import READ, RECEIVED, LagReport, StageState
from monitor.steps import differing_step, rebuild_step
from monitor.stream_queries import RECEIVER_STEP, StreamQueryStatus
from monitor.verification import VerifyOutcome, VerifySettings

_SLOT_MINUTES: Final = 60.0
_CRITICAL_SLOT_MINUTES: Final = 15.0
"""Minutes until the slot is lost: an hour is enough for somebody who is at work, a quarter for who is on call."""

_CERTIFICATE_DAYS: Final = 21.0
_CRITICAL_CERTIFICATE_DAYS: Final = 3.0
"""Who renews by hand needs weeks."""

_CERTIFICATE_SHARE: Final = 1 / 6
_CRITICAL_CERTIFICATE_SHARE: Final = 1 / 20
"""Of its life, where that is less: one of a day or a week renews by itself, with a third of its life left."""

_FREE_PERCENT: Final = 5.0
_CRITICAL_FREE_PERCENT: Final = 2.0
"""Of a disk that Lockstep writes to: file systems keep some of the last 5 % for root."""

RETAINED_WAL_BYTES: Final = 10 * 1024**3
"""WAL that the slot may hold back where ``source.slot_guard`` doesn't say from when it is too much."""

_VIEW_BUILDING_S: Final = 3600.0
"""The state of a view that takes longer is worth a look; `views list` shows how far it is."""

_DAY_MS: Final = 24 * 3600 * 1000

CAPTURE: Final = "capture"
SERVERS: Final = "source-or-kafka"

OF_CAPTURE: Final = (
    "slot-filling",
    "slot-growing",
    "slot-lost",
    "capture-broken",
    "gap",
    "capture-stopped",
    "no-standby",
    "dead-letters-unreadable",
)
OF_LIVE: Final = (
    "lag",
    "sink-unreachable",
    "search-set-aside",
    "searches-silent",
    "verify-differs",
    "verify-failed",
    "verify-overdue",
)
"""Their subject is a sink: only the generation that readers see has them."""
OF_GENERATIONS: Final = (
    "job-stopped",
    "table-failed",
    "rejections-open",
    "rebuild-needed",
    "view-building",
)
"""Their subject is a generation of a sink."""
OF_STREAM_BUILDS: Final = ("stream-query-stopped", "stream-query-undelivered")
"""Their subject is a build of a stream query's result."""
OF_STREAM_QUERIES: Final = (*OF_STREAM_BUILDS, "stream-query-unreachable")
"""Their subject is a stream query, or a build of its result."""

NAMES: Final = (
    *OF_CAPTURE,
    "unreachable",
    "stalled",
    *OF_LIVE,
    *OF_GENERATIONS,
    *OF_STREAM_QUERIES,
    "certificate-expires",
    "disk-filling",
)
"""Every condition that there is."""

_KNOWN_WITHOUT_SERVERS: Final = frozenset({"unreachable", "certificate-expires", "disk-filling", *OF_STREAM_QUERIES})
_KNOWN_WITHOUT_KAFKA: Final = frozenset(
    {
        "slot-filling",
        "slot-growing",
        "capture-stopped",
        "no-standby",
        "job-stopped",
        "table-failed",
        "sink-unreachable",
        "rebuild-needed",
        "view-building",
    }
)
"""Those that are known where neither source nor Kafka answers, and those that are in addition where the source does."""


class Severity(IntEnum):
    """``WARNING``: within days. ``CRITICAL``: now, since readers see old rows or changes are about to be lost."""

    WARNING = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that is wrong. ``since_ms`` is since when, where that is known. ``step`` says what to do.

    ``passes``: it may be over by itself in a moment, so it has to hold for a while before it counts. ``hold_s`` is how
    long at least.
    """

    name: str
    subject: str
    severity: Severity
    sentence: str
    step: str
    since_ms: int | None = None
    passes: bool = False
    hold_s: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.subject

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "subject": self.subject,
            "severity": self.severity.name.lower(),
            "sentence": self.sentence,
            "step": self.step,
            "since_ms": self.since_ms,
        }


@dataclass(frozen=True, slots=True)
class Facts:
    """What no lag report says; each part, or what it says of a subject, is None where nobody could tell.

    ``certificates``: whose -> its validity. ``disks``: directory -> (free, all) bytes. ``has_standby``: whether a
    capture stands by. ``since_ms``: since when somebody compares sinks when that is due. ``stream_queries``: the builds
    of their results.
    """

    certificates: Mapping[str, Validity | None] | None = field(default_factory=dict)
    disks: Mapping[str, tuple[int, int] | None] | None = field(default_factory=dict)
    has_standby: bool | None = None
    since_ms: int | None = None
    stream_queries: Sequence[StreamQueryStatus] | None = ()


@dataclass(frozen=True, slots=True)
class Findings:
    """What is open, and of what nobody can tell now: those conditions stay as they were.

    ``unknown_subjects`` are of any condition. Nothing is known but of ``known_names`` where that isn't None.
    ``unknown_keys`` are names and subjects, or names of which nothing is known.
    """

    open: tuple[Condition, ...]
    unknown_subjects: frozenset[str] = frozenset()
    known_names: frozenset[str] | None = None
    unknown_keys: frozenset[tuple[str, str | None]] = frozenset()

    def is_unknown(self, name: str, subject: str) -> bool:
        return (
            subject in self.unknown_subjects
            or (self.known_names is not None and name not in self.known_names)
            or not self.unknown_keys.isdisjoint(((name, subject), (name, None)))
        )


_NEVER_VERIFIED: Final = VerifySettings()


def find_conditions(
    report: LagReport | LockstepError,
    facts: Facts,
    settings: AlertSettings,
    *,
    now_ms: int,
    verify: VerifySettings = _NEVER_VERIFIED,
    retained_max_bytes: int = RETAINED_WAL_BYTES,
) -> Findings:
    """What is wrong. ``report`` is the error where the source or Kafka has refused.

    ``retained_max_bytes`` is the WAL that the slot may hold back.

    Of a report in which the source is silent only that counts: the rest is as old as the last whole one. Where Kafka
    is, what the source and the sinks say counts as well: the slot fills just then.
    """
    of_facts = [
        *_certificates(facts, now_ms),
        *_disks(facts),
        *_stream_queries(facts),
    ]
    silent = [report] if isinstance(report, LockstepError) else list(report.silent_servers.values())
    if isinstance(report, LockstepError) or silent:
        found = [_unreachable("; ".join(error.message for error in silent)), *of_facts]
        known, subjects = _KNOWN_WITHOUT_SERVERS, frozenset[str]()
        if not isinstance(report, LockstepError) and "source" not in report.silent_servers:
            known, subjects = known | _KNOWN_WITHOUT_KAFKA, frozenset(_unanswered(report))
            told = (*_capture(report, facts, settings), *_sinks(report), *_views(report, now_ms))
            found += [*_slot(report, retained_max_bytes), *(each for each in told if each.name in _KNOWN_WITHOUT_KAFKA)]
        return Findings(tuple(found), subjects, known, frozenset(_unasked(facts, settings)))
    found = [
        *_slot(report, retained_max_bytes),
        *_capture(report, facts, settings),
        *_lag(report, settings),
        *_sinks(report),
        *_views(report, now_ms),
        *_searches(report),
        *_stalled(report),
        *_verified(report, facts, verify, now_ms),
        *of_facts,
    ]
    unknown = _unanswered(report)
    unknown |= {stage.name for stage in report.stages if stage.state is StageState.UNKNOWN}
    keys = {*_unasked(facts, settings), *_begun(report), *(("lag", label) for label in _unmeasured(report))}
    return Findings(tuple(found), frozenset(unknown), unknown_keys=frozenset(keys))


def _unanswered(report: LagReport) -> set[str]:
    """The generations that couldn't be asked, by their labels."""
    return {
        stage.sink.label for stage in report.stages if stage.sink is not None and stage.sink.name in report.unanswered
    }


def _unasked(facts: Facts, settings: AlertSettings) -> Iterator[tuple[str, str | None]]:
    """Conditions of which no fact says anything."""
    for name, known in (("certificate-expires", facts.certificates), ("disk-filling", facts.disks)):
        if known is None:
            yield name, None
        else:
            yield from ((name, subject) for subject, fact in known.items() if fact is None)
    if settings.standby and facts.has_standby is None:
        yield "no-standby", CAPTURE
    if facts.stream_queries is None:
        yield from ((name, None) for name in OF_STREAM_QUERIES)
    for status in facts.stream_queries or ():
        if status.problem is not None:
            yield from ((name, status.label) for name in OF_STREAM_BUILDS)


def _begun(report: LagReport) -> Iterator[tuple[str, str]]:
    """A capture that begins may end again before it reads the slot, each time that somebody starts it."""
    if any(stage.state is StageState.STARTING for stage in report.stages if stage.name == RECEIVED):
        yield "capture-stopped", CAPTURE


def _unmeasured(report: LagReport) -> set[str]:
    """Live generations that answer, and of which nobody can tell how far they are behind, by their labels."""
    return {
        stage.sink.label
        for stage in report.stages
        if stage.sink is not None
        and stage.sink.is_live
        and stage.seconds_behind is None
        and stage.sink.name not in report.unanswered
    }


def _unreachable(reason: str) -> Condition:
    return Condition(
        "unreachable",
        SERVERS,
        Severity.CRITICAL,
        f"the pipeline can't be looked at: {reason}",
        "`lockstep doctor` looks at every server",
        passes=True,
    )


def _slot(report: LagReport, retained_max_bytes: int) -> Iterator[Condition]:
    is_lost = report.wal_status in (None, "lost")
    for sentence in report.broken:
        yield Condition(
            "slot-lost" if is_lost else "capture-broken",
            CAPTURE,
            Severity.CRITICAL,
            sentence,
            "`lockstep doctor` says what to do, and `lockstep recover` goes on from there",
        )
        break
    if report.gap is not None and report.gap.is_open:
        yield Condition("gap", CAPTURE, Severity.CRITICAL, f"gap: {report.gap}", "`lockstep recover` closes it")
    if is_lost:
        return
    minutes = report.minutes_until_full
    is_unreserved = report.wal_status == "unreserved"
    if report.safe_wal_bytes is not None and (is_unreserved or (minutes is not None and minutes < _SLOT_MINUTES)):
        is_critical = is_unreserved or (minutes is not None and minutes < _CRITICAL_SLOT_MINUTES)
        in_minutes = "" if minutes is None else f", in about {minutes:.0f} minutes at the rate of now"
        yield Condition(
            "slot-filling",
            CAPTURE,
            Severity.CRITICAL if is_critical else Severity.WARNING,
            f"the slot is lost after {max(0, report.safe_wal_bytes):,} more bytes of WAL{in_minutes}",
            "let capture run, or raise max_slot_wal_keep_size; `lockstep lag` shows which stage holds it up",
            passes=not is_unreserved,
        )
    if report.retained_bytes is not None and report.retained_bytes > retained_max_bytes:
        yield Condition(
            "slot-growing",
            CAPTURE,
            Severity.WARNING,
            f"the slot holds back {report.retained_bytes:,} bytes of WAL on the source's disk",
            "let capture run; `lockstep lag` shows which stage holds it up",
            passes=True,
        )


def _capture(report: LagReport, facts: Facts, settings: AlertSettings) -> Iterator[Condition]:
    # Before there is a slot nothing is held back, and nobody reads it while capture is at work on the first copy.
    # A paused copy beside the stream explains nothing: capture goes on.
    # Where Kafka is silent, nobody knows whether a capture that is there copies.
    # One that has begun will read it.
    expected = (StageState.STARTING, StageState.BUILDING, StageState.PAUSED, StageState.UNKNOWN)
    received = [stage for stage in report.stages if stage.name == RECEIVED]
    is_copied = all(stage.state not in expected for stage in received)
    is_expected = report.wal_status is not None and is_copied and not report.first_copy_paused
    if report.slot_active is False and is_expected and not report.broken:
        yield Condition(
            "capture-stopped",
            CAPTURE,
            Severity.CRITICAL,
            "nobody reads the slot: changes wait in the source's WAL",
            next((stage.hint for stage in received if stage.hint), "`lockstep run` or `lockstep capture` starts it"),
            passes=True,
        )
    if settings.standby and facts.has_standby is False:
        yield Condition(
            "no-standby",
            CAPTURE,
            Severity.WARNING,
            "no capture stands by: nobody takes over where the one that runs ends",
            "start `lockstep capture --standby` on another machine",
            passes=True,
        )
    if report.unreadable_dead_letters:
        yield Condition(
            "dead-letters-unreadable",
            CAPTURE,
            Severity.WARNING,
            f"{report.unreadable_dead_letters:,} records of the dead-letter topic can't be read",
            "`lockstep rejections list` says why",
        )


def _is_before_the_stream(report: LagReport) -> bool:
    """Whether the first copy isn't done, or hasn't begun: no sink can have anything of the stream by then."""
    states = (StageState.BUILDING, StageState.PAUSED)
    return any(stage.name == RECEIVED and (stage.state in states or stage.lsn is None) for stage in report.stages)


def _seconds_behind(report: LagReport) -> dict[str, float]:
    """How far readers of live generations are behind, by their labels: by what queries find, where that is known."""
    behind: dict[str, float] = {}
    for stage in report.stages:  # of one generation, what queries find comes last
        sink = stage.generation
        if sink is not None and sink.is_live and stage.seconds_behind is not None and not stage.name.startswith(READ):
            behind[sink.label] = max(stage.seconds_behind, behind.get(sink.label, 0.0))
    return behind


def _lag(report: LagReport, settings: AlertSettings) -> Iterator[Condition]:
    def lag(label: str, sentence: str, hold_s: float = 0.0) -> Condition:
        step = "`lockstep lag` shows which stage holds it up"
        return Condition("lag", label, Severity.WARNING, sentence, step, passes=True, hold_s=hold_s)

    for label, behind_s in _seconds_behind(report).items():
        if behind_s > settings.lag_s:
            yield lag(label, f"readers of {label} may lack what was committed in the last {behind_s:.0f} s")
    if not _is_before_the_stream(report):
        for label in sorted(_unmeasured(report)):
            yield lag(label, f"nobody knows how far readers of {label} are behind", settings.lag_s)


def _sinks(report: LagReport) -> Iterator[Condition]:
    for name, error in report.unanswered.items():
        yield Condition(
            "sink-unreachable",
            name,
            Severity.CRITICAL,
            f"{name} can't be asked: {error.message}",
            "`lockstep doctor` looks at every server",
            passes=True,
        )
    for label, job in report.idle.items():
        if job.needs_somebody:
            yield Condition(
                "job-stopped",
                label,
                Severity.CRITICAL,
                (job.sentence(label) or "").partition("\n")[0],
                job.hint or job.start_again,
                job.since_ms,
                passes=True,  # after a restart the reason of the last end stays until the job is at work again
            )
    for sink in (stage.sink for stage in report.stages if stage.sink is not None):
        asides = [] if sink.job is None else sink.job.by_need
        failed = [(table, aside) for table, aside in asides if aside.has_failed]
        if failed:
            table, aside = failed[0]
            others = f", and {len(failed) - 1} more" if failed[1:] else ""
            yield Condition(
                "table-failed",
                sink.label,
                Severity.CRITICAL,
                f"{sink.label} goes on without a table: {aside.why(str(table))}{others}",
                aside.next_step(sink.name, str(table)) or "`lockstep lag` shows it",
                aside.since_ms,
            )
    for label, count in report.open_rejections.items():
        if count:
            yield Condition(
                "rejections-open",
                label,
                Severity.WARNING,
                f"{label} refused {count:,} rows, which it lacks",
                "`lockstep rejections list` says why, and `lockstep rejections retry` tries again",
            )
    for query, count in report.refused_rows.items():
        yield Condition(
            "rejections-open",
            query,
            Severity.WARNING,
            f"the webhook of stream query {query} refused {count:,} rows, which it lacks",
            f"`lockstep rejections list {query}` says why, and `lockstep rejections retry {query}` posts them again",
        )
    for label, names in report.rebuild_needed.items():
        yield Condition(
            "rebuild-needed",
            label,
            Severity.WARNING,
            f"{label} was built with other {', '.join(names)}",
            rebuild_step(label),
        )


def _views(report: LagReport, now_ms: int) -> Iterator[Condition]:
    """What the jobs of views have told. A view that is behind, and a disk that fills up, have their own conditions."""
    for sink in (stage.sink for stage in report.stages if stage.sink is not None):
        if sink.view is None:
            continue
        figures = sink.view.figures
        is_at_work = sink.job is not None and sink.job.state is JobState.RUNNING
        if figures.building is not None and is_at_work:
            began_ms = figures.building.began_ms
            if now_ms - began_ms > _VIEW_BUILDING_S * 1000:
                yield Condition(
                    "view-building",
                    sink.label,
                    Severity.WARNING,
                    f"{sink.label} is being built since {time_text(began_ms)}: {figures.building.sentence}",
                    "`lockstep views list` shows how far it is; readers see what the sink has from before",
                    began_ms,
                )


def _searches(report: LagReport) -> Iterator[Condition]:
    for name, searches in report.searches.items():
        if searches.is_silent:
            yield Condition(
                "searches-silent",
                name,
                Severity.CRITICAL,
                f"nobody tells of the {searches.count:,} standing searches of {name}"
                + (f": {searches.waiting}" if searches.waiting else ""),
                f"`lockstep run` does with searches = true in [sinks.{name}], or `lockstep searches watch {name}`",
                passes=True,
            )
        if searches.set_aside:
            first = min(searches.set_aside)
            others = len(searches.set_aside) - 1
            yield Condition(
                "search-set-aside",
                name,
                Severity.WARNING,
                f"nobody is told of the search {first} of {name}"
                + (f", nor of {others:,} others" if others else "")
                + f": {searches.set_aside[first]}",
                f"`lockstep searches list {name}` shows all; remove it, and add it with another query",
                passes=True,
            )


def _verified(report: LagReport, facts: Facts, verify: VerifySettings, now_ms: int) -> Iterator[Condition]:
    views = {stage.sink.label for stage in report.stages if stage.sink is not None and stage.sink.is_view}
    for label, verification in report.verified.items():
        if verification.outcome is VerifyOutcome.DIFFERENT:
            yield Condition(
                "verify-differs",
                label,
                Severity.CRITICAL,
                f"{label} differs from the source in {verification.differing:,} keys",
                f"`lockstep verify {label}` shows them, and {differing_step(label, is_view=label in views)}",
                verification.ended_ms,
            )
        elif verification.outcome is VerifyOutcome.FAILED:
            yield Condition(
                "verify-failed",
                label,
                Severity.WARNING,
                f"{label} couldn't be compared with the source: {verification.error}",
                f"`lockstep verify {label}` tries again",
                verification.ended_ms,
            )
    if verify.every_ms is None or facts.since_ms is None:
        return
    for stage in report.stages:
        sink = stage.sink
        if sink is None or not sink.is_live:
            continue
        last = report.verified.get(sink.label)
        began_ms = max(facts.since_ms, 0 if last is None else last.began_ms)
        due_ms = verify.overdue_since(began_ms, now_ms)
        if due_ms is not None:
            yield Condition(
                "verify-overdue",
                sink.label,
                Severity.WARNING,
                f"{sink.label} was to be compared with the source at {time_text(due_ms)}, and no comparison has begun",
                f"`lockstep verify {sink.label}` does it now; the log says why none was begun",
            )


def _stalled(report: LagReport) -> Iterator[Condition]:
    """Stages that say of themselves that their input moves and they don't."""
    for stage in report.stages:
        if stage.state is StageState.STALLED:
            yield Condition(
                "stalled",
                stage.name,
                Severity.CRITICAL,
                f"{stage.name} is stalled" + ("" if stage.reason is None else f": {stage.reason}"),
                stage.hint or "`lockstep lag` shows its state",
                stage.since_ms,
            )


def _stream_queries(facts: Facts) -> Iterator[Condition]:
    unreachable = {status.name: status for status in facts.stream_queries or () if status.problem is not None}
    for name, status in unreachable.items():
        yield Condition(
            "stream-query-unreachable",
            name,
            Severity.CRITICAL,
            f"the result of stream query {name} can't be looked at: {status.reason}",
            status.hint,
            passes=True,
        )
    for status in facts.stream_queries or ():
        if status.problem is None and status.why_undelivered:
            yield Condition(
                "stream-query-undelivered",
                status.label,
                Severity.CRITICAL,
                f"rows of stream query {status.label} don't get to its webhook: {status.why_undelivered}",
                RECEIVER_STEP,
                status.posted.since_ms,
                passes=True,
            )
        if status.problem is None and status.needs_somebody:
            yield Condition(
                "stream-query-stopped",
                status.label,
                Severity.CRITICAL,
                f"stream query {status.label} isn't run any more: {status.reason}",
                status.hint,
                status.since_ms,
                passes=True,  # after a restart the reason of the last end stays until the job is at work again
            )


def _certificates(facts: Facts, now_ms: int) -> Iterator[Condition]:
    for whose, validity in (facts.certificates or {}).items():
        if validity is None:
            continue
        days, life_days = (validity.until_ms - now_ms) / _DAY_MS, (validity.until_ms - validity.from_ms) / _DAY_MS
        critical_days = min(_CRITICAL_CERTIFICATE_DAYS, life_days * _CRITICAL_CERTIFICATE_SHARE)
        if days < min(_CERTIFICATE_DAYS, life_days * _CERTIFICATE_SHARE):
            yield Condition(
                "certificate-expires",
                whose,
                Severity.CRITICAL if days < critical_days else Severity.WARNING,
                f"{whose}: the certificate " + ("has expired" if days < 0 else f"expires in {_duration(days)}"),
                "renew it; processes that run need a restart where they have read it from a file",
            )


def _duration(days: float) -> str:
    return f"{days:.0f} days" if days >= 2 else f"{days * 24:.0f} hours"


def _disks(facts: Facts) -> Iterator[Condition]:
    for directory, disk in (facts.disks or {}).items():
        if disk is None:
            continue
        free, size = disk
        percent = 100 * free / size if size else 100.0
        if percent < _FREE_PERCENT:
            yield Condition(
                "disk-filling",
                directory,
                Severity.CRITICAL if percent < _CRITICAL_FREE_PERCENT else Severity.WARNING,
                f"the disk of {directory} has {free:,} bytes left, {percent:.0f} %",
                "make room there, or move the directory to a larger disk",
                passes=True,
            )
