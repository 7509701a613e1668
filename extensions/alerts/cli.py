"""Commands about alerts: what is open, whether the webhook works, and a process that only tells."""

import time
from typing import TYPE_CHECKING, Final

import typer

from cdc.model.printable import visible_lines
from cdc.model.times import time_text
from lockstep.cli.options import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json

if TYPE_CHECKING:
    from monitor.reporter_lock import Holder

_LOOK_S: Final = 5.0
_LOOK_MAX_MS: Final = 60_000
"""Who hasn't looked for so long hangs: a look at servers that don't answer takes less."""


def list_open(config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Show which alerts are open, and what is still to be delivered.

    It shows what was reported: `lockstep run` or `lockstep alerts watch` looks at the pipeline. Exit code 1 when one is
    open, and 4 when no process on this machine looks.
    """
    from extensions.alerts.store import AlertStore
    from lockstep.config import read
    from lockstep.console import EXIT_FAILED, EXIT_UNWATCHED
    from monitor.reporter_lock import ReporterLock

    directory, now_ms = read(config).watch_directory, _now_ms()
    store, holder = AlertStore(directory), ReporterLock(directory).holder()
    trouble = _unwatched(holder, now_ms)
    state = store.load()
    waiting = len(state.queue or ())
    if as_json:
        print_json(
            {
                "open": [entry.to_json() for entry in state.book.values()],
                "undelivered": waiting,
                "watched": trouble is None,
                "looked_ms": holder.looked_ms,
            }
        )
    else:
        if trouble is not None:
            _write(trouble)
        for entry in sorted(state.book.values(), key=lambda entry: (-entry.condition.severity, entry.condition.key)):
            condition = entry.condition
            severity = condition.severity.label
            _write(f"{condition.name}/{condition.subject}: {severity} since {time_text(condition.since_ms)}")
            _write(f"    {condition.sentence}")
            _write(f"    {condition.step}")
        if not state.book and holder.looked_ms is not None:
            _write("no alert is open" if trouble is None else "no alert was open then")
        if waiting:
            _write(f"{waiting} messages are still to be delivered")
    raise typer.Exit(EXIT_UNWATCHED if trouble is not None else EXIT_FAILED if state.book else 0)


def send_test(config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Send a test message to the webhook, once.

    Exit code 1 when it didn't take it.
    """
    from extensions.alerts.channel import post_alert
    from extensions.alerts.due_messages import Kind, Message
    from extensions.alerts.settings import AlertSettings
    from lockstep.config import read
    from lockstep.console import say
    from monitor.conditions import Condition, Severity

    loaded, now_ms = read(config), _now_ms()
    webhook = loaded.section(AlertSettings).webhook
    if webhook is None:
        say("alerts go to the log alone: alerts.url isn't set")
        return
    condition = Condition("test", loaded.pipeline.name, Severity.WARNING, "this is a test", "nothing is to be done")
    message = Message(f"{loaded.pipeline.name}/test/{now_ms}", Kind.TEST, loaded.pipeline.name, now_ms, condition)
    post_alert(webhook, message)
    say("delivered")


def watch(config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Look at the pipeline every five seconds, and report what is wrong.

    Needed where capture and apply run without `lockstep dashboard`, which does the same. Of several processes on one
    machine one reports.
    """
    from cdc.model.errors import LockstepError
    from lockstep.config import followed, read
    from lockstep.console import StopOnSignals, log_to_stderr
    from lockstep.watcher import open_watcher
    from monitor.collector import LagCollector
    from monitor.lag import LagReport

    log_to_stderr()
    loaded, stopping = read(config), StopOnSignals()
    with (
        LagCollector(loaded.as_pipeline(), loaded.sinks, resolve=followed, others=loaded.added_stores) as collector,
        open_watcher(loaded) as watcher,
    ):
        while not stopping():
            report: LagReport | LockstepError
            try:
                report = collector.collect()
            except LockstepError as error:
                report = error
            watcher.look(report)
            stopping.wait(_LOOK_S)


def _unwatched(holder: "Holder", now_ms: int) -> str | None:
    """Why the list isn't of now; None where somebody looks."""
    step = "`lockstep run`, `lockstep dashboard` or `lockstep alerts watch` does"
    if holder.looked_ms is None:
        return f"no process on this machine has ever looked for alerts: {step}"
    if not holder.is_there:
        return f"no process on this machine has looked for alerts since {time_text(holder.looked_ms)}: {step}"
    if now_ms - holder.looked_ms > _LOOK_MAX_MS:
        return f"the process that reports alerts hangs since {time_text(holder.looked_ms)}: its log says why"
    return None


def _write(line: str) -> None:
    print(visible_lines(line))  # noqa: T201  the result


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
