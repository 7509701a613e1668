"""The files of a table's partitions as a short text, since it is part of a record of limited size. Pure."""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Final

_RUN_MAX: Final = 1_000_000
"""More partitions than any table has: a text with more isn't ours."""

_RUN: Final = re.compile(r"(\d+)(?::(-?\d+))?(?:\*(\d+))?")


def packed(files: Mapping[str, str]) -> str:
    """``files`` maps a partition's oid to its file's number, both as text. Each partition, in oid order, is written as
    the distance from the one before, and from its oid to its file. Most were created in a row and never rewritten, so
    most are a repetition: ``16401 3*9 5:120``."""
    before = 0
    steps = []
    for oid, file in sorted((int(oid), int(file)) for oid, file in files.items()):
        steps.append(f"{oid - before}:{file - oid}" if file != oid else f"{oid - before}")
        before = oid
    runs = ((step, len(list(run))) for step, run in itertools.groupby(steps))
    return " ".join(step if count == 1 else f"{step}*{count}" for step, count in runs)


def unpacked(text: str) -> dict[str, str]:
    """The inverse of ``packed``. Raises ValueError for another text."""
    return dict(_files(text))


def _files(text: str) -> Iterator[tuple[str, str]]:
    oid = 0
    for run in text.split():
        match = _RUN.fullmatch(run)
        if match is None:
            raise ValueError("isn't a text of partitions")
        count = int(match[3] or 1)
        if count > _RUN_MAX:
            raise ValueError("isn't a text of partitions")
        for _ in range(count):
            oid += int(match[1])
            yield str(oid), str(oid + int(match[2] or 0))
