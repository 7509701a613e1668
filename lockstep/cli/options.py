"""Options and arguments that several commands share, and how each prints JSON."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from cdc.model.printable import visible_lines
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

FromLsnOption = Annotated[str | None, typer.Option("--from-lsn", help="Start with commits after this LSN (0/16B3748).")]
FromTimeOption = Annotated[
    datetime | None,
    typer.Option(
        "--from-time",
        formats=["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S%z"],
        help="Start with records published at this time (UTC where no offset is given).",
    ),
]


def print_json(document: Any) -> None:
    """Print one JSON document, indented, to standard output."""
    print(json.dumps(document, indent=2))  # noqa: T201  the result


def write_at_once(text: str) -> None:
    """Into a pipe as well, where Python would wait for more."""
    sys.stdout.write(visible_lines(text))
    sys.stdout.flush()


def may_ask(*, yes: bool) -> None:
    """Raises ConfigurationError where something is asked before it is done, and there is nobody to answer."""
    if not yes and not sys.stdin.isatty():
        from cdc.model.errors import ConfigurationError

        raise ConfigurationError("this asks first, and there is no terminal to ask", hint="add --yes")


def agreed(question: str, *, yes: bool) -> bool:
    """Ask on the terminal, unless ``yes`` has answered. Raises ConfigurationError as ``may_ask``."""
    may_ask(yes=yes)
    return yes or typer.confirm(question, err=True)


def lsn_of(text: str) -> int:
    """Of ``--from-lsn``. Raises BadParameter for what isn't one."""
    from cdc.model.lsn import parse_lsn

    try:
        return parse_lsn(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; an LSN looks like 0/16B3748", param_hint="'--from-lsn'") from None


def milliseconds_of(moment: datetime) -> int:
    """Since 1970; a time without an offset is UTC. Raises BadParameter for one in the future."""
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment > datetime.now(UTC):
        raise typer.BadParameter("nothing can be published in the future yet", param_hint="'--from-time'")
    return int(moment.timestamp() * 1000)


def text_of(file: Path) -> str:
    """The text of ``--file``; ``-`` is standard input. Raises ConfigurationError for a file that can't be read."""
    from cdc.model.errors import ConfigurationError

    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"--file {file} can't be read: {error.strerror}", hint="check its path") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"--file {file} is not UTF-8", hint="save it as UTF-8") from error
