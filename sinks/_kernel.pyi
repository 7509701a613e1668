"""The compiled module's types; ``_kernel.pyx`` is its source. It is missing where nothing was compiled."""

from collections.abc import Sequence

class LineKernel:
    def __init__(self, names: Sequence[bytes]) -> None: ...
    def lines(
        self,
        keys: list[bytes],
        tags: list[str],
        rows: list[bytes | None],
        ends: list[str],
        start: int,
        stop: int,
    ) -> tuple[bytes, int]: ...

def take_rows(values: list[bytes | None], start: int, source: bytes, rows: list[bytes | None]) -> int: ...
def take_arguments(
    keys: list[bytes],
    tags: list[str],
    rows: list[bytes | None],
    start: int,
    stop: int,
    *,
    key_starts: list[bytes],
    prefix: bytes,
    bytes_max: int,
    names: list[bytes],
    values: list[bytes],
) -> tuple[int, int]: ...
def take_documents(
    keys: list[bytes],
    tags: list[str],
    rows: list[bytes | None],
    start: int,
    stop: int,
    *,
    key_start: bytes,
    head: bytes,
    middle: bytes,
    transaction: str,
    first_version: int,
    seq_max: int,
    bytes_max: int,
    lines: list[bytes],
) -> tuple[int, int]: ...
