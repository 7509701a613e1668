"""Commands for the tables that capture has."""

from typing import Annotated

import typer

from lockstep.cli.completion import table_names
from lockstep.cli.options import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json


def remove(
    table: Annotated[list[str], typer.Argument(help="schema.table; several may be given.", autocompletion=table_names)],
    config: ConfigOption = DEFAULT_CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Say how tables leave capture, and whether they have.

    Changes nothing. The configuration file says what is captured: what to change in it is printed, then what to start
    again. What is left in topics, sinks and the publication is said as well. Exit code 1 until capture has none of the
    tables.
    """
    from lockstep.config import parse, read
    from lockstep.console import EXIT_FAILED
    from lockstep.table_removal import look_at_removal

    report = look_at_removal(read(config), parse(config), table)
    if as_json:
        print_json(report.to_json())
    else:
        typer.echo("\n".join(report.lines(str(config))))
    if not report.is_done:
        raise typer.Exit(EXIT_FAILED)
