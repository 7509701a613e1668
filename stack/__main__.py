"""`python -m stack up|down|status|remove`: the local servers without the rest of the program."""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from stack.directory import DEFAULT_DIRECTORY
from stack.errors import StackError
from stack.stack import NAMES, ServerStatus, Stack


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0 when it is done, 1 when it failed."""
    parser = argparse.ArgumentParser(prog="python -m stack", description="the servers on this machine")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("up", "down", "status", "remove"):
        command = commands.add_parser(name)
        command.add_argument("--directory", type=Path, default=DEFAULT_DIRECTORY)
        command.add_argument("--json", action="store_true")
        if name == "up":
            command.add_argument("servers", nargs="*", metavar="SERVER", help=f"some of {', '.join(NAMES)}")
    options = parser.parse_args(arguments)
    stack = Stack(options.directory)
    try:
        if options.command == "up":
            _up(stack, options.servers or None, options.json)
        elif options.command == "down":
            _report("stopped", ", ".join(stack.down(_report)) or "nothing, since no server ran")
        elif options.command == "remove":
            stack.remove(_report)
        else:
            _status(stack.status(), options.json)
    except StackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _up(stack: Stack, servers: Sequence[str] | None, as_json: bool) -> None:
    endpoints = dataclasses.asdict(stack.up(servers, _report))
    if as_json:
        print(json.dumps(endpoints, indent=2))
    else:
        print("\n".join(f"{name:16} {address}" for name, address in endpoints.items()))


def _report(name: str, what: str) -> None:
    print(f"{name}: {what}", file=sys.stderr)


def _status(servers: Sequence[ServerStatus], as_json: bool) -> None:
    if as_json:
        print(json.dumps([dataclasses.asdict(server) for server in servers], indent=2, default=str))
        return
    for server in servers:
        age = f"{time.time() - server.started_at.timestamp():.0f} s" if server.started_at else "-"
        memory = f"{server.rss_bytes / 1e6:.0f} MB"
        print(f"{server.name:11} {server.version:8} {server.state:8} {age:>8} {memory:>8}  {server.address}")


if __name__ == "__main__":
    raise SystemExit(main())
