"""Chooses between compiled modules and Python's code: which one is wanted, and whether the compiled one is usable.
Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from types import ModuleType
from typing import Final

from cdc.model.errors import ConfigurationError

VARIABLE: Final = "LOCKSTEP_KERNEL"
"""The environment variable that chooses, at build time and at run time."""


class KernelChoice(StrEnum):
    """``AUTO``: compiled if possible. ``OFF``: Python. ``REQUIRE``: compiled, or an error."""

    AUTO = "auto"
    OFF = "off"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True)
class CompiledCode:
    """``module`` is the compiled code; None means Python's code, and ``why`` says why."""

    module: ModuleType | None
    why: str = ""

    def __str__(self) -> str:
        return "compiled code" if self.module is not None else f"Python code: {self.why}"


def chosen_code(choice: str, built: Callable[[], CompiledCode], *, cannot: str) -> CompiledCode:
    """The code for a value of the environment variable. ``built`` finds the compiled code. Raises ConfigurationError
    for an unknown value, and for ``require`` without usable compiled code; ``cannot`` says what is impossible then."""
    try:
        chosen = KernelChoice(choice)
    except ValueError:
        raise ConfigurationError(
            f"{VARIABLE} is {choice!r}", hint=f"set it to {', '.join(KernelChoice)}; without it, auto holds"
        ) from None
    if chosen is KernelChoice.OFF:
        return CompiledCode(None, f"{VARIABLE}=off")
    code = built()
    if code.module is None and chosen is KernelChoice.REQUIRE:
        raise ConfigurationError(
            f"{VARIABLE} is 'require', and {cannot} by compiled code: {code.why}",
            hint="install a C compiler and Python's headers, run `make setup`, then start again; or set it to auto",
        )
    return code


def load_compiled(name: str, agrees: Callable[[ModuleType], bool]) -> CompiledCode:
    """The module, if it is installed and ``agrees`` that it works as today's Python code does."""
    try:
        module = import_module(name)
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == name
        return CompiledCode(
            None,
            "none was compiled here, which needs a C compiler and Python's headers"
            if is_missing
            else f"the compiled kernel can't be loaded: {error}",
        )
    if not agrees(module):
        return CompiledCode(None, "the compiled kernel was built from other code than this")
    return CompiledCode(module)
