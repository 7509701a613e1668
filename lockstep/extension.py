"""What an extension adds to the core, as one value, and which extensions there are.

The core is capture, copies, sinks, views, rebuild, verify, lag and doctor; it works without any extension.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lockstep.installed import extension_values

if TYPE_CHECKING:
    from cdc.model.event import JsonValue
    from cdc.model.finding import Finding
    from cdc.model.table import TableName
    from lockstep.config import Config
    from monitor.condition_watch import Reporter
    from monitor.metrics.definitions import Definition
    from monitor.watching import Found, Watch

Command = Callable[..., None]
"""A function that typer makes a command of. Its module is loaded for each help page, so it imports in its body."""


@dataclass(frozen=True, slots=True)
class Group:
    """Commands below a word of their own, as ``lockstep snapshot table``."""

    name: str
    help: str
    commands: Mapping[str, Command]


@dataclass(frozen=True, slots=True)
class Reached:
    """Which servers have answered ``doctor``."""

    kafka: bool
    sinks: Sequence[str]
    """Their names."""


class KeyedTopic(Protocol):
    """A topic of an extension whose records' keys have a row's key: what is erased of a row there."""

    @property
    def name(self) -> str: ...

    def is_of_row(self, record_key: bytes) -> bool:
        """Whether a record is of the row."""
        ...

    def why_open(self, record_keys: Iterable[bytes]) -> str | None:
        """Why these keys of the row, whose newest records are no tombstones, prove nothing yet; None where they do."""
        ...


def _nothing(*_: object) -> tuple[()]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """What one folder of ``extensions/`` adds. What isn't a command is named with ``cdc.model.later``."""

    name: str
    """The folder's."""
    commands: Mapping[str, Sequence[Command]] = field(default_factory=dict)
    """Title of a part of ``lockstep --help`` -> commands that follow the core's there."""
    groups: Sequence[Group] = ()
    sections: Mapping[str, str] = field(default_factory=dict)
    """Section of the configuration -> ``module:name`` of its settings; ``Config.section`` has them."""
    problems: "Callable[[Config], Iterable[str]]" = _nothing
    """How its settings don't go with the others, in sentences that begin with the setting."""
    example: str = ""
    """Its part of the file that ``lockstep init`` writes, commented out, with every setting."""
    processes: "Callable[[Config], Sequence[Sequence[str]]]" = _nothing
    """Commands that ``lockstep run`` keeps running beside the core's. No exit code of theirs ends the group."""
    without_page: Sequence[str] = ()
    """A command that ``lockstep run`` runs where there is no page: it does what the page's process does beside."""
    doctor: "Callable[[Reached, Config], Iterable[Finding]]" = _nothing
    """Raises LockstepError where a server doesn't answer."""
    conditions: Sequence[str] = ()
    """The names of all conditions that ``watch`` may find."""
    metrics: "Callable[[], Sequence[Definition]]" = _nothing
    """The definitions of all figures that ``watch`` may find."""
    watch: "Callable[[Config], Watch[Found]] | None" = None
    """What the page and alerts learn of it."""
    reporter: "Callable[[Config], Reporter] | None" = None
    """Who reports to somebody what is wrong."""
    keyed_topics: "Callable[[Config, TableName, Mapping[str, JsonValue]], Iterable[KeyedTopic]]" = _nothing
    """Its topics that may have records of a row, by table and key. Raises LockstepError where that can't be known."""


def installed() -> tuple[Extension, ...]:
    """The extensions that are there."""
    return tuple(extension_values())
