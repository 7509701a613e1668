"""Commands of standing searches: ``add``, ``list``, ``remove`` and ``watch``."""

from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.completion import sink_names
from lockstep.cli.options import DEFAULT_CONFIG, ConfigOption, JsonOption, SinksOption, print_json, text_of

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The search's name.")]
OneSinkOption = Annotated[str, typer.Option("--sink", help="A sink in OpenSearch.", autocompletion=sink_names)]


def add(
    name: NameArgument,
    sink: OneSinkOption,
    table: Annotated[str, typer.Option("--table", help="The table whose documents are searched, schema.table.")],
    query: Annotated[
        str | None, typer.Option("--query", help="The query, in OpenSearch's JSON; or name it with --file.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="A file with the query; - is standard input.", allow_dash=True)
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Add a standing search: documents that begin or cease to match are reported on <pipeline>.__matches.

    Begins with those that match now. A query that the table's index can't take is refused with the reason.
    """
    from extensions.searches.commands import add as add_search
    from extensions.searches.commands import parse_search
    from lockstep.config import read
    from lockstep.console import say

    if (query is None) == (file is None):
        raise typer.BadParameter("name the query with one of --query and --file")
    text = query if query is not None else text_of(file or Path("-"))
    add_search(read(config), sink, parse_search(name, table, text), say=say)


def list_all(sink: SinksOption = None, config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """Show the standing searches, how many documents match each, and why one isn't reported.

    Exit code 1 when one isn't reported.
    """
    from extensions.searches.commands import listed, searches_table
    from lockstep.config import read
    from lockstep.console import EXIT_FAILED, say
    from lockstep.terminal import out

    searches = list(listed(read(config), sink or ()))
    if as_json:
        print_json([search.to_json() for search in searches])
    elif searches:
        out.print(searches_table(searches))
    else:
        say("there are no searches")
    if any(search.problem is not None for search in searches):
        raise typer.Exit(EXIT_FAILED)


def remove(name: NameArgument, sink: OneSinkOption, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Remove a standing search. Every document that matches it ceases to."""
    from extensions.searches.commands import remove as remove_search
    from lockstep.config import read
    from lockstep.console import say

    remove_search(read(config), sink, name)
    say(f"{sink} has no search {name} any more")


def watch(
    sink: Annotated[
        list[str] | None,
        typer.Argument(help="Sinks in OpenSearch; default those that [searches] names.", autocompletion=sink_names),
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Report which documents begin and cease to match standing searches, as sinks apply changes.

    `lockstep run` does the same. Of several processes for one sink the newest reports.
    """
    from extensions.searches.commands import watch as watch_searches
    from lockstep.config import read
    from lockstep.console import StopOnSignals, log_to_stderr

    log_to_stderr()
    watch_searches(read(config), sink or (), stopping=StopOnSignals())
