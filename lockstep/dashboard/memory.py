"""Keeps this process small: returns free memory to the system, if the C library can do that.

Loading the stores' clients takes a fifth more memory than remains in use. glibc keeps it, in an area for each of
several threads.
"""

import ctypes
import gc
from typing import Any, Final

_M_ARENA_MAX: Final = -8
"""glibc's number of the setting (``malloc.h``)."""

_ARENAS: Final = 2
"""Our threads wait for servers, not for memory."""


def bound_areas() -> None:
    """Make all threads share few memory areas. Call it before there are any threads. Has an effect only with glibc."""
    if (mallopt := getattr(_c_library(), "mallopt", None)) is not None:
        mallopt(_M_ARENA_MAX, _ARENAS)


def give_back() -> None:
    """Return free memory to the system, which takes milliseconds. Has an effect only with glibc."""
    gc.collect()
    if (trim := getattr(_c_library(), "malloc_trim", None)) is not None:
        trim(0)


def _c_library() -> Any:
    return ctypes.CDLL(None)
