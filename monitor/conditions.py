"""What is wrong now, as conditions that each have a name, a subject and a next step. Pure: facts in, conditions out. A
condition has the same name and subject for as long as it is open, so that it is reported once. Its sentence may change.
No sentence holds a row's value."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

from cdc.model.errors import LockstepError
from cdc.model.times import time_text
from jobs.generations.status import JobState
from monitor.certificates import Validity
from monitor.condition_settings import ConditionSettings
from monitor.lag import READ, RECEIVED, LagReport, StageState
from monitor.next_steps import differing_step, rebuild_step
from monitor.verification import VerifyOutcome

_SLOT_MINUTES: Final = 60.0
_CRITICAL_SLOT_MINUTES: Final = 15.0
"""Minutes until the slot is lost: an hour is enough for somebody at work, a quarter for somebody on call."""

_CERTIFICATE_DAYS: Final = 21.0
_CRITICAL_CERTIFICATE_DAYS: Final = 3.0
"""Renewing by hand takes weeks."""

_CERTIFICATE_SHARE: Final = 1 / 6
_CRITICAL_CERTIFICATE_SHARE: Final = 1 / 20
"""The share of a certificate's life, if that is less: one of a day or a week renews by itself with a third left."""

_FREE_PERCENT: Final = 5.0
_CRITICAL_FREE_PERCENT: Final = 2.0
"""The free share of a disk that Lockstep writes to: file systems reserve some of the last 5 % for root."""

_RETAINED_WAL_BYTES: Final = 10 * 1024**3
"""How much WAL the slot may hold back."""

_VIEW_BUILDING_S: Final = 3600.0
"""A view whose state takes longer to build deserves a look; `views list` shows its progress."""

_DAY_MS: Final = 24 * 3600 * 1000

CAPTURE: Final = "capture"
SERVERS: Final = "source-or-kafka"


Key = tuple[str, str]
"""Name and subject of a condition."""


class Severity(IntEnum):
    """``WARNING``: act within days. ``CRITICAL``: act now, since readers see old rows or changes may be lost soon."""

    WARNING = 1
    CRITICAL = 2

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that is wrong. ``since_ms`` is its start, if known. ``step`` says what to do. ``passes``: it may end by
    itself in a moment, so it must hold for a while before it counts. ``hold_s`` is the minimum."""

    name: str
    subject: str
    severity: Severity
    sentence: str
    step: str
    since_ms: int | None = None
    passes: bool = False
    hold_s: float = 0.0

    @property
    def key(self) -> Key:
        return self.name, self.subject

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "subject": self.subject,
            "severity": self.severity.label,
            "sentence": self.sentence,
            "step": self.step,
            "since_ms": self.since_ms,
        }


class _Known(IntEnum):
    """Which servers must answer before a condition can be judged."""

    WITH_ALL = 0
    WITHOUT_KAFKA = 1
    WITHOUT_SERVERS = 2


@dataclass(frozen=True, slots=True)
class _Kind:
    """The defaults of all conditions of a name."""

    severity: Severity
    step: str
    passes: bool = False
    known: _Known = _Known.WITH_ALL


_LOOK_AT_SERVERS: Final = "`lockstep doctor` looks at every server"
_LOOK_AT_STAGES: Final = "`lockstep lag` shows which stage holds it up"
_WARNING, _CRITICAL = Severity.WARNING, Severity.CRITICAL
_NO_KAFKA, _NO_SERVERS = _Known.WITHOUT_KAFKA, _Known.WITHOUT_SERVERS

_KINDS: Final = {
    # Their subject is capture, or the servers.
    "slot-filling": _Kind(
        _WARNING,
        f"let capture run, or raise max_slot_wal_keep_size; {_LOOK_AT_STAGES}",
        passes=True,
        known=_NO_KAFKA,
    ),
    "slot-growing": _Kind(_WARNING, f"let capture run; {_LOOK_AT_STAGES}", passes=True, known=_NO_KAFKA),
    "slot-lost": _Kind(_CRITICAL, "`lockstep doctor` says what to do, and `lockstep recover` goes on from there"),
    "capture-broken": _Kind(_CRITICAL, "`lockstep doctor` says what to do, and `lockstep recover` goes on from there"),
    "gap": _Kind(_CRITICAL, "`lockstep recover` closes it"),
    "capture-stopped": _Kind(_CRITICAL, "`lockstep run` or `lockstep capture` starts it", passes=True, known=_NO_KAFKA),
    "no-standby": _Kind(
        _WARNING, "start `lockstep capture --standby` on another machine", passes=True, known=_NO_KAFKA
    ),
    "dead-letters-unreadable": _Kind(_WARNING, "`lockstep rejections list` says why"),
    "unreachable": _Kind(_CRITICAL, _LOOK_AT_SERVERS, passes=True, known=_NO_SERVERS),
    # A stage.
    "stalled": _Kind(_CRITICAL, "`lockstep lag` shows its state"),
    # A sink: only the generation that readers see has them.
    "lag": _Kind(_WARNING, _LOOK_AT_STAGES, passes=True),
    "sink-unreachable": _Kind(_CRITICAL, _LOOK_AT_SERVERS, passes=True, known=_NO_KAFKA),
    "verify-differs": _Kind(_CRITICAL, ""),
    "verify-failed": _Kind(_WARNING, ""),
    # A generation of a sink. After a restart, the reason of a job's last end stays until it is at work again.
    "job-stopped": _Kind(_CRITICAL, "", passes=True, known=_NO_KAFKA),
    "table-failed": _Kind(_CRITICAL, "`lockstep lag` shows it", known=_NO_KAFKA),
    "rejections-open": _Kind(
        _WARNING, "`lockstep rejections list` says why, and `lockstep rejections retry` tries again"
    ),
    "rebuild-needed": _Kind(_WARNING, "", known=_NO_KAFKA),
    "view-building": _Kind(
        _WARNING,
        "`lockstep views list` shows how far it is; readers see the sink's earlier rows",
        known=_NO_KAFKA,
    ),
    # A file or a server; a directory.
    "certificate-expires": _Kind(
        _WARNING,
        "renew it; processes that run need a restart where they have read it from a file",
        known=_NO_SERVERS,
    ),
    "disk-filling": _Kind(
        _WARNING, "make room there, or move the directory to a larger disk", passes=True, known=_NO_SERVERS
    ),
}

NAMES: Final = tuple(_KINDS)
"""Every condition that there is."""


def _open(
    name: str,
    subject: str,
    sentence: str,
    step: str | None = None,
    since_ms: int | None = None,
    *,
    is_critical: bool = False,
    hold_s: float = 0.0,
) -> Condition:
    kind = _KINDS[name]
    severity = _CRITICAL if is_critical else kind.severity
    return Condition(name, subject, severity, sentence, step or kind.step, since_ms, kind.passes, hold_s)


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that no lag report has; each part, or what it says of a subject, is None if unknown.

    ``certificates``: owner -> validity. ``disks``: directory -> (free, all) bytes. ``has_standby``: whether a capture
    stands by. ``added`` are conditions found by extensions, ``added_names`` all that these may find, and
    ``added_unknown`` those that they can't judge now.
    """

    certificates: Mapping[str, Validity | None] | None = field(default_factory=dict)
    disks: Mapping[str, tuple[int, int] | None] | None = field(default_factory=dict)
    has_standby: bool | None = None
    added: tuple[Condition, ...] = ()
    added_names: frozenset[str] = frozenset()
    added_unknown: frozenset[tuple[str, str | None]] = frozenset()


@dataclass(frozen=True, slots=True)
class Findings:
    """The open conditions, and those that can't be judged now, which stay as they were. ``unknown_subjects`` are
    unknown for any condition. If ``known_names`` isn't None, all other names are unknown. ``unknown_keys`` are names
    with subjects, or names with None if unknown for every subject."""

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


def find_conditions(
    report: LagReport | LockstepError,
    facts: Facts,
    settings: ConditionSettings,
    *,
    now_ms: int,
) -> Findings:
    """What is wrong. ``report`` is the error if the source or Kafka has refused. If the source is silent, only that
    counts of the report, since the remainder is as old as the last whole one. If Kafka is silent, what the source and
    the sinks say counts as well: that is when the slot fills."""
    of_facts = [
        *_certificates(facts, now_ms),
        *_disks(facts),
        *facts.added,
    ]
    silent = [report] if isinstance(report, LockstepError) else list(report.silent_servers.values())
    if isinstance(report, LockstepError) or silent:
        reason = "; ".join(error.message for error in silent)
        found = [_open("unreachable", SERVERS, f"the pipeline can't be looked at: {reason}"), *of_facts]
        known, subjects = _names_known(_NO_SERVERS), frozenset[str]()
        if not isinstance(report, LockstepError) and "source" not in report.silent_servers:
            known, subjects = _names_known(_NO_KAFKA), frozenset(_unanswered(report))
            judged = _of_report(report, facts, settings, now_ms)
            found += [*_slot(report), *(each for each in judged if each.name in known)]
        return Findings(tuple(found), subjects, known | facts.added_names, frozenset(_unasked(facts, settings)))
    found = [*_slot(report), *_of_report(report, facts, settings, now_ms), *of_facts]
    unknown = _unanswered(report)
    unknown |= {stage.name for stage in report.stages if stage.state is StageState.UNKNOWN}
    keys = {*_unasked(facts, settings), *_begun(report), *(("lag", label) for label in _unmeasured(report))}
    return Findings(tuple(found), frozenset(unknown), unknown_keys=frozenset(keys))


def _of_report(report: LagReport, facts: Facts, settings: ConditionSettings, now_ms: int) -> Iterator[Condition]:
    """The conditions of a report, except those of the slot."""
    yield from _capture(report, facts, settings)
    yield from _lag(report, settings)
    yield from _sinks(report)
    yield from _views(report, now_ms)
    yield from _stalled(report)
    yield from _verified(report)


def _unanswered(report: LagReport) -> set[str]:
    """The labels of the generations that couldn't be asked."""
    return {
        stage.sink.label for stage in report.stages if stage.sink is not None and stage.sink.name in report.unanswered
    }


def _unasked(facts: Facts, settings: ConditionSettings) -> Iterator[tuple[str, str | None]]:
    """Conditions without a fact to judge them by."""
    yield from facts.added_unknown
    for name, known in (("certificate-expires", facts.certificates), ("disk-filling", facts.disks)):
        if known is None:
            yield name, None
        else:
            yield from ((name, subject) for subject, fact in known.items() if fact is None)
    if settings.standby and facts.has_standby is None:
        yield "no-standby", CAPTURE


def _begun(report: LagReport) -> Iterator[tuple[str, str]]:
    """A capture that begins may end again before it reads the slot, each time that it is started."""
    if any(stage.state is StageState.STARTING for stage in report.stages if stage.name == RECEIVED):
        yield "capture-stopped", CAPTURE


def _unmeasured(report: LagReport) -> set[str]:
    """The labels of live generations that answer, but whose lag is unknown."""
    return {
        stage.sink.label
        for stage in report.stages
        if stage.sink is not None
        and stage.sink.is_live
        and stage.seconds_behind is None
        and stage.sink.name not in report.unanswered
    }


def _names_known(known: _Known) -> frozenset[str]:
    return frozenset(name for name, kind in _KINDS.items() if kind.known >= known)


def _slot(report: LagReport) -> Iterator[Condition]:
    is_lost = report.wal_status in (None, "lost")
    for sentence in report.broken:
        yield _open("slot-lost" if is_lost else "capture-broken", CAPTURE, sentence)
        break
    if report.gap is not None and report.gap.is_open:
        yield _open("gap", CAPTURE, f"gap: {report.gap}")
    if is_lost:
        return
    minutes = report.minutes_until_full
    is_unreserved = report.wal_status == "unreserved"
    if report.safe_wal_bytes is not None and (is_unreserved or (minutes is not None and minutes < _SLOT_MINUTES)):
        is_critical = is_unreserved or (minutes is not None and minutes < _CRITICAL_SLOT_MINUTES)
        in_minutes = "" if minutes is None else f", in about {minutes:.0f} minutes at the rate of now"
        filling = _open(
            "slot-filling",
            CAPTURE,
            f"the slot is lost after {max(0, report.safe_wal_bytes):,} more bytes of WAL{in_minutes}",
            is_critical=is_critical,
        )
        yield replace(filling, passes=False) if is_unreserved else filling
    if report.retained_bytes is not None and report.retained_bytes > _RETAINED_WAL_BYTES:
        yield _open(
            "slot-growing", CAPTURE, f"the slot holds back {report.retained_bytes:,} bytes of WAL on the source's disk"
        )


def _capture(report: LagReport, facts: Facts, settings: ConditionSettings) -> Iterator[Condition]:
    # Before there is a slot nothing is held back, and nobody reads it while capture makes the first copy. A paused copy
    # beside the stream explains nothing: capture goes on. If Kafka is silent, it is unknown whether a running capture
    # copies. A capture that has begun will read the slot.
    expected = (StageState.STARTING, StageState.BUILDING, StageState.PAUSED, StageState.UNKNOWN)
    received = [stage for stage in report.stages if stage.name == RECEIVED]
    is_copied = all(stage.state not in expected for stage in received)
    is_expected = report.wal_status is not None and is_copied and not report.first_copy_paused
    if report.slot_active is False and is_expected and not report.broken:
        yield _open(
            "capture-stopped",
            CAPTURE,
            "no process reads the slot: changes wait in the source's WAL",
            next((stage.hint for stage in received if stage.hint), None),
        )
    if settings.standby and facts.has_standby is False:
        yield _open("no-standby", CAPTURE, "no capture stands by: none takes over when the running one ends")
    if report.unreadable_dead_letters:
        yield _open(
            "dead-letters-unreadable",
            CAPTURE,
            f"{report.unreadable_dead_letters:,} records of the dead-letter topic can't be read",
        )


def _is_before_the_stream(report: LagReport) -> bool:
    """Whether the first copy isn't done, or hasn't begun: then no sink can have anything of the stream."""
    states = (StageState.BUILDING, StageState.PAUSED)
    return any(stage.name == RECEIVED and (stage.state in states or stage.lsn is None) for stage in report.stages)


def _seconds_behind(report: LagReport) -> dict[str, float]:
    """How far readers of live generations are behind, by label: by what queries find, if known."""
    behind: dict[str, float] = {}
    for stage in report.stages:  # of one generation, what queries find comes last
        sink = stage.generation
        if sink is not None and sink.is_live and stage.seconds_behind is not None and not stage.name.startswith(READ):
            behind[sink.label] = max(stage.seconds_behind, behind.get(sink.label, 0.0))
    return behind


def _lag(report: LagReport, settings: ConditionSettings) -> Iterator[Condition]:
    for label, behind_s in _seconds_behind(report).items():
        if behind_s > settings.lag_s:
            yield _open("lag", label, f"readers of {label} may lack what was committed in the last {behind_s:.0f} s")
    if not _is_before_the_stream(report):
        for label in sorted(_unmeasured(report)):
            yield _open("lag", label, f"how far readers of {label} are behind isn't known", hold_s=settings.lag_s)


def _sinks(report: LagReport) -> Iterator[Condition]:
    for name, error in report.unanswered.items():
        yield _open("sink-unreachable", name, f"{name} can't be asked: {error.message}")
    for label, job in report.idle.items():
        if job.needs_somebody:
            yield _open(
                "job-stopped",
                label,
                (job.sentence(label) or "").partition("\n")[0],
                job.hint or job.start_again,
                job.since_ms,
            )
    for sink in (stage.sink for stage in report.stages if stage.sink is not None):
        held_tables = [] if sink.job is None else sink.job.by_need
        failed = [(table, held) for table, held in held_tables if held.has_failed]
        if failed:
            table, held = failed[0]
            others = f", and {len(failed) - 1} more" if failed[1:] else ""
            yield _open(
                "table-failed",
                sink.label,
                f"{sink.label} goes on without a table: {held.why(str(table))}{others}",
                held.next_step(sink.name, str(table)),
                held.since_ms,
            )
    for label, count in {**report.open_rejections, **report.refused_rows}.items():
        if count:
            yield _open("rejections-open", label, f"{label} refused {count:,} rows, which it lacks")
    for label, names in report.rebuild_needed.items():
        yield _open("rebuild-needed", label, f"{label} was built with other {', '.join(names)}", rebuild_step(label))


def _views(report: LagReport, now_ms: int) -> Iterator[Condition]:
    """What views' jobs have reported. A view that is behind, and a full disk, have conditions of their own."""
    for sink in (stage.sink for stage in report.stages if stage.sink is not None):
        if sink.view is None:
            continue
        figures = sink.view.figures
        is_at_work = sink.job is not None and sink.job.state is JobState.RUNNING
        if figures.building is not None and is_at_work:
            began_ms = figures.building.began_ms
            if now_ms - began_ms > _VIEW_BUILDING_S * 1000:
                yield _open(
                    "view-building",
                    sink.label,
                    f"{sink.label} is being built since {time_text(began_ms)}: {figures.building.sentence}",
                    since_ms=began_ms,
                )


def _verified(report: LagReport) -> Iterator[Condition]:
    views = {stage.sink.label for stage in report.stages if stage.sink is not None and stage.sink.is_view}
    for label, verification in report.verified.items():
        if verification.outcome is VerifyOutcome.DIFFERENT:
            yield _open(
                "verify-differs",
                label,
                f"{label} differs from the source in {verification.differing:,} keys",
                f"`lockstep verify {label}` shows them, and {differing_step(label, is_view=label in views)}",
                verification.ended_ms,
            )
        elif verification.outcome is VerifyOutcome.FAILED:
            yield _open(
                "verify-failed",
                label,
                f"{label} couldn't be compared with the source: {verification.error}",
                f"`lockstep verify {label}` tries again",
                verification.ended_ms,
            )


def _stalled(report: LagReport) -> Iterator[Condition]:
    """Stages whose input moves while they don't."""
    for stage in report.stages:
        if stage.state is StageState.STALLED:
            yield _open(
                "stalled",
                stage.name,
                f"{stage.name} is stalled" + ("" if stage.reason is None else f": {stage.reason}"),
                stage.hint,
                stage.since_ms,
            )


def _certificates(facts: Facts, now_ms: int) -> Iterator[Condition]:
    for whose, validity in (facts.certificates or {}).items():
        if validity is None:
            continue
        days, life_days = (validity.until_ms - now_ms) / _DAY_MS, (validity.until_ms - validity.from_ms) / _DAY_MS
        critical_days = min(_CRITICAL_CERTIFICATE_DAYS, life_days * _CRITICAL_CERTIFICATE_SHARE)
        if days < min(_CERTIFICATE_DAYS, life_days * _CERTIFICATE_SHARE):
            yield _open(
                "certificate-expires",
                whose,
                f"{whose}: the certificate " + ("has expired" if days < 0 else f"expires in {_duration(days)}"),
                is_critical=days < critical_days,
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
            yield _open(
                "disk-filling",
                directory,
                f"the disk of {directory} has {free:,} bytes left, {percent:.0f} %",
                is_critical=percent < _CRITICAL_FREE_PERCENT,
            )
