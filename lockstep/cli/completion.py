"""What the shell offers for a word: sinks and tables as the configuration file has them, and the local servers.

Reads nothing but that file, and says nothing: where it is missing or wrong, nothing is offered.
"""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from lockstep.installed_extensions import extension_values


def sink_names(context: typer.Context, incomplete: str) -> list[str]:
    """The sinks of the configuration whose names begin so."""
    sinks = _document(context).get("sinks")
    return _beginning(sinks if isinstance(sinks, dict) else (), incomplete)


def view_names(context: typer.Context, incomplete: str) -> list[str]:
    """The views of the configuration whose names begin so."""
    views = _document(context).get("views")
    return _beginning(views if isinstance(views, dict) else (), incomplete)


def rejecting_names(context: typer.Context, incomplete: str) -> list[str]:
    """The sinks of the configuration, and what names one in the section of an extension, whose names begin so."""
    document = _document(context)
    sections = (document.get(name) for each in extension_values() for name in each.sections)
    entries = (entry for section in sections if isinstance(section, dict) for entry in section.items())
    names = [name for name, entry in entries if isinstance(entry, dict) and "sink" in entry]
    return sink_names(context, incomplete) + _beginning(names, incomplete)


def table_names(context: typer.Context, incomplete: str) -> list[str]:
    """The captured tables whose names begin so, of those that the file names."""
    from cdc.model.table_pattern import is_pattern

    source = _document(context).get("source")
    tables = source.get("tables") if isinstance(source, dict) else ()
    names = tables if isinstance(tables, list) else []
    return _beginning([name for name in names if not (isinstance(name, str) and is_pattern(name))], incomplete)


def server_names(incomplete: str) -> list[str]:
    """The local servers whose names begin so."""
    from stack.stack import NAMES

    return _beginning(NAMES, incomplete)


def _document(context: typer.Context) -> dict[str, Any]:
    """The file that the line names so far, else the one that the command would read."""
    path = context.params.get("config")
    if path is None:
        return {}
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return {}


def _beginning(names: Iterable[object], incomplete: str) -> list[str]:
    return [name for name in names if isinstance(name, str) and name.startswith(incomplete)]
