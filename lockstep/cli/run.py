"""Commands that run the pipeline until they are stopped: ``run``, ``capture``, ``apply`` and ``dashboard``."""

import os
from functools import partial
from typing import Annotated

import typer

from lockstep.cli.completion import sink_names, table_names
from lockstep.cli.options import (
    DEFAULT_CONFIG,
    ConfigOption,
    FromLsnOption,
    FromTimeOption,
    agreed,
    lsn_of,
    milliseconds_of,
    print_json,
)

_BEHIND_ROWS = 5
"""How much nicer the page is than what moves rows: on a busy machine it may be late, and they may not."""


def run(
    take_over: Annotated[
        bool, typer.Option("--take-over", help="End another run of this pipeline on this machine, and take its place.")
    ] = False,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Run capture, all sinks and the web page, supervised.

    Refused where another run of the pipeline is at work on this machine. Where the page's address is taken, the rest
    runs without it. Extensions add processes.
    """
    from lockstep.config import read
    from lockstep.console import StopOnSignals, log_to_stderr, say
    from lockstep.dashboard_settings import TOKEN_VARIABLE
    from lockstep.extension import installed
    from lockstep.run_lock import only_run
    from lockstep.supervisor import run_group

    log_to_stderr()
    loaded = read(config)  # A wrong one is reported here, once, instead of by every process of the group.
    loaded.dashboard.refuse_without_token(os.environ.get(TOKEN_VARIABLE))
    stopping = StopOnSignals(interrupts=False)
    lock = loaded.pipeline.data_directory / f"{loaded.pipeline.name}.run"
    with only_run(lock, take_over=take_over, say=say, wait=stopping.wait) as is_ours:
        code = 0
        if is_ours:
            code = run_group(
                config,
                stopping,
                without_page=[each.without_page for each in installed() if each.without_page],
                beside=[words for each in installed() for words in each.processes(loaded)],
            )
    raise typer.Exit(code)


def capture(
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait while another capture is at work, and take over when it is gone.")
    ] = False,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Read the WAL and publish it to Kafka.

    Takes the initial snapshot first where there is none. Stops cleanly on SIGTERM and Ctrl-C.
    """
    from lockstep.capture.display import observer
    from lockstep.capture.metrics import measured
    from lockstep.capture.run import capture as run_capture
    from lockstep.capture.standby import capture_in_turn
    from lockstep.config import read
    from lockstep.console import StopOnSignals, log_to_stderr
    from lockstep.terminal import err
    from monitor.metrics.definitions import Part
    from monitor.metrics.endpoint import open_meters

    log_to_stderr()
    loaded, stopping, watching = read(config), StopOnSignals(), observer(err)

    def capture_measured() -> None:
        # Whoever stands by has no figures, and the address may be that of the one at work.
        with open_meters(loaded.metrics, Part.CAPTURE) as meters:
            directory = loaded.as_pipeline().values_directory
            counting = watching
            if meters is not None:
                counting = measured(watching, meters, values=directory, pipeline=loaded.pipeline.name)
            run_capture(loaded.as_pipeline(), stopping=stopping, observer=counting)

    if standby:
        capture_in_turn(loaded.as_pipeline(), stopping=stopping, say=watching.say, capture=capture_measured)
    else:
        capture_measured()


def dashboard(
    config: ConfigOption = DEFAULT_CONFIG,
    once: Annotated[bool, typer.Option("--once", help="Print what the first screen shows as JSON, and end.")] = False,
) -> None:
    """Serve the pipeline's web page and its JSON API.

    Looks at every server once a second at most, however many pages look. Listens where dashboard.listen says, by
    default only for this machine.
    """
    from lockstep.config import read
    from lockstep.console import log_to_stderr, say
    from lockstep.dashboard.server import look_once, serve

    loaded = read(config)
    if once:
        print_json(look_once(loaded).model_dump())
        return
    log_to_stderr()
    os.nice(_BEHIND_ROWS)
    serve(loaded, config.absolute(), say=say)


def recover(
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="Copy only this table again; may be repeated. Default: all with a key.", autocompletion=table_names
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Let capture go on after a restore or a lost slot.

    Says what is missing, makes a new slot, and has capture copy the tables again, under the same pipeline. Topics and
    sinks stay: rows change, and none that exists vanishes. Ends a capture that runs.
    """
    from lockstep.capture.recover import Recovery
    from lockstep.capture.recover import recover as run_recover
    from lockstep.config import load
    from lockstep.console import EXIT_FAILED, StopOnSignals, say

    stopping: StopOnSignals | None = None

    def begins(recovery: Recovery) -> bool:
        nonlocal stopping
        say(str(recovery))
        if not agreed("begin?", yes=yes):
            return False
        stopping = StopOnSignals()  # not before: Ctrl-C is an answer to the question, too
        return True

    state = run_recover(
        load(config).as_pipeline(),
        table or (),
        agreed=begins,
        stopping=lambda: stopping is not None and stopping(),
        say=say,
    )
    if state is None:
        say("nothing was changed")
        raise typer.Exit(EXIT_FAILED)
    say("start capture now (lockstep run, or lockstep capture): it copies the tables while it streams")


def apply(
    sink: Annotated[
        list[str] | None,
        typer.Argument(help="Sinks to apply to; default all of the configuration.", autocompletion=sink_names),
    ] = None,
    once: Annotated[bool, typer.Option(help="Stop at the topics' end as of now.")] = False,
    from_lsn: FromLsnOption = None,
    from_time: FromTimeOption = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Don't ask before --from-lsn or --from-time leaves events out.")
    ] = False,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Apply the topics to the sinks, with Spark.

    One driver runs one query per sink and generation. Reading events again is harmless: a row that a sink has in the
    same or a newer version stays. Asks before events are left out.
    """
    names = tuple(sink or ())
    if from_lsn is not None and from_time is not None:
        raise typer.BadParameter("--from-lsn and --from-time exclude each other")
    is_moved = from_lsn is not None or from_time is not None
    if is_moved and len(names) != 1:
        raise typer.BadParameter("--from-lsn and --from-time need the name of one sink")
    lsn = None if from_lsn is None else lsn_of(from_lsn)
    time_ms = None if from_time is None else milliseconds_of(from_time)

    from jobs.report import log_report
    from lockstep.apply import apply_sinks, read_from
    from lockstep.config import load
    from lockstep.console import EXIT_FAILED, log_to_stderr, say
    from lockstep.extension import installed
    from monitor.metrics.definitions import Part
    from monitor.metrics.endpoint import open_meters
    from monitor.metrics.settings import MetricsSettings
    from monitor.metrics.sinks import measured

    log_to_stderr()
    loaded = load(config)
    if is_moved:
        may_leave_out = partial(agreed, yes=yes)
        if not read_from(loaded, names[0], lsn=lsn, time_ms=time_ms, agreed=may_leave_out, say=say):
            raise typer.Exit(EXIT_FAILED)
    # Whoever applies once ends before anybody looks, and may run beside a process that has the address.
    settings = MetricsSettings() if once else loaded.metrics
    added = [definition for each in installed() for definition in each.metrics()]
    with open_meters(settings, Part.APPLY, added) as meters:
        report = log_report if meters is None else measured(log_report, meters)
        code = apply_sinks(loaded, sinks=names, once=once, report=report)
    raise typer.Exit(code)
