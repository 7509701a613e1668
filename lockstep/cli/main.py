"""The ``lockstep`` command. Each subcommand loads the configuration, builds, calls; what it needs is imported when it runs."""

import faulthandler
import json
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep.console import StopOnSignals, err, exit_code_of, log_to_stderr, out, say

app = typer.Typer(
    help="PostgreSQL changes, in order, on compacted Kafka topics, applied to OpenSearch, Redis and a SQL warehouse.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="Configuration file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
StackOption = Annotated[Path, typer.Option("--directory", help="Where the local servers keep data and logs.")]

DEFAULT_CONFIG = Path("lockstep.toml")
STACK_DIRECTORY = Path(".lockstep/stack")


@app.command()
def demo(
    seconds: Annotated[
        float | None, typer.Option(help="Stop the writer after so long, compare, print the result.")
    ] = None,
    as_json: JsonOption = False,
    keep: Annotated[bool, typer.Option(help="Leave the local servers running at the end.")] = False,
    rate: Annotated[float, typer.Option(help="Transactions per second that the sample application writes.")] = 50.0,
    directory: Annotated[Path, typer.Option(help="Where the demo keeps its data and logs.")] = Path(".lockstep/demo"),
) -> None:
    """Everything on this machine: local servers, a sample shop with live traffic, snapshot, capture, three sinks, lag."""
    from lockstep.demo.demo import run_demo

    raise typer.Exit(run_demo(seconds=seconds, as_json=as_json, keep=keep, directory=directory, rate=rate))


@app.command()
def up(directory: StackOption = STACK_DIRECTORY) -> None:
    """Start the local servers (PostgreSQL twice, Kafka, OpenSearch, Valkey). Harmless when they run already."""
    from dataclasses import asdict

    from stack.stack import Stack

    stack = Stack(directory)
    endpoints = stack.up(report=lambda name, what: say(f"{name}: {what}"))
    for name, value in asdict(endpoints).items():
        out.print(f"{name} = {value}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def down(directory: StackOption = STACK_DIRECTORY) -> None:
    """Stop the local servers. Their data stays."""
    from stack.stack import Stack

    Stack(directory).down()


@app.command()
def status(directory: StackOption = STACK_DIRECTORY, as_json: JsonOption = False) -> None:
    """Show the local servers."""
    from rich.table import Table

    from monitor.collector import readable_bytes
    from stack.stack import Stack

    servers = Stack(directory).status()
    if as_json:
        _print_json(
            [
                {
                    "name": s.name,
                    "version": s.version,
                    "state": s.state,
                    "pid": s.pid,
                    "address": s.address,
                    "started_at": s.started_at.isoformat() if s.started_at else None,
                    "rss_bytes": s.rss_bytes,
                    "log": str(s.log),
                }
                for s in servers
            ]
        )
        return
    table = Table()
    for heading in ("server", "version", "state", "pid", "memory", "address"):
        table.add_column(heading)
    for s in servers:
        memory = readable_bytes(s.rss_bytes) if s.rss_bytes else ""
        table.add_row(s.name, s.version, s.state, str(s.pid or ""), memory, s.address)
    out.print(table)


@app.command()
def init(
    dsn: Annotated[str, typer.Option(help="libpq connection string of the database, without a password.")],
    config: ConfigOption = DEFAULT_CONFIG,
    name: Annotated[str | None, typer.Option(help="Name of the pipeline; default the database's.")] = None,
    schema: Annotated[list[str] | None, typer.Option(help="Only tables of this schema; may be repeated.")] = None,
) -> None:
    """Look at a database and write a commented configuration for it. Changes nothing in the database."""
    from lockstep.init import write_config

    for line in write_config(dsn=dsn, path=config, name=name, schemas=tuple(schema or ())):
        say(line)


@app.command()
def doctor(config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Check source, Kafka and sinks; print every finding with the exact SQL or setting that mends it. Changes nothing."""
    from lockstep.config import load
    from lockstep.doctor.doctor import examine, findings_json, findings_text, is_healthy

    findings = examine(load(config))
    if as_json:
        _print_json(findings_json(findings))
    else:
        out.print(findings_text(findings), soft_wrap=True)
    raise typer.Exit(0 if is_healthy(findings) else 1)


@app.command()
def capture(config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Read the WAL and publish it; takes the initial snapshot first where there is none. Stops cleanly on SIGTERM."""
    from lockstep.capture.display import observer
    from lockstep.capture.run import capture as run_capture
    from lockstep.config import load

    log_to_stderr()
    run_capture(load(config).as_pipeline(), stopping=StopOnSignals(), observer=observer(err))


@app.command()
def apply(
    sink: Annotated[
        list[str] | None, typer.Argument(help="Sinks to apply to; default all of the configuration.")
    ] = None,
    once: Annotated[bool, typer.Option(help="Stop at the topics' end as of now.")] = False,
    from_lsn: Annotated[
        str | None, typer.Option(help="Read from what was committed after this LSN (0/16B3748); one sink only.")
    ] = None,
    from_time: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S%z"],
            help="Read from what was published at this time (UTC where no offset is given); one sink only.",
        ),
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Run the Spark jobs that apply the topics to the sinks, one query per sink and generation in one driver.

    StartPosition something again is harmless: rows that are there in the same or a newer version stay.
    """
    from cdc.model.errors import ConfigurationError
    from cdc.model.lsn import parse_lsn
    from lockstep.apply import apply_sinks, read_from
    from lockstep.config import load

    log_to_stderr()
    loaded, names = load(config), tuple(sink or ())
    if from_lsn is not None or from_time is not None:
        if len(names) != 1 or (from_lsn is not None and from_time is not None):
            raise ConfigurationError("--from-lsn and --from-time take one sink, and only one of them can be given")
        try:
            lsn = None if from_lsn is None else parse_lsn(from_lsn)
        except ValueError as error:
            raise ConfigurationError(
                f"--from-lsn: {error}", hint="as PostgreSQL writes it, for example 0/16B3748"
            ) from None
        moment = from_time if from_time is None or from_time.tzinfo else from_time.replace(tzinfo=UTC)
        read_from(
            loaded,
            names[0],
            lsn=lsn,
            time_ms=None if moment is None else int(moment.timestamp() * 1000),
            say=say,
        )
    raise typer.Exit(apply_sinks(loaded, sinks=names, once=once))


SinkArgument = Annotated[str, typer.Argument(metavar="SINK", help="A sink of the configuration.")]


@app.command()
def rebuild(
    sink: SinkArgument,
    config: ConfigOption = DEFAULT_CONFIG,
    switch_over: Annotated[
        bool, typer.Option("--switch", help="Let readers see the new generation once it is equal to the source.")
    ] = False,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place", help="Write the live generation again instead: less space, but readers see old and new rows."
        ),
    ] = False,
    trimmed: Annotated[
        bool,
        typer.Option("--trimmed", help="Also from topics whose beginning was deleted; see `lockstep snapshot table`."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Build a sink's next generation from the log's beginning, with today's configuration, beside the one that readers see.

    Loads, catches up, compares with the source. Run it again after Ctrl-C or a crash: it goes on where it was.
    """
    from cdc.model.errors import ConfigurationError
    from lockstep.config import load
    from lockstep.rebuild.display import run_rebuild

    log_to_stderr()
    if in_place and switch_over:
        raise ConfigurationError("--in-place and --switch exclude each other: in place, readers see it all the time")
    raise typer.Exit(
        run_rebuild(load(config), sink, switch_over=switch_over, in_place=in_place, trimmed=trimmed, as_json=as_json)
    )


@app.command()
def switch(
    sink: SinkArgument,
    config: ConfigOption = DEFAULT_CONFIG,
    generation: Annotated[int | None, typer.Option(help="This one; default the newest that is ready.")] = None,
    back: Annotated[bool, typer.Option("--back", help="The one that was live before the last switch.")] = False,
) -> None:
    """Let readers of a sink see another generation, at once and without going back in time."""
    from lockstep.config import load
    from lockstep.generations import switch_to

    before, after = switch_to(load(config), sink, number=generation, back=back)
    if before == after:
        say(f"generation {after} of {sink} is live already")
    else:
        say(f"readers of {sink} see generation {after} now" + ("" if before is None else f"; before, it was {before}"))


@app.command()
def generations(
    sink: SinkArgument,
    config: ConfigOption = DEFAULT_CONFIG,
    drop: Annotated[int | None, typer.Option(help="Remove this generation, its data included.")] = None,
    as_json: JsonOption = False,
) -> None:
    """The builds of a sink's data: which one readers see, how far each is. Those that aren't live stay until they are dropped."""
    from lockstep.config import load
    from lockstep.generations import describe, generations_table
    from lockstep.generations import drop as drop_generation

    loaded = load(config)
    if drop is not None:
        drop_generation(loaded, sink, drop)
        say(f"generation {drop} of {sink} is gone")
        return
    found = describe(loaded, sink)
    if as_json:
        _print_json([one.to_json() for one in found])
    else:
        out.print(generations_table(found))


@app.command()
def verify(
    sink: SinkArgument,
    config: ConfigOption = DEFAULT_CONFIG,
    table: Annotated[list[str] | None, typer.Option(help="Only this table; may be repeated.")] = None,
    key: Annotated[
        list[str] | None, typer.Option("--keys", help="Only this key of one table, as JSON; may be repeated.")
    ] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Have the rows that differ published again.")] = False,
    against: Annotated[str, typer.Option(help="source, topic, or a generation's number.")] = "source",
    generation: Annotated[int | None, typer.Option(help="This generation; default the live one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a sink with the source, row by row, while both go on. Exit code 1 when something differs.

    Shows keys, columns and tags of what differs, and no other values.
    """
    from lockstep.config import load
    from lockstep.verify.command import run_verify
    from lockstep.verify.verify import VerifyOptions

    options = VerifyOptions(
        sink=sink,
        tables=tuple(table or ()),
        keys=tuple(key or ()),
        repair=repair,
        against=against,
        generation=generation,
    )
    raise typer.Exit(run_verify(load(config), options, as_json=as_json))


snapshot_app = typer.Typer(help="Copies of tables.", no_args_is_help=True)
app.add_typer(snapshot_app, name="snapshot")


@snapshot_app.callback()
def snapshot() -> None:
    """Copies of tables; the first one is taken by `lockstep capture` by itself."""


@snapshot_app.command("table")
def snapshot_table(
    table: Annotated[list[str], typer.Argument(help="schema.table; several may be given.")],
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Have capture copy tables anew, where the stream stands: every row gets an event, and every key that is gone a delete."""
    from lockstep.config import load
    from snapshot.request import request_copies

    for name in request_copies(load(config).as_pipeline(), table):
        say(f"asked capture to copy {name}; its log says when it is done")


@app.command()
def package(
    output: Annotated[Path, typer.Option(help="The archive to write.")] = Path("lockstep-package.zip"),
    environment: Annotated[
        bool, typer.Option("--environment", help="With the third-party packages, for executors like this machine.")
    ] = False,
) -> None:
    """Make the archive that a Spark cluster's executors need: spark.package in lockstep.toml names it."""
    from lockstep.package import package as make_package

    written = make_package(output, environment=environment)
    say(f"wrote {written} ({written.stat().st_size / 1e6:.1f} MB)")


@app.command()
def run(config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Capture and all sinks as one supervised group, for one machine."""
    from lockstep.config import load
    from lockstep.supervisor import run_group

    log_to_stderr()
    load(config)  # a wrong configuration is told here, once, instead of by every process of the group
    raise typer.Exit(run_group(config, StopOnSignals()))


@app.command()
def lag(
    config: ConfigOption = DEFAULT_CONFIG,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second until Ctrl-C.")] = False,
    as_json: JsonOption = False,
) -> None:
    """How far each stage is behind: WAL end, received, in Kafka, applied per sink."""
    from rich.live import Live

    from cdc.model.errors import Unavailable
    from lockstep.config import load
    from monitor.collector import LagCollector, lag_table

    loaded = load(config)
    stopping = StopOnSignals()
    with LagCollector(loaded.as_pipeline(), loaded.sinks) as collector:
        if not watch:
            report = collector.collect()
            if as_json:
                _print_json(report.to_json())
            else:
                out.print(lag_table(report))
            raise typer.Exit(1 if report.unanswered else 0)
        if as_json:
            while not stopping():
                print(json.dumps(collector.collect().to_json()), flush=True)  # noqa: T201  one document per line
                stopping.wait(1.0)
            return
        with Live(console=out, auto_refresh=False) as live:
            while not stopping():
                try:
                    live.update(lag_table(collector.collect()), refresh=True)
                except Unavailable as error:
                    live.update(error.message, refresh=True)
                stopping.wait(1.0)


@app.command()
def wait(
    config: ConfigOption = DEFAULT_CONFIG,
    timeout: Annotated[float, typer.Option(help="Seconds to wait at most.")] = 60.0,
    sink: Annotated[list[str] | None, typer.Option(help="Only this sink; may be repeated.")] = None,
) -> None:
    """Wait until the sinks have applied everything that is committed now. Exit code 1 when they haven't in time."""
    from cdc.model.lsn import format_lsn
    from cdc.postgres.connection import connect
    from cdc.postgres.slot import emit_heartbeat
    from lockstep.config import load
    from monitor.collector import LagCollector, wait_for_lsn

    loaded = load(config)
    with connect(loaded.source, application="lockstep wait") as connection:
        lsn = emit_heartbeat(connection)
    with LagCollector(loaded.as_pipeline(), loaded.sinks) as collector:
        if not wait_for_lsn(collector, lsn, timeout_s=timeout, sinks=tuple(sink or ()), sleep=time.sleep):
            say(
                f"error: not everything up to {format_lsn(lsn)} was applied in {timeout:.0f} s; `lockstep lag` shows where it is"
            )
            raise typer.Exit(1)
    out.print(format_lsn(lsn), highlight=False)


rejections_app = typer.Typer(help="Events that a sink refused for good.", no_args_is_help=True)
app.add_typer(rejections_app, name="rejections")

RejectedTableOption = Annotated[
    list[str] | None, typer.Option("--table", help="Only of this table, schema.table; may be repeated.")
]
RejectedGenerationOption = Annotated[int | None, typer.Option("--generation", help="Only of this generation.")]
RejectedKeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--key", help="Only of this row: its key as JSON, or the one value of it, or partition:offset; may be repeated."
    ),
]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", help="Only those whose reason has this text in it; case doesn't matter.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All of the sink, or of the table and generation given.")]


@rejections_app.callback()
def rejections() -> None:
    """Events that a sink refused for good, with the reason; closed by themselves once a newer event of the row gets through."""


@rejections_app.command("list")
def rejections_list(
    sink: Annotated[str | None, typer.Argument(metavar="[SINK]", help="Only of this sink.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    table: RejectedTableOption = None,
    generation: RejectedGenerationOption = None,
    as_json: JsonOption = False,
) -> None:
    """What is open, and how much of it for which reason. Shows keys and no other values."""
    from lockstep.config import load
    from lockstep.rejections.commands import (
        RejectionBook,
        Selection,
        now_ms,
        rejections_json,
        rejections_table,
        unreadable_text,
    )

    selection = Selection(tables=tuple(table or ()), generation=generation)
    found, unreadable = RejectionBook(load(config)).read(sink, selection)
    if as_json:
        _print_json(rejections_json(found, unreadable))
        return
    if found:
        out.print(rejections_table(found, now_ms()))
    else:
        say("no rejections")
    if unreadable:
        say(unreadable_text(unreadable))


@rejections_app.command("show")
def rejections_show(
    sink: SinkArgument,
    row: Annotated[
        str,
        typer.Argument(metavar="KEY|POSITION", help="The row's key as in `list`, or its value, or partition:offset."),
    ],
    config: ConfigOption = DEFAULT_CONFIG,
    table: RejectedTableOption = None,
    generation: RejectedGenerationOption = None,
    value: Annotated[
        bool, typer.Option("--value", help="Print the whole event too, all columns of the row included.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """One rejection. Its event's value is printed only when it is asked for."""
    from lockstep.config import load
    from lockstep.rejections.commands import RejectionBook, Selection

    book = RejectionBook(load(config))
    found = book.one(sink, Selection(tables=tuple(table or ()), generation=generation, keys=(row,)))
    document = found.to_json()
    if value:
        event = book.value(found)
        document["value"] = None if event is None else json.loads(event)
    if as_json:
        _print_json(document)
        return
    for name, fact in document.items():
        text = fact if isinstance(fact, str) else json.dumps(fact, ensure_ascii=False)
        out.print(f"{name}: {text}", markup=False, highlight=False, soft_wrap=True)


@rejections_app.command("retry")
def rejections_retry(
    sink: SinkArgument,
    config: ConfigOption = DEFAULT_CONFIG,
    key: RejectedKeyOption = None,
    reason: ReasonOption = None,
    everything: AllOption = False,
    table: RejectedTableOption = None,
    generation: Annotated[int | None, typer.Option("--generation", help="Of this one; default the live one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Apply rejected events again, with their own tags: no row gets older. Safe while the job runs.

    Closes those that the sink takes, and says why it refuses the others. Exit code 1 when any is left.
    """
    from lockstep.config import load
    from lockstep.rejections.commands import selection_of
    from lockstep.rejections.retry import retried_table, retry

    selection = selection_of(tables=table, generation=generation, keys=key, reason=reason, everything=everything)
    retried = retry(load(config), sink, selection, say=say)
    if as_json:
        _print_json(retried.to_json())
    else:
        if retried.refused:
            out.print(retried_table(retried))
        say(retried.sentence(sink))
    raise typer.Exit(1 if retried.refused else 0)


@rejections_app.command("discard")
def rejections_discard(
    sink: SinkArgument,
    config: ConfigOption = DEFAULT_CONFIG,
    key: RejectedKeyOption = None,
    reason: ReasonOption = None,
    everything: AllOption = False,
    table: RejectedTableOption = None,
    generation: RejectedGenerationOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Close rejections without applying them: the sink goes on without these events, until their rows are written again."""
    from cdc.model.errors import ConfigurationError
    from lockstep.config import load
    from lockstep.rejections.commands import discard, selection_of

    selection = selection_of(tables=table, generation=generation, keys=key, reason=reason, everything=everything)
    if not yes and not sys.stdin.isatty():
        raise ConfigurationError("discard asks first, and there is no terminal to ask", hint="add --yes")

    def agreed(question: str) -> bool:
        return yes or typer.confirm(question, err=True)

    raise typer.Exit(discard(load(config), sink, selection, agreed=agreed, say=say))


@app.command()
def tail(
    table: Annotated[str, typer.Argument(help="schema.table")],
    config: ConfigOption = DEFAULT_CONFIG,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Begin with the oldest event instead of the next.")
    ] = False,
    count: Annotated[int | None, typer.Option(help="Stop after so many events.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the events of a table as they come. This prints row values: that is what it is for."""
    from lockstep.config import load
    from monitor.tail import follow

    follow(
        load(config).as_pipeline(),
        table,
        from_start=from_start,
        count=count,
        as_json=as_json,
        stopping=StopOnSignals(),
        write=sys.stdout.write,
    )


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=2))  # noqa: T201  the result


def main() -> None:
    """Entry point of the ``lockstep`` command."""
    # kill -USR1: where every thread of a command is that seems to hang, on standard error. Traces hold code, no values.
    faulthandler.register(signal.SIGUSR1)
    sys.exit(exit_code_of(_invoke))


def _invoke() -> int:
    result = app(standalone_mode=False)
    return result if isinstance(result, int) else 0
