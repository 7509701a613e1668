"""Names of the form ``module:name`` that are imported only when they are used."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def named(address: str) -> Any:
    """The object of that name."""
    module, _, name = address.partition(":")
    return getattr(import_module(module), name)


def later(address: str) -> Callable[..., Any]:
    """A function that imports and calls that one at each call."""

    def call(*arguments: Any) -> Any:
        return named(address)(*arguments)

    return call
