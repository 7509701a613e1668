"""What is wrong at each lag report. One process per machine passes it to the reporters."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from cdc.model.closing import Closing
from cdc.model.errors import LockstepError
from monitor.condition_settings import ConditionSettings
from monitor.conditions import Condition, Facts, Findings, Key, find_conditions
from monitor.lag import LagReport
from monitor.reporter_lock import ReporterLock

logger = logging.getLogger("lockstep.alerts")


class Reporter(Protocol):
    """Reports what is wrong to somebody."""

    @property
    def reported(self) -> Collection[Key]:
        """The open conditions that somebody knows of, reported by this process or an earlier one."""
        ...

    def look(self, findings: Findings, *, now_ms: int) -> None:
        """Take the findings. Called after each look of the process that reports. Must not block."""
        ...

    def close(self) -> None: ...


class ConditionWatch(Closing):
    """Of several processes with the same directory, the first reports. When it ends, another goes on from there."""

    def __init__(
        self,
        settings: ConditionSettings,
        directory: Path,
        *,
        reporters: Sequence[Reporter] = (),
        facts: Callable[[], Facts] = Facts,
    ) -> None:
        """``facts`` returns what no lag report has. The reporters are closed with this."""
        self._settings = settings
        self._reporters = reporters
        self._facts = facts
        self._lock = ReporterLock(directory)
        self._trouble: str | None = None
        self._held: Mapping[Key, int] = {}
        self.open: tuple[Condition, ...] = ()
        """What was wrong at the last look; conditions with ``hold_s`` only once they were reported or held so long."""
        self.reports = False
        """Whether this is the process that reports, as of the last look."""

    def look(self, report: LagReport | LockstepError, *, now_ms: int) -> None:
        """Take the next report, or the error in its place. Never blocks or raises. If the directory can't be used,
        everything is reported anyway."""
        findings = find_conditions(report, self._facts(), self._settings, now_ms=now_ms)
        self._held = {each.key: self._held.get(each.key, now_ms) for each in findings.open if each.hold_s}
        trouble = None
        try:
            self.reports = self._lock.take()
        except LockstepError as error:
            self.reports, trouble = True, error.message
        if trouble is not None and trouble != self._trouble:
            logger.error("whether another process reports as well isn't known: %s", trouble)
        self._trouble = trouble
        if self.reports:
            for reporter in self._reporters:
                reporter.look(findings, now_ms=now_ms)
        reported = {key for reporter in self._reporters for key in reporter.reported}
        self.open = tuple(
            each
            for each in findings.open
            if not each.hold_s or each.key in reported or now_ms - self._held[each.key] >= each.hold_s * 1000
        )

    def close(self) -> None:
        for reporter in self._reporters:
            reporter.close()
        self._lock.close()
