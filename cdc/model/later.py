"""What a value names long before it is needed, as ``module:name``: its module is imported then."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def named(address: str) -> Any:
    """What is there."""
    module, _, name = address.partition(":")
    return getattr(import_module(module), name)


def later(address: str) -> Callable[..., Any]:
    """The function that is there, found at each call."""

    def call(*arguments: Any) -> Any:
        return named(address)(*arguments)

    return call
