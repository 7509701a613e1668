"""Rows of a sink that nobody finds under their key: second copies, and rows that are stored in another place. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from lockstep.verify.canonical import Key
from lockstep.verify.comparing.recheck import Rechecked
from lockstep.verify.report import Difference, Kind
from lockstep.verify.sides.sink import Copy

SECOND_COPY: Final = "a second copy of the row"
MISPLACED: Final = "stored where its key isn't looked for"


def second_copies(
    shown: Mapping[Key, Sequence[Copy]], doubled: Collection[Key], rechecked: Rechecked
) -> dict[Key, Copy]:
    """Rows that are one too many. ``shown`` is what a pass over the sink showed, ``doubled`` its repeated keys."""
    second: dict[Key, Copy] = {}
    for key, copies in rechecked.copies.items():
        if len(copies) > 1:
            second[key] = copies[-1]
        elif key in doubled:
            others = [copy for copy in shown[key] if copy not in copies]
            second[key] = (others or list(shown[key]))[0]
    for key in rechecked.different:
        if key in doubled:
            second[key] = shown[key][-1]
    return second


def possibly_misplaced(
    shown: Mapping[Key, Sequence[Copy]], doubled: Collection[Key], rechecked: Rechecked
) -> dict[Key, Copy]:
    """Rows that a pass over the sink showed and that aren't stored under their key. They are gone by now, or can never
    be read by their key. A row is misplaced if another pass shows the same row again, since a key's tags only grow."""
    return {
        key: shown[key][0]
        for key, copies in rechecked.copies.items()
        if not copies and key not in doubled and shown.get(key)
    }


def extra_rows(copies: Mapping[Key, Copy], note: str) -> list[Difference]:
    return [Difference(Kind.EXTRA, key, sink_tag=copy.tag, note=note) for key, copy in copies.items()]
