"""Commands for a pipeline that runs: how far it is, whether it is right, and a sink's generations."""

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from lockstep.cli.completion import table_names
from lockstep.cli.options import (
    DEFAULT_CONFIG,
    ConfigOption,
    FromLsnOption,
    FromTimeOption,
    JsonOption,
    SinkArgument,
    SinksOption,
    TablesOption,
    agreed,
    lsn_of,
    may_ask,
    milliseconds_of,
    print_json,
    write_at_once,
)

if TYPE_CHECKING:
    from rich.console import Group

    from cdc.model.errors import LockstepError
    from lockstep.config import Config
    from monitor.waits import Waited
    from sinks.registry import SinkSettings


class Report(Protocol):
    """What can be shown again and again."""

    def to_json(self) -> dict[str, Any]: ...


Shown = TypeVar("Shown", bound=Report)


TablesOfSink = Annotated[
    list[str], typer.Argument(help="schema.table; several may be given.", autocompletion=table_names)
]


def lag(
    config: ConfigOption = DEFAULT_CONFIG,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second until Ctrl-C.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how far each stage is behind.

    With --watch, output to a file or pipe has a line for each change of state, and one each minute.

    The stages are the WAL's end, received, in Kafka, and for each sink read and applied, for OpenSearch also visible to
    searches. Exit code 1 when a stage has stopped or
    is stalled, a server can't be asked, capture can't go on, or no process works on a first copy. Without --watch,
    work of extensions is shown too.
    """
    from lockstep.config import followed, read
    from lockstep.extension import panels_now
    from lockstep.terminal import out
    from monitor.collector import LagCollector
    from monitor.lag_table import lag_table, panel_table
    from monitor.settled_report import settled_report
    from monitor.watch_lines import WatchLines

    loaded = read(config)
    looking = LagCollector(loaded.as_pipeline(), loaded.sinks, resolve=followed, others=loaded.added_stores)
    with looking as collector:
        if watch:
            _watch(collector.collect, lag_table, as_json=as_json, lines=WatchLines().lines)
            return
        report = settled_report(collector)
        panels = panels_now(loaded)
        if as_json:
            print_json(report.to_json() | {panel.name: [row.document for row in panel.rows] for panel in panels})
        else:
            out.print(lag_table(report), *map(panel_table, panels))
        is_well = not report.needs_somebody and not any(row.needs_somebody for panel in panels for row in panel.rows)
        raise typer.Exit(0 if is_well else 1)


def _watch(
    collect: Callable[[], Shown],
    table: Callable[[Shown], "Group"],
    *,
    as_json: bool,
    lines: Callable[..., Iterable[str]] | None = None,
) -> None:
    """Show a report every second until a signal: as JSON one document per line, and no screen where no terminal is.

    ``lines``, where given, says then what is new in a report, and no table is shown.
    """
    from contextlib import ExitStack

    from rich.live import Live
    from rich.text import Text

    from cdc.model.errors import Unavailable
    from lockstep.console import StopOnSignals, say
    from lockstep.terminal import out

    def show(report: Shown) -> None:
        if as_json:
            write_at_once(f"{json.dumps(report.to_json())}\n")
        elif live is not None:
            live.update(table(report), refresh=True)
        elif lines is None:
            out.print(table(report))
            out.file.flush()
        else:
            for line in lines(report, at_s=time.monotonic(), now_ms=time.time_ns() // 1_000_000):
                write_at_once(f"{line}\n")

    stopping = StopOnSignals()
    with ExitStack() as closing:
        live: Live | None = None
        if out.is_terminal and not as_json:
            live = closing.enter_context(Live(console=out, auto_refresh=False))
        while not stopping():
            try:
                show(collect())
            except Unavailable as error:
                if live is None:
                    say(error.message)
                else:
                    live.update(Text(error.message), refresh=True)
            stopping.wait(1.0)


def wait(
    config: ConfigOption = DEFAULT_CONFIG,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait at most.")] = 60.0,
    sink: SinksOption = None,
) -> None:
    """Wait until the sinks have applied what is committed now.

    Prints the LSN that they have reached. Exit code 1 when they haven't in time.
    """
    from cdc.model.lsn import format_lsn
    from cdc.postgres.connection import connect
    from cdc.postgres.slot import emit_heartbeat
    from lockstep.config import load
    from monitor.waits import Waits

    if math.isnan(timeout):  # it is less than nothing, and nothing is less than it
        raise typer.BadParameter("must be a number of seconds", param_hint="'--timeout'")
    loaded = load(config)
    sinks = loaded.chosen_sinks(sink or ())
    with connect(loaded.source, application="lockstep wait") as connection:
        lsn = emit_heartbeat(connection)
    with Waits(loaded.as_pipeline(), sinks) as waits:
        waited = waits.wait(lsn, timeout_s=min(timeout, threading.TIMEOUT_MAX))
    if not waited.is_reached:
        raise _waited_in_vain(loaded, sinks, waited, timeout_s=timeout)
    print(format_lsn(lsn))  # noqa: T201  the result


def _waited_in_vain(
    loaded: "Config", sinks: Mapping[str, "SinkSettings"], waited: "Waited", *, timeout_s: float
) -> "LockstepError":
    """What the wait has found of each sink that is late, and what is wrong with its job and whatever is before it."""
    from cdc.model.errors import LockstepError
    from cdc.model.lsn import format_lsn
    from monitor.collector import LagCollector
    from monitor.lag import StageState

    late = [f"not everything up to {format_lsn(waited.lsn)} was applied in {timeout_s:.0f} s"]
    late += [f"{name}: {why}" for name, why in waited.late.items()]
    try:
        with LagCollector(loaded.as_pipeline(), sinks) as collector:
            report = collector.collect()
    except LockstepError as error:
        return LockstepError("\n".join([*late, error.message]), hint=error.hint)
    idle = [job.sentence(label) for label, job in report.idle.items()]
    stalled = [stage.sentence for stage in report.stages if stage.state is StageState.STALLED]
    silent = [error.message for error in report.silent_servers.values()]
    return LockstepError(
        "\n".join([*late, *silent, *report.held_by_copies, *filter(None, idle), *stalled]),
        hint="`lockstep lag` shows how far each sink is",
    )


def tail(
    table: Annotated[str, typer.Argument(help="schema.table", autocompletion=table_names)],
    config: ConfigOption = DEFAULT_CONFIG,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Begin with the oldest event instead of the next.")
    ] = False,
    from_lsn: FromLsnOption = None,
    from_time: FromTimeOption = None,
    key: Annotated[str | None, typer.Option("--key", help="Only the events of this key, as JSON.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after so many events.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a table's events as they come, row values included.

    Begins with the next event, or with the oldest one, those after an LSN, or those since a time.
    """
    if from_start + (from_lsn is not None) + (from_time is not None) > 1:
        raise typer.BadParameter("--from-start, --from-lsn and --from-time exclude each other")
    lsn = None if from_lsn is None else lsn_of(from_lsn)
    time_ms = None if from_time is None else milliseconds_of(from_time)

    from lockstep.config import load
    from lockstep.console import StopOnSignals, say
    from monitor.tail import FromLsn, FromNext, FromStart, FromTime, Start, follow

    start: Start = FromStart() if from_start else FromNext()
    if lsn is not None:
        start = FromLsn(lsn)
    elif time_ms is not None:
        start = FromTime(time_ms)

    pipeline, stopping = load(config).as_pipeline(), StopOnSignals()
    for line in follow(pipeline, table, start=start, key=key, count=count, as_json=as_json, stopping=stopping):
        if line.is_remark:
            say(line.text)
        else:
            write_at_once(f"{line.text}\n")


def state(config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Show what capture and each job go on from.

    That is what they keep in Kafka and in the sinks. Works where nothing runs, and shows no row's values. Exit code 1
    when something couldn't be read.
    """
    from lockstep.config import read
    from lockstep.state import read_pipeline_state

    found = read_pipeline_state(read(config))
    if as_json:
        print_json(found.to_json())
    else:
        write_at_once("".join(f"{line}\n" for line in found.lines()))
    raise typer.Exit(0 if found.is_whole else 1)


def bundle(
    file: Annotated[Path, typer.Argument(metavar="FILE.tar.gz", help="The archive to write; it must not exist yet.")],
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Write an archive for support.

    Versions, settings, state, lag, doctor's findings and topics. It has no row's values and no secrets. Look into it
    before you send it.
    """
    from lockstep.bundle import write_bundle
    from lockstep.config import read
    from lockstep.console import say

    write_bundle(read(config), file, say=say)
    say(f"wrote {file}")


def verify(
    sink: SinkArgument,
    config: ConfigOption = DEFAULT_CONFIG,
    table: TablesOption = None,
    key: Annotated[
        list[str] | None, typer.Option("--keys", help="Only this key of one table, as JSON; may be repeated.")
    ] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Have the rows that differ published again.")] = False,
    against: Annotated[str, typer.Option(help="source, topic, or a generation's number.")] = "source",
    generation: Annotated[int | None, typer.Option(min=1, help="This generation; default the live one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a sink with the source, row by row, while both run.

    Shows keys, columns and tags of differing rows, and no other values. Exit code 1 when something differs.
    """
    from lockstep.config import load
    from lockstep.console import log_to_stderr
    from lockstep.verify.command import run_verify
    from lockstep.verify.options import VerifyOptions

    options = VerifyOptions(
        sink=sink,
        tables=tuple(table or ()),
        keys=tuple(key or ()),
        repair=repair,
        against=against,
        generation=generation,
    )
    log_to_stderr()
    raise typer.Exit(run_verify(load(config), options, as_json=as_json))


def rebuild(
    sink: SinkArgument,
    config: ConfigOption = DEFAULT_CONFIG,
    switch_over: Annotated[
        bool, typer.Option("--switch", help="Let readers see the new generation once it is equal to the source.")
    ] = False,
    trimmed: Annotated[
        bool,
        typer.Option("--trimmed", help="Also from topics whose beginning was deleted; see `lockstep snapshot table`."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Build a sink's next generation from the log's beginning.

    Applies today's configuration, beside the generation that readers see. Loads, catches up, compares with the source.
    Run it again after Ctrl-C or a crash: it continues.
    """
    from lockstep.config import load
    from lockstep.console import log_to_stderr
    from lockstep.rebuild.display import run_rebuild

    log_to_stderr()
    raise typer.Exit(run_rebuild(load(config), sink, switch_over=switch_over, trimmed=trimmed, as_json=as_json))


def switch(
    sink: SinkArgument,
    config: ConfigOption = DEFAULT_CONFIG,
    generation: Annotated[int | None, typer.Option(min=1, help="This one; default the newest that is ready.")] = None,
    back: Annotated[bool, typer.Option("--back", help="The generation that was live before the last switch.")] = False,
) -> None:
    """Let readers of a sink see another generation.

    Takes effect at once, and readers never see older rows than before.
    """
    from lockstep.config import load
    from lockstep.console import say
    from lockstep.generations import switch_to

    if back and generation is not None:
        raise typer.BadParameter("--back and --generation exclude each other: each says where to switch to")
    live_before, live_now = switch_to(load(config), sink, number=generation, back=back, say=say)
    if live_before == live_now:
        say(f"generation {live_now} of {sink} is live already")
    else:
        say(
            f"readers of {sink} see generation {live_now} now"
            + ("" if live_before is None else f"; before, it was {live_before}")
        )


def generations(
    sink: SinkArgument,
    config: ConfigOption = DEFAULT_CONFIG,
    drop: Annotated[
        int | None, typer.Option(min=1, help="Remove this generation, its data included. Asks first.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask before --drop removes it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show or drop the builds of a sink's data.

    Shows which one readers see, how far each is and whether a job applies to it. Those that aren't live stay until they
    are dropped. Exit code 1 when one has stopped.
    """
    from lockstep.config import load
    from lockstep.console import EXIT_FAILED, say
    from lockstep.generations import describe, generations_table
    from lockstep.generations import drop as drop_generation
    from lockstep.terminal import out

    if drop is not None and as_json:
        raise typer.BadParameter("--drop and --json exclude each other: --json is for the list")
    loaded = load(config)
    if drop is not None:
        may_ask(yes=yes)
        if not drop_generation(loaded, sink, drop, agreed=partial(agreed, yes=yes)):
            say("nothing was removed")
            raise typer.Exit(EXIT_FAILED)
        say(f"generation {drop} of {sink} is gone")
        return
    descriptions = describe(loaded, sink)
    if as_json:
        print_json([description.to_json() for description in descriptions])
    else:
        out.print(generations_table(sink, descriptions))
    if any(description.needs_somebody for description in descriptions):
        raise typer.Exit(EXIT_FAILED)


def pause(sink: SinkArgument, table: TablesOfSink, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Hold up tables of a sink while its others go on.

    Nothing is lost: each goes on from where it was. The watermark waits for it. Exit code 1 when that failed.
    """
    _order_tables("pause", sink, table, config)


def resume(sink: SinkArgument, table: TablesOfSink, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Let tables of a sink go on that were held.

    They were paused or taken out, or could not be applied. Refused where the topic may have lost deletes meanwhile: the
    message has the command then.
    """
    _order_tables("apply", sink, table, config)


def take_out(sink: SinkArgument, table: TablesOfSink, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Let a sink go on without these tables.

    Their rows stay in it as they are, and nothing waits for them. A rebuild builds what the configuration file says.
    """
    _order_tables("out", sink, table, config)


def _order_tables(wish: str, sink: str, tables: list[str], config: Path) -> None:
    from jobs.generations.held_tables import Wish
    from lockstep.config import load
    from lockstep.console import EXIT_FAILED, say
    from lockstep.table_orders import order_tables

    if not order_tables(load(config), sink, tables, Wish(wish), say=say):
        raise typer.Exit(EXIT_FAILED)


def snapshot_table(
    table: Annotated[list[str], typer.Argument(help="schema.table; several may be given.", autocompletion=table_names)],
    config: ConfigOption = DEFAULT_CONFIG,
    where: Annotated[
        str | None,
        typer.Option(help="Only the rows of one table for which this SQL condition holds now."),
    ] = None,
) -> None:
    """Have capture copy tables again while it streams.

    Every row gets an event, and every key that is gone gets a delete. With --where only those rows get one, and nothing
    else is deleted.
    """
    from lockstep.config import load
    from lockstep.console import say
    from snapshot.request import request_copies, request_rows

    if where is not None:
        if len(table) > 1:
            raise typer.BadParameter("--where is about one table")
        rows, capture_runs = request_rows(load(config).as_pipeline(), table[0], where)
        say(f"asked capture to publish {rows} rows of {table[0]} again; keys that are gone stay as they are")
    else:
        requested = request_copies(load(config).as_pipeline(), table)
        capture_runs = requested.capture_runs
        for name in requested.tables:
            say(f"asked capture to copy {name}; its log says when it is done")
    if not capture_runs:
        say("capture doesn't run now; it copies when it is started")


def snapshot_status(
    config: ConfigOption = DEFAULT_CONFIG,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second until Ctrl-C.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how far copies of tables are.

    Rows count once their range of blocks is complete. Works beside a running capture, and without one.
    """
    from lockstep.config import load
    from lockstep.terminal import out
    from monitor.copies import CopyStatusCollector
    from monitor.copies_table import copies_table

    with CopyStatusCollector(load(config).as_pipeline()) as collector:
        if watch:
            _watch(collector.collect, copies_table, as_json=as_json)
            return
        report = collector.collect()
        if as_json:
            print_json(report.to_json())
        else:
            out.print(copies_table(report))


TablesArgument = Annotated[
    list[str] | None,
    typer.Argument(help="schema.table; default all that are being copied.", autocompletion=table_names),
]


def snapshot_pause(table: TablesArgument = None, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Hold up copies of tables until they are resumed.

    The stream goes on. A copy that runs keeps what it has; a restart of capture changes nothing. The first copy waits
    as a whole, and PostgreSQL keeps the WAL meanwhile.
    """
    _order("pause", table, config)


def snapshot_resume(table: TablesArgument = None, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Let copies of tables go on that were paused."""
    _order("resume", table, config)


def snapshot_cancel(table: TablesArgument = None, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Give up copies that were asked for.

    Only those: a table that needs its copy can't go without it, and capture's log says so. The first copy can't be
    cancelled.
    """
    _order("cancel", table, config)


def _order(action: str, tables: list[str] | None, config: Path) -> None:
    from cdc.postgres.copy_orders import CopyAction
    from lockstep.config import load
    from lockstep.console import say
    from snapshot.request import FirstCopyOrdered, order_copies

    requested = order_copies(load(config).as_pipeline(), CopyAction(action), tables or [])
    if isinstance(requested, FirstCopyOrdered):
        held = "" if requested.held is None else f"; {requested.held}"
        if requested.is_paused:
            say(f"the first copy is paused, until `lockstep snapshot resume`{held}")
        else:
            say("the first copy may go on")
        return
    which = ", ".join(map(str, requested.tables)) or "all tables"
    say(f"asked capture to {action} the copies of {which}; its log shows the outcome")
    if not requested.capture_runs:
        say("capture doesn't run now; it reads this when it is started")
