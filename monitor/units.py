"""Formats numbers for people."""

from typing import Final

_KIB: Final = 1024
_MIB: Final = 1024 * 1024


def readable_bytes(count: int) -> str:
    """A number of bytes in B, KiB or MiB."""
    if count < _KIB:
        return f"{count} B"
    return f"{count / _KIB:.1f} KiB" if count < _MIB else f"{count / _MIB:.1f} MiB"
