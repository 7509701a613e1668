"""The installed extensions, loaded by name. This is the one place where the core loads them.

Extensions come with Lockstep, so they need no entry points, which only an installed package has. Without the package
``extensions`` the core runs alone.
"""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

from cdc.model.later import named


@cache
def extension_values() -> Sequence[Any]:
    """Each is a ``lockstep.extension.Extension``, in the order of ``extensions/__init__.py``."""
    try:
        extensions = import_module("extensions")
    except ModuleNotFoundError as missing:
        if missing.name != "extensions":
            raise
        return ()
    return tuple(map(named, extensions.ALL))
