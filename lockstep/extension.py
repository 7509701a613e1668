"""What an extension adds to the core, as one value, and which extensions there are.

The core is capture, copies, sinks, views, rebuild, verify, lag and doctor; it works without any extension.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module

Command = Callable[..., None]
"""A function that typer makes a command of. Its module is loaded for each help page, so it imports in its body."""


@dataclass(frozen=True, slots=True)
class Group:
    """Commands below a word of their own, as ``lockstep snapshot table``."""

    name: str
    help: str
    commands: Mapping[str, Command]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """What one folder of ``extensions/`` adds."""

    name: str
    """The folder's."""
    commands: Mapping[str, Sequence[Command]] = field(default_factory=dict)
    """Title of a part of ``lockstep --help`` -> commands that follow the core's there."""
    groups: Sequence[Group] = ()


def installed() -> tuple[Extension, ...]:
    """The extensions that are there, in the order of ``extensions/__init__.py``.

    This is the one place where the core loads them, by name: no module of the core depends on one. They come with
    Lockstep, so there is no need for entry points, which only an installed package has.
    """
    try:
        extensions = import_module("extensions")
    except ModuleNotFoundError as missing:
        if missing.name != "extensions":
            raise
        return ()
    found: tuple[Extension, ...] = extensions.ALL
    return found
