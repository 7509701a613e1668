"""``lockstep erase``."""

import sys
from typing import Annotated

import typer

from lockstep.cli.completion import table_names
from lockstep.cli.options import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json, write_at_once


def erase(
    table: Annotated[str, typer.Argument(help="schema.table", autocompletion=table_names)],
    key: Annotated[
        str, typer.Argument(help="The row's key as JSON, or the one value of it; - reads it from standard input.")
    ],
    config: ConfigOption = DEFAULT_CONFIG,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what is where, and change nothing.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for each topic and sink at most.")] = 120.0,
    as_json: JsonOption = False,
) -> None:
    """Remove a deleted row for good, wherever Lockstep keeps it.

    It has to be deleted at the source first. Looks at its topic, at every generation of every sink and of views that
    read the table, at dead letters, at what extensions keep and at the store of large values.
    Says what is left, why, and until when. Exit code 0 when nothing is left, 5 when something is until a time that is
    known, and 1 when that isn't proven. Run it again after Ctrl-C or a crash: it continues.
    """
    from extensions.erase.erase import erase as erase_row
    from lockstep.config import load
    from lockstep.console import StopOnSignals, say

    report = erase_row(
        load(config),
        table,
        sys.stdin.readline().rstrip("\r\n") if key == "-" else key,
        dry_run=dry_run,
        timeout_s=timeout,
        stopping=StopOnSignals(),
        say=say,
    )
    if as_json:
        print_json(report.to_json())
    else:
        write_at_once("".join(f"{line}\n" for line in report.lines()))
    raise typer.Exit(report.exit_code)
