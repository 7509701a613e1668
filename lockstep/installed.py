"""The extensions that are there, loaded by name: the one place where the core does that.

They come with Lockstep, so there is no need for entry points, which only an installed package has. Without the package
the core is alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from cdc.settings import Settings

SECTIONS: Final[Mapping[str, str]] = {"alerts": "alerts", "searches": "searches"}
"""Section of the configuration -> the extension whose it is, whether that is there or not."""


class Configured(Protocol):
    """As much of ``lockstep.extension.Extension`` as the configuration asks for."""

    @property
    def sections(self) -> "Callable[[], Mapping[str, type[Settings]]]": ...

    @property
    def problems(self) -> Callable[[Any], Iterable[str]]: ...


def extension_values() -> Sequence[Any]:
    """In the order of ``extensions/__init__.py``."""
    try:
        extensions = import_module("extensions")
    except ModuleNotFoundError as missing:
        if missing.name != "extensions":
            raise
        return ()
    found: Sequence[Any] = extensions.ALL
    return found


def configured() -> Sequence[Configured]:
    """The same, as the configuration sees them."""
    return extension_values()
