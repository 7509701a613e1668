"""How hard a comparison reads the source: short statements, with pauses between them. Pure."""

from dataclasses import dataclass
from typing import Final

_CHUNK_ROWS_MIN: Final = 50
_CHUNK_ROWS_MAX: Final = 500_000
_GROWTH_MAX: Final = 4.0


@dataclass(frozen=True, slots=True)
class Load:
    """Statements of about ``chunk_s`` seconds, each followed by a pause of ``pause_ratio`` times what it took.
    ``first_rows`` is what the first statement asks for, while nobody knows how long it takes."""

    chunk_s: float = 1.0
    pause_ratio: float = 1.0
    first_rows: int = 1000


def next_chunk_rows(rows: int, *, took_s: float, chunk_s: float) -> int:
    factor = chunk_s / took_s if took_s > 0 else _GROWTH_MAX
    wanted_rows = int(rows * min(_GROWTH_MAX, max(1 / _GROWTH_MAX, factor)))
    return min(_CHUNK_ROWS_MAX, max(_CHUNK_ROWS_MIN, wanted_rows))
