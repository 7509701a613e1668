"""A view's figures on the driver: stored with the generation, and reported for the metrics."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from cdc.model.errors import LockstepError
from jobs.clock import now_ms
from jobs.generations.lease import GenerationLease
from jobs.generations.view_state import ReportedView, dump_view, parse_view, view_record_name
from jobs.report import Reporter, ViewReport
from views.counters import Counters
from views.figures import ViewFigures

SAVE_S: Final = 2.0
"""How often to store figures at most, unless a build begins or ends: as often as a job shows that it runs."""


class FiguresKeeper:
    """Stores the figures of a query's tasks. Called by the batches' thread, and by the one that listens to tasks."""

    def __init__(
        self,
        lease: GenerationLease,
        sink: str,
        generation: int,
        report: Reporter,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._lease = lease
        self._sink, self._generation = sink, generation
        self._report = report
        self._monotonic, self._now_ms = monotonic, now_ms
        self._lock = threading.Lock()
        self._kept: ReportedView | None = None
        self._kept_s = float("-inf")
        self._is_loaded = False
        self._counted: Counters | None = None
        self._newest_ms = 0

    def take(self, figures: ViewFigures, *, is_last: bool = False) -> None:
        """Store these, unless that was done a moment ago or newer ones are known. With ``is_last`` none follow soon.
        Raises nothing if the destination doesn't answer: the batches report that."""
        with self._lock:
            try:
                self._load()
            except LockstepError:
                return  # the counts of earlier runs aren't known
            kept, now_s = self._kept, self._monotonic()
            if self._newest_ms > figures.at_ms:
                return  # a task's last report may arrive after its result
            self._newest_ms = figures.at_ms
            has_turned = kept is None or kept.is_building is not (figures.building is not None)
            if not (has_turned or is_last) and now_s - self._kept_s < SAVE_S:
                return
            if kept is not None and _facts(kept.figures) == _facts(figures):
                return
            now_ms = self._now_ms()
            reported = (kept or ReportedView(now_ms, figures)).next(figures, now_ms=now_ms)
            done = figures.counters if self._counted is None else figures.counters.since(self._counted)
            self._counted = figures.counters
            self._kept, self._kept_s = reported, now_s
            self._report(ViewReport(self._sink, self._generation, figures, done))
            with suppress(LockstepError):
                self._lease.save_record(view_record_name(self._generation), dump_view(reported))

    def _load(self) -> None:
        if not self._is_loaded:
            self._kept = parse_view(self._lease.record(view_record_name(self._generation)))
            self._is_loaded = True
            # It includes the counts of earlier runs.
            self._counted = None if self._kept is None else self._kept.figures.counters


def _facts(figures: ViewFigures) -> tuple[object, ...]:
    return figures.lsn, figures.state_rows, figures.state_bytes, figures.counters, figures.building
