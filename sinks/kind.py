"""A kind of destination as one value: everything that other packages know of it, besides its settings.

A kind is a package with a value ``KIND`` in ``kind.py``, and one line in ``sinks.registry``. Importing ``kind.py``
loads no client library.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from cdc.model.table import Table
from sinks.contract import OpenedSink
from sinks.table_settings import TableSettings


def _takes_any(_name: str, _settings: Any, _tables: Sequence[Table]) -> str:
    return ""


def _isnt_postgresql(_settings: Any) -> Mapping[str, Any]:
    return {}


def _sees_late_writes(_name: str, _settings: Any) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class SinkKind:
    """A kind of sink, named by ``type`` of a section. All fields without a default are required."""

    settings: type[TableSettings]
    """Its settings; the default of their field ``type`` is the kind's name."""

    open: Callable[[str, Any, int], OpenedSink]
    """Name of the sink, its settings and a generation -> the destination. It connects when it is first used."""

    client: str
    """The module of its client library."""

    address_setting: str
    """The line of a section that gives the address. ``{address}`` stands for the address as TOML."""

    schemes: tuple[str, ...]
    """How such an address may begin, such as ``https``; "" for a path."""

    example: str
    """Its section in the file of ``lockstep init``, every line as a comment; ``$$`` stands for ``$``."""

    check_new: Callable[[str, Any, Sequence[Table]], str] = _takes_any
    """Asks the server whether it would take a new generation of these tables, given as the sink gets them. Creates
    nothing.

    Returns why the server can't say, or "" if everything is known. Raises LockstepError with the server's reason, and
    Unavailable when it doesn't answer.
    """

    why_late_writes_are_unseen: Callable[[str, Any], str] = _sees_late_writes
    """Why the next job of a view can't see the former job's late writes; "" if it can. Raises as ``check_new`` does."""

    backups_keep: str = ""
    """What ``lockstep erase`` can't reach of a row, as a sentence; "" if it can't erase at all."""

    libpq: Callable[[Any], Mapping[str, Any]] = _isnt_postgresql
    """Settings -> libpq's parameters, password included; empty for other stores. Raises ConfigurationError."""

    @property
    def name(self) -> str:
        return cast("str", self.settings.model_fields["type"].default)
