"""Commands of the local servers: ``up``, ``down`` and ``status``."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lockstep.cli.completion import server_names
from lockstep.cli.options import DEFAULT_CONFIG, ConfigOption, JsonOption, print_json
from stack.directory import DEFAULT_DIRECTORY

if TYPE_CHECKING:
    from stack.stack import ServerStatus

SERVER_OF: Final = {
    "source_dsn": "postgres",
    "warehouse_dsn": "warehouse",
    "warehouse_url": "warehouse",
    "kafka_bootstrap": "kafka",
    "opensearch_url": "opensearch",
    "redis_url": "valkey",
}
"""An address that ``up`` prints -> the server that is there."""

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")

DirectoryOption = Annotated[Path, typer.Option("--directory", help="Where the local servers keep data and logs.")]


def up(
    server: Annotated[
        list[str] | None,
        typer.Argument(
            help="Only these servers; default all, without the source where the configuration has another one.",
            autocompletion=server_names,
        ),
    ] = None,
    directory: DirectoryOption = DEFAULT_DIRECTORY,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Start the local servers.

    They are postgres (the source), warehouse (another PostgreSQL), kafka, opensearch and valkey. Those that run already
    stay as they are. Where source.dsn of the configuration leads to another server, postgres isn't started unless it is
    named.
    """
    from dataclasses import asdict

    from lockstep.console import say
    from stack.stack import NAMES, Stack

    stack = Stack(directory, light=True)
    wanted = server or list(NAMES)
    if not server and has_other_source(config, stack.endpoints().source_dsn if stack.exists else None):
        wanted.remove("postgres")
        say(f"postgres: not started, since source.dsn of {config} leads to another server; `lockstep up postgres` does")
    endpoints = stack.up(wanted, report=lambda name, what: say(f"{name}: {what}"))
    for name, value in asdict(endpoints).items():
        if SERVER_OF[name] in wanted:
            print(f"{name} = {value}")  # noqa: T201  the result


def has_other_source(config: Path, local: str | None) -> bool:
    """Whether a configuration is there whose source isn't the local one, which is at ``local`` if it ever was up.

    A file that can't be read says nothing: the commands that need it tell what is wrong.
    """
    from cdc.model.errors import ConfigurationError
    from cdc.postgres.dsn import parse_dsn
    from lockstep.config import read

    try:
        captured = parse_dsn(read(config).source.dsn)
    except ConfigurationError:
        return False
    return local is None or _place(captured) != _place(parse_dsn(local))


def _place(parts: Mapping[str, object]) -> tuple[str, str]:
    """Host and port of a connection string's parts; without them libpq asks its environment, as the source's does."""
    host = str(parts.get("host") or parts.get("hostaddr") or os.environ.get("PGHOST", ""))
    return "127.0.0.1" if host in _LOOPBACK else host, str(parts.get("port") or os.environ.get("PGPORT", "5432"))


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
    from monitor.units import readable_bytes

    table = Table()
    for heading in ("server", "state", "address", "version", "pid", "memory"):
        table.add_column(heading)
    for server in servers:
        memory = readable_bytes(server.rss_bytes) if server.rss_bytes else ""
        table.add_row(server.name, server.state, server.address, server.version, str(server.pid or ""), memory)
    out.print(table)
