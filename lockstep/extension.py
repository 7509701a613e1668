"""What an extension adds to the core, as one value, and the extensions that are installed.

The core is capture, copies, sinks, views, rebuild, verify, lag and doctor; it works without any extension.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockstep.installed_extensions import extension_values

if TYPE_CHECKING:
    from cdc.model.finding import Finding
    from lockstep.added_stores import AddedStore
    from lockstep.config import Config
    from lockstep.erasing import DeletedRow, Eraser, Means
    from monitor.condition_watch import Reporter
    from monitor.metrics.definitions import Definition
    from monitor.watching import Found, Panel, Watch

Command = Callable[..., None]
"""A function that typer makes a command of. Its module is loaded for each help page, so it imports in its body."""


@dataclass(frozen=True, slots=True)
class Group:
    """Commands below a word of their own, such as ``lockstep snapshot table``."""

    name: str
    help: str
    commands: Mapping[str, Command]


@dataclass(frozen=True, slots=True)
class Reached:
    """The servers that have answered ``doctor``."""

    kafka: bool
    sinks: Sequence[str]


def _nothing(*_: object) -> tuple[()]:
    return ()


def _no_stores(_: object) -> "Mapping[str, AddedStore]":
    return {}


def _no_panel(_: object) -> None:
    return None


def _as_it_is(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    return dict(document), []


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """What one folder of ``extensions/`` adds. Everything but commands is named with ``cdc.model.later``."""

    name: str
    """The folder's name."""
    commands: Mapping[str, Sequence[Command]] = field(default_factory=dict)
    """Title of a section of ``lockstep --help`` -> commands that follow the core's there."""
    groups: Sequence[Group] = ()
    sections: Mapping[str, str] = field(default_factory=dict)
    """Section of the configuration -> ``module:name`` of its settings. ``Config.section`` returns them."""
    expanded: Callable[[Mapping[str, Any]], tuple[dict[str, Any], list[str]]] = _as_it_is
    """Returns the document with what its sections take over from others, and problems that the models won't find.
    Called before a document is validated, maybe twice."""
    stores: "Callable[[Config], Mapping[str, AddedStore]]" = _no_stores
    """Its stores by name. Called wherever something is looked up by name."""
    problems: "Callable[[Config], Iterable[str]]" = _nothing
    """Conflicts between its settings and the others, as sentences that begin with the setting."""
    example: str = ""
    """Its part of the file that ``lockstep init`` writes, commented out, with every setting."""
    processes: "Callable[[Config], Sequence[Sequence[str]]]" = _nothing
    """Commands that ``lockstep run`` keeps running beside the core's. None of their exit codes ends the group."""
    without_page: Sequence[str] = ()
    """A command that ``lockstep run`` runs when there is no page. It does the other work of the page's process."""
    doctor: "Callable[[Reached, Config], Iterable[Finding]]" = _nothing
    """Its findings. Raises LockstepError if a server doesn't answer."""
    conditions: Sequence[str] = ()
    """The names of all conditions that ``watch`` may find."""
    metrics: "Callable[[], Sequence[Definition]]" = _nothing
    """The definitions of all figures that ``watch`` may find."""
    watch: "Callable[[Config], Watch[Found]] | None" = None
    """What the page and alerts show of it."""
    watch_every_s: float = 10.0
    panel: "Callable[[Config], Panel | None]" = _no_panel
    """What ``watch`` would find for the page. Called by commands that show the pipeline once, as ``lockstep lag``."""
    reporter: "Callable[[Config], Reporter] | None" = None
    """Reports to somebody what is wrong."""
    eraser: "Callable[[Config, DeletedRow, Means], Eraser] | None" = None
    """What erases a row from what the extension stores. Called before anything is changed."""


def installed() -> tuple[Extension, ...]:
    return tuple(extension_values())


def panels_now(config: "Config") -> "list[Panel]":
    found = (each.panel(config) for each in installed())
    return [panel for panel in found if panel is not None]
