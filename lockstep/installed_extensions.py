"""The extensions that are there, loaded by name: the one place where the core does that.

They come with Lockstep, so there is no need for entry points, which only an installed package has. Without the package
the core is alone.
"""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

from cdc.model.later import named


@cache
def extension_values() -> Sequence[Any]:
    """Each a ``lockstep.extension.Extension``, in the order of ``extensions/__init__.py``."""
    try:
        extensions = import_module("extensions")
    except ModuleNotFoundError as missing:
        if missing.name != "extensions":
            raise
        return ()
    return tuple(map(named, extensions.ALL))
