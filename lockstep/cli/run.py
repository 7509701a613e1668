"""Commands that run the pipeline until they are stopped: ``run``, ``capture`` and ``apply``."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from lockstep.cli.options import DEFAULT_CONFIG, ConfigOption


def run(config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Run capture and all sinks on one machine, supervised."""
    from lockstep.config import load
    from lockstep.console import StopOnSignals, log_to_stderr
    from lockstep.supervisor import run_group

    log_to_stderr()
    load(config)  # A wrong configuration is reported here, once, instead of by every process of the group.
    raise typer.Exit(run_group(config, StopOnSignals(interrupts=False)))


def capture(config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Read the WAL and publish it to Kafka.

    Takes the initial snapshot first where there is none. Stops cleanly on SIGTERM and Ctrl-C.
    """
    from lockstep.capture.display import observer
    from lockstep.capture.run import capture as run_capture
    from lockstep.config import load
    from lockstep.console import StopOnSignals, log_to_stderr
    from lockstep.terminal import err

    log_to_stderr()
    run_capture(load(config).as_pipeline(), stopping=StopOnSignals(), observer=observer(err))


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
    """Apply the topics to the sinks, with Spark.

    One driver runs one query per sink and generation. Reading events again is harmless: a row that a sink has in the
    same or a newer version stays.
    """
    names = tuple(sink or ())
    if from_lsn is not None and from_time is not None:
        raise typer.BadParameter("--from-lsn and --from-time exclude each other")
    is_moved = from_lsn is not None or from_time is not None
    if is_moved and len(names) != 1:
        raise typer.BadParameter("--from-lsn and --from-time need the name of one sink")
    lsn = None if from_lsn is None else _lsn(from_lsn)
    time_ms = None if from_time is None else _milliseconds(from_time)

    from lockstep.apply import apply_sinks, read_from
    from lockstep.config import load
    from lockstep.console import log_to_stderr, say

    log_to_stderr()
    loaded = load(config)
    if is_moved:
        read_from(loaded, names[0], lsn=lsn, time_ms=time_ms, say=say)
    raise typer.Exit(apply_sinks(loaded, sinks=names, once=once))


def _lsn(text: str) -> int:
    from cdc.model.lsn import parse_lsn

    try:
        return parse_lsn(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; an LSN looks like 0/16B3748", param_hint="'--from-lsn'") from None


def _milliseconds(moment: datetime) -> int:
    """Since 1970; a time without an offset is UTC."""
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
