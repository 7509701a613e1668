"""What is to be told of a document: which searches it begins to match, and which it ceases to (pure).

What was told of a document last is all that is remembered. What is told is how the document is now differs from that.
So nothing is told twice, and looking once more at a document that was looked at already tells nothing.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Told:
    """What was told last of a document and a search: whether it matches, and as of which version (tag) of it."""

    matches: bool
    tag: str


def changes(
    told: Mapping[str, Told], matching: Collection[str], searches: Collection[str], *, tag: str
) -> dict[str, Told]:
    """What is to be told of a document now, by search: of those of ``searches`` of which something else was told.

    ``matching`` are the searches that it matches, none where it is gone. ``tag`` is its version, or its deletion's; ""
    where nobody knows that. Of an older version than the one that was told of nothing is told.
    """
    found = {}
    for search in searches:
        before = told.get(search)
        matches = search in matching
        if matches == (before is not None and before.matches):
            continue
        if before is not None and tag and tag < before.tag:
            continue
        found[search] = Told(matches, tag or (before.tag if before is not None else ""))
    return found


def tag_of_absence(told: Mapping[str, Told], deleted: str) -> str:
    """The version as of which a document is told to be gone, where a deletion with this tag was seen last, or "".

    It may have been written and deleted again since: then that deletion wasn't seen yet, and its tag is greater than
    the one that was told.
    """
    return max([deleted, *(each.tag for each in told.values() if each.matches)])
