"""How a rebuild shows itself: a bar on a terminal, a line now and then elsewhere, and what came out."""

import json
import logging
import threading
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from lockstep.config import Config
from lockstep.console import EXIT_FAILED, err, out, say
from lockstep.rebuild import BuildProgress, Interrupted, Observer, Rebuilt, rebuild
from lockstep.verify.report import verify_table

logger = logging.getLogger("lockstep.rebuild")

_LINE_EVERY_S = 5.0
_INTERRUPTED = 130


class _Bar:
    """One bar for the whole build."""

    def __init__(self, console: Console) -> None:
        self._live = console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[events]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task: TaskID | None = None
        self._began = time.monotonic()
        self._due = 0.0

    def __call__(self, progress: BuildProgress) -> None:
        now = time.monotonic()
        rate = progress.events / max(now - self._began, 1e-6)
        events = f"{progress.events:,} events, {rate:,.0f}/s"
        if not self._live:
            if progress.finished or now >= self._due:
                self._due = now + _LINE_EVERY_S
                share = 100 if not progress.total else 100 * progress.read // progress.total
                logger.info("building generation=%d read=%d%% (%s)", progress.generation, share, events)
            return
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task(f"generation {progress.generation}", total=None, events="")
        self._progress.update(self._task, completed=progress.read, total=progress.total, events=events)

    def finish(self) -> None:
        if self._live:
            self._progress.stop()


def run_rebuild(config: Config, name: str, *, switch_over: bool, in_place: bool, trimmed: bool, as_json: bool) -> int:
    """Rebuild and show it; returns the exit code: 0 built and equal, 1 when it differs, 130 when it was interrupted."""
    stop = threading.Event()
    bar = _Bar(err)

    def tell(sentence: str) -> None:
        bar.finish()
        logger.info("%s", sentence)

    try:
        observer = Observer(tell, bar, lambda _: None)
        built = rebuild(
            config,
            name,
            switch_over=switch_over,
            in_place=in_place,
            trimmed=trimmed,
            stop=stop,
            observer=observer,
        )
    except Interrupted:
        say(f"stopped; `lockstep rebuild {name}` goes on where it was")
        return _INTERRUPTED
    finally:
        bar.finish()
    if as_json:
        print(json.dumps(_to_json(built), indent=2))  # noqa: T201  the result
    else:
        out.print(verify_table(built.report))
        _tell_result(name, built)
    return 0 if built.report.is_equal else EXIT_FAILED


def _tell_result(name: str, built: Rebuilt) -> None:
    for change in built.explained:
        say(f"built otherwise than the live generation: {change}")
    if not built.report.is_equal and built.is_live:
        say(f"generation {built.generation} of {name}, which readers see, is NOT equal to the source")
    elif not built.report.is_equal:
        say(
            f"generation {built.generation} of {name} is NOT equal to the source and wasn't switched to; run this again to go on,"
            f" or `lockstep generations {name} --drop {built.generation}`"
        )
    elif built.is_live:
        back = (
            "" if built.switched_from is None else f"; `lockstep switch {name} --back` returns to {built.switched_from}"
        )
        say(f"generation {built.generation} of {name} is equal to the source, and readers see it now{back}")
    else:
        say(
            f"generation {built.generation} of {name} is equal to the source; `lockstep switch {name}` lets readers see it."
            " A running `lockstep apply` keeps it up to date until then"
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
