"""Commands of stream queries: ``list`` and ``rebuild``."""

from typing import Annotated

import typer

from lockstep.cli.completion import rejecting_names
from lockstep.cli.options import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json


def list_all(config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Show the stream queries: the state of each, its watermark, and how many events were late.

    Asks the stores, and reads nothing of Kafka. Exit code 1 when one isn't run.
    """
    from extensions.streams.watch import panel_now
    from lockstep.config import read
    from lockstep.console import EXIT_FAILED, say
    from lockstep.terminal import out
    from monitor.lag_table import panel_table

    panel = panel_now(read(config))
    rows = () if panel is None else panel.rows
    if as_json:
        print_json([row.document for row in rows])
    elif panel is not None:
        out.print(panel_table(panel))
    else:
        say("this configuration has no stream queries")
    if any(row.needs_somebody for row in rows):
        raise typer.Exit(EXIT_FAILED)


def rebuild(
    query: Annotated[
        str,
        typer.Argument(metavar="QUERY", help="A stream query of the configuration.", autocompletion=rejecting_names),
    ],
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Begin to build a query's result again, from what its topics still hold.

    A running `lockstep apply` or `lockstep run` goes on with it at once, else the next one does. Readers have the
    result as it was until the new one has all that the topics hold.
    """
    from extensions.streams.queries import rebuild_stream_query
    from lockstep.config import read
    from lockstep.console import say

    number = rebuild_stream_query(read(config), query)
    say(f"stream query {query}: build {number} has begun; `lockstep apply {query}` goes on with it")
