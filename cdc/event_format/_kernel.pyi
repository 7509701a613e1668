"""The compiled module's types; ``_kernel.pyx`` is its source. It is missing where nothing was compiled."""

from collections.abc import Callable, Sequence
from typing import Final

VERBATIM: Final[int]
QUOTED: Final[int]
TEXT: Final[int]
BOOL: Final[int]
FLOAT: Final[int]
TIMESTAMP: Final[int]
TIMESTAMPTZ: Final[int]

class RowKernel:
    def __init__(self, columns: Sequence[tuple[bytes, int]], key: tuple[int, ...]) -> None: ...
    def encode(
        self,
        first: bytes | memoryview,
        receive: Callable[[], bytes | memoryview | None],
        *,
        relation: int,
        updates: bool,
        prefix: bytes,
        seq: int,
        source: bytes,
        time: bytes,
        text_max: int,
        rows_max: int,
        bytes_max: int,
    ) -> tuple[list[tuple[bytes, bytes]], bytes | memoryview | None, int]: ...
    def encode_copied(
        self,
        lines: list[bytes | memoryview],
        start: int,
        *,
        prefix: bytes,
        source: bytes,
        lsn: int,
        time: bytes,
    ) -> tuple[list[tuple[bytes, bytes]], int, int]: ...
