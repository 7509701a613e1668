"""Commands of stream queries: ``list`` and ``rebuild``."""

from typing import Annotated

import typer

from lockstep.cli.completion import stream_query_names
from lockstep.cli.options import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json


def list_all(config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Show the stream queries: the state of each, its watermark, and how many events were late.

    Asks the stores, and reads nothing of Kafka. Exit code 1 when one isn't run.
    """
    from lockstep.config import read
    from lockstep.console import EXIT_FAILED, say
    from lockstep.stream_queries import stream_queries_now, stream_queries_table
    from lockstep.terminal import out

    statuses = stream_queries_now(read(config))
    if as_json:
        print_json([status.to_json() for status in statuses])
    elif statuses:
        out.print(stream_queries_table(statuses))
    else:
        say("this configuration has no stream queries")
    if any(status.needs_somebody for status in statuses):
        raise typer.Exit(EXIT_FAILED)


def rebuild(
    query: Annotated[
        str,
        typer.Argument(metavar="QUERY", help="A stream query of the configuration.", autocompletion=stream_query_names),
    ],
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Begin to build a query's result again, from what its topics still hold.

    A running `lockstep apply` or `lockstep run` goes on with it at once, else the next one does. Readers have the
    result as it was until the new one has all that the topics hold.
    """
    from lockstep.config import read
    from lockstep.console import say
    from lockstep.stream_queries import rebuild_stream_query

    number = rebuild_stream_query(read(config), query)
    say(f"stream query {query}: build {number} has begun; `lockstep apply {query}` goes on with it")
