"""A kind of destination as one value: all that the rest of Lockstep knows of it, besides its settings.

A kind is a package with a value ``KIND`` in ``kind.py``, and one line of ``sinks.registry``. Importing ``kind.py``
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
    """A kind of sink, which ``type`` of a section names. All fields without a default are required."""

    settings: type[TableSettings]
    """Its settings; the default of their field ``type`` is the kind's name."""

    open: Callable[[str, Any, int], OpenedSink]
    """Name of the sink, its settings and a generation -> the destination. It connects when it is first used."""

    client: str
    """The module of its client library."""

    address_setting: str
    """The line of a section that has the address, with ``{address}`` for the address as TOML."""

    schemes: tuple[str, ...]
    """How such an address may begin, as in ``https``; "" for a path."""

    example: str
    """Its section in the file of ``lockstep init``, every line as a comment; ``$$`` stands for ``$``."""

    check_new: Callable[[str, Any, Sequence[Table]], str] = _takes_any
    """Has the server say whether it would take a new generation of these tables, which are as the sink gets them.

    Creates nothing. Returns why it can't say, "" where nothing is left to be known. Raises LockstepError with the
    server's reason, Unavailable when it doesn't answer.
    """

    why_late_writes_are_unseen: Callable[[str, Any], str] = _sees_late_writes
    """Why a job that takes a view over can't see a write of the job before that the server has begun; "" where it can.

    Raises as ``check_new``.
    """

    backups_keep: str = ""
    """What ``lockstep erase`` can't reach of a row, a sentence; "" where it can't erase at all."""

    libpq: Callable[[Any], Mapping[str, Any]] = _isnt_postgresql
    """Settings -> what libpq is given to connect, by libpq's names, the password among it; empty for another store.

    Raises ConfigurationError.
    """

    @property
    def name(self) -> str:
        return cast("str", self.settings.model_fields["type"].default)
