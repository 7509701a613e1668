"""Log sequence numbers as PostgreSQL writes them: ``16/B374D848`` is a 64-bit byte position in the WAL."""

import re
from typing import NewType

Lsn = NewType("Lsn", int)
"""A byte position in the write-ahead log, 0 .. 2**64-1."""

# int() alone would also accept signs, blanks and underscores.
_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def parse_lsn(text: str) -> Lsn:
    """``"16/B374D848"`` -> Lsn. Raises ValueError for anything else."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"not an LSN: {text!r}")
    high, low = match.groups()
    return Lsn(int(high, 16) << 32 | int(low, 16))


def format_lsn(lsn: int) -> str:
    """Lsn -> PostgreSQL's text, ``"16/B374D848"``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
