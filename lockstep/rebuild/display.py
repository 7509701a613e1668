"""How a rebuild shows itself: bars on a terminal, an occasional line elsewhere, and the result."""

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from cdc.model.table import TableName
from lockstep.config import Config
from lockstep.console import EXIT_FAILED, say
from lockstep.rebuild.outcome import BuildProgress, Interrupted, Observer, Rebuilt
from lockstep.rebuild.rebuild import rebuild
from lockstep.terminal import err, out
from lockstep.verify.options import SOURCE
from lockstep.verify.progress import Step
from lockstep.verify.report import verify_table

logger = logging.getLogger("lockstep.rebuild")

_LINE_EVERY_S = 5.0
_PASSES = (SOURCE, "sink")
"""A comparison's names for its passes over a table. Before a comma if it looks into a part of the table."""
_INTERRUPTED = 130


class Bars:
    """A bar for the build and one per table that is compared. Without a terminal, an occasional line."""

    def __init__(self, console: Console, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._live = console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[counted]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._monotonic = monotonic
        self._lock = threading.RLock()  # a job reports from a thread of its own that it waits
        self._bars: dict[str, TaskID] = {}
        self._of: dict[str, str] = {}
        self._generation = 0
        self._began = 0.0
        self._due = 0.0
        self._rows: dict[TableName, int] = {}  # as counted on the source's side

    def built(self, progress: BuildProgress) -> None:
        with self._lock:
            self._built(progress)

    def _built(self, progress: BuildProgress) -> None:
        now = self._monotonic()
        if progress.generation != self._generation:
            self._generation, self._began = progress.generation, now
        events = f"{progress.events:,} events, {progress.events / max(now - self._began, 1e-6):,.0f}/s"
        if self._live:
            what = f"generation {progress.generation}"
            self._progress.update(self._bar(what), completed=progress.read, total=progress.total, counted=events)
        elif progress.finished or self._is_due():
            share = 100 if not progress.total else 100 * progress.read // progress.total
            logger.info("building generation=%d read=%d%% (%s)", progress.generation, share, events)

    def compared(self, step: Step) -> None:
        with self._lock:
            self._compared(step)

    def _compared(self, step: Step) -> None:
        if step.what == SOURCE:
            self._rows[step.table] = step.count
        is_pass = step.what.partition(",")[0] in _PASSES
        # Only the passes after the first have a known length, and may still be longer: rows come meanwhile.
        rows = self._rows.get(step.table) if is_pass and step.what != SOURCE else None
        counted = f"{step.what}: {step.count:,}" + ("" if rows is None else f" of {rows:,}")
        if not self._live:
            if self._is_due():
                logger.info("comparing table=%s (%s)", step.table, counted)
            return
        bar = self._bar(f"compare {step.table}", of=step.what if is_pass else None)
        if is_pass:
            self._progress.update(bar, completed=step.count, total=None if rows is None else max(rows, step.count, 1))
        self._progress.update(bar, counted=counted)

    def finish(self) -> None:
        """Leave the bars on the screen as they are; what comes next begins below."""
        if not self._live:
            return
        with self._lock:
            self._progress.stop()
            for bar in self._bars.values():
                self._progress.remove_task(bar)
            self._bars.clear()

    def _bar(self, what: str, *, of: str | None = None) -> TaskID:
        """The bar with this name. It begins again if it is ``of`` something else than before."""
        if what in self._bars and of is not None and self._of.get(what) != of:
            self._progress.remove_task(self._bars.pop(what))
        if what not in self._bars:
            self._progress.start()
            self._bars[what] = self._progress.add_task(what, total=None, counted="")
            self._of[what] = of or ""
        return self._bars[what]

    def _is_due(self) -> bool:
        now = self._monotonic()
        if now < self._due:
            return False
        self._due = now + _LINE_EVERY_S
        return True


def run_rebuild(config: Config, name: str, *, switch_over: bool, trimmed: bool, as_json: bool) -> int:
    """Rebuild and show it; returns the exit code: 0 built and equal, 1 if it differs, 130 if it was interrupted. Raises
    as ``rebuild``, except Interrupted."""
    stop = threading.Event()
    bars = Bars(err)

    def show(sentence: str) -> None:
        bars.finish()
        logger.info("%s", sentence)

    try:
        observer = Observer(show, bars.built, bars.compared)
        built = rebuild(
            config,
            name,
            switch_over=switch_over,
            trimmed=trimmed,
            stop=stop,
            observer=observer,
        )
    except Interrupted:
        again = f"lockstep rebuild {name}{' --trimmed' if trimmed else ''}"
        say(f"stopped; `{again}` goes on where it was")
        return _INTERRUPTED
    finally:
        bars.finish()
    if as_json:
        print(json.dumps(_to_json(built), indent=2))  # noqa: T201  the result
    else:
        out.print(verify_table(built.report))
        _show_result(name, built)
    return 0 if built.report.is_equal else EXIT_FAILED


def _show_result(name: str, built: Rebuilt) -> None:
    for change in built.explained:
        say(f"built with another setting than the live generation: {change}")
    if not built.report.is_equal and built.is_live:
        say(f"generation {built.generation} of {name}, which readers see, is NOT equal to the source")
    elif not built.report.is_equal:
        say(
            f"generation {built.generation} of {name} is NOT equal to the source and wasn't switched to; run this again"
            f" to go on, or `lockstep generations {name} --drop {built.generation}`"
        )
    elif built.is_live:
        say(f"generation {built.generation} of {name} is equal to the source, and readers see it now")
        if (old := built.switched_from) is not None:
            drop = f"`lockstep generations {name} --drop {old}` removes it"
            say(f"`lockstep switch {name} --back` returns to {old}; {drop}")
    else:
        say(
            f"generation {built.generation} of {name} is equal to the source; `lockstep switch {name}` lets readers"
            " see it. A running `lockstep apply` keeps it up to date until then"
        )


def _to_json(built: Rebuilt) -> dict[str, Any]:
    return {
        "generation": built.generation,
        "equal": built.report.is_equal,
        "live": built.is_live,
        "live_before": built.switched_from,
        "built_otherwise": list(built.explained),
        "loaded": built.loaded,
        "load_seconds": round(built.load_s, 3),
        "compare_seconds": round(built.compare_s, 3),
        "comparison": built.report.to_json(),
    }
