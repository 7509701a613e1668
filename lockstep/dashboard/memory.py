"""Keeps this process small: what is free again goes back to the system, where the C library can do that.

Loading the clients of the stores takes a fifth more than what stays of it. glibc keeps that, in an area for each of
several threads.
"""

import ctypes
import gc
from typing import Any, Final

_M_ARENA_MAX: Final = -8
"""glibc's number of the setting (``malloc.h``)."""

_ARENAS: Final = 2
"""Threads of ours wait for servers, and not for memory."""


def bound_areas() -> None:
    """Have all threads take memory from few areas. To be called before there are any. Has no effect but with glibc."""
    if (mallopt := getattr(_c_library(), "mallopt", None)) is not None:
        mallopt(_M_ARENA_MAX, _ARENAS)


def give_back() -> None:
    """Give the system what is free, which takes milliseconds. Has no effect but with glibc."""
    gc.collect()
    if (trim := getattr(_c_library(), "malloc_trim", None)) is not None:
        trim(0)


def _c_library() -> Any:
    return ctypes.CDLL(None)
