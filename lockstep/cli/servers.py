"""Commands of the local servers: ``demo``, ``up``, ``down`` and ``status``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lockstep.cli.completion import server_names
from lockstep.cli.options import JsonOption, print_json
from stack.directory import DEFAULT_DIRECTORY

if TYPE_CHECKING:
    from stack.stack import ServerStatus

_SERVER_OF: Final = {
    "source_dsn": "postgres",
    "warehouse_dsn": "warehouse",
    "warehouse_url": "warehouse",
    "kafka_bootstrap": "kafka",
    "opensearch_url": "opensearch",
    "redis_url": "valkey",
}
"""An address that ``up`` prints -> the server that is there."""

DirectoryOption = Annotated[Path, typer.Option("--directory", help="Where the local servers keep data and logs.")]


def demo(
    seconds: Annotated[
        float | None, typer.Option(min=1, help="Stop the writer after so many seconds, compare, print the result.")
    ] = None,
    as_json: JsonOption = False,
    keep: Annotated[bool, typer.Option(help="Leave the local servers running at the end.")] = False,
    rate: Annotated[
        float, typer.Option(min=0.1, help="Transactions per second that the sample application writes.")
    ] = 50.0,
    directory: Annotated[Path, typer.Option(help="Where the demo keeps its data and logs.")] = Path(".lockstep/demo"),
) -> None:
    """Run everything on this machine, with a sample shop.

    Starts the local servers, copies the shop's tables, captures its live traffic, applies it to the sinks and shows
    the lag.
    """
    if as_json and seconds is None:
        raise typer.BadParameter("--json needs --seconds: lockstep demo --seconds 60 --json")

    from lockstep.demo.demo import run_demo

    raise typer.Exit(run_demo(seconds=seconds, as_json=as_json, keep=keep, directory=directory, rate=rate))


def up(
    server: Annotated[
        list[str] | None, typer.Argument(help="Only these servers; default all.", autocompletion=server_names)
    ] = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
) -> None:
    """Start the local servers.

    They are postgres (the source), warehouse (another PostgreSQL), kafka, opensearch and valkey. Those that run already
    stay as they are.
    """
    from dataclasses import asdict

    from lockstep.console import say
    from stack.stack import Stack

    endpoints = Stack(directory).up(server or None, report=lambda name, what: say(f"{name}: {what}"))
    for name, value in asdict(endpoints).items():
        if not server or _SERVER_OF[name] in server:
            print(f"{name} = {value}")  # noqa: T201  the result


def down(directory: DirectoryOption = DEFAULT_DIRECTORY) -> None:
    """Stop the local servers. Their data stays."""
    from lockstep.console import say
    from stack.stack import Stack

    stopped = Stack(directory).down(report=lambda name, what: say(f"{name}: {what}"))
    say(f"stopped {', '.join(stopped)}" if stopped else f"no server ran in {directory}")


def status(directory: DirectoryOption = DEFAULT_DIRECTORY, as_json: JsonOption = False) -> None:
    """Show the local servers."""
    from stack.stack import Stack

    servers = Stack(directory).status()
    if as_json:
        print_json(_status_json(servers))
    else:
        _print_status(servers)


def _status_json(servers: "Sequence[ServerStatus]") -> list[dict[str, object]]:
    return [
        {
            "name": server.name,
            "version": server.version,
            "state": server.state,
            "pid": server.pid,
            "address": server.address,
            "started_at": server.started_at.isoformat() if server.started_at else None,
            "rss_bytes": server.rss_bytes,
            "log": str(server.log),
        }
        for server in servers
    ]


def _print_status(servers: "Sequence[ServerStatus]") -> None:
    from rich.table import Table

    from lockstep.terminal import out
    from monitor.table import readable_bytes

    table = Table()
    for heading in ("server", "state", "address", "version", "pid", "memory"):
        table.add_column(heading)
    for server in servers:
        memory = readable_bytes(server.rss_bytes) if server.rss_bytes else ""
        table.add_row(server.name, server.state, server.address, server.version, str(server.pid or ""), memory)
    out.print(table)
