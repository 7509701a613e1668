"""Options and arguments that several commands share, and how each prints JSON."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep.cli.completion import sink_names, table_names

DEFAULT_CONFIG = Path("lockstep.toml")

ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="Configuration file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
SinkArgument = Annotated[
    str, typer.Argument(metavar="SINK", help="A sink of the configuration.", autocompletion=sink_names)
]
SinksOption = Annotated[
    list[str] | None, typer.Option("--sink", help="Only this sink; may be repeated.", autocompletion=sink_names)
]
TablesOption = Annotated[
    list[str] | None, typer.Option("--table", help="Only this table; may be repeated.", autocompletion=table_names)
]


def print_json(document: Any) -> None:
    """Print one JSON document, indented, to standard output."""
    print(json.dumps(document, indent=2))  # noqa: T201  the result
