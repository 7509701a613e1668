"""Decides what to report about a document: which searches it begins to match, and which it ceases to match (pure). Only
the last report about a document is remembered, and only differences from it are reported. So nothing is reported twice,
and looking at an unchanged document again reports nothing.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reported:
    """The last report about a document and a search: whether it matches, and the document's version (tag)."""

    matches: bool
    tag: str


def changes(
    reported: Mapping[str, Reported], matching: Collection[str], searches: Collection[str], *, tag: str
) -> dict[str, Reported]:
    """What to report about a document now, for each of ``searches`` whose last report differs. ``matching`` are the
    searches that it matches, none if it is deleted. ``tag`` is the version of the document or of its deletion; "" if
    unknown. A version older than the reported one reports nothing.
    """
    found = {}
    for search in searches:
        before = reported.get(search)
        matches = search in matching
        if matches == (before is not None and before.matches):
            continue
        if before is not None and tag and tag < before.tag:
            continue
        found[search] = Reported(matches, tag or (before.tag if before is not None else ""))
    return found


def tag_of_absence(reported: Mapping[str, Reported], deleted: str) -> str:
    """The version for reporting a document's absence. ``deleted`` is the tag of its last seen deletion, or "". If it
    was written and deleted again, that deletion wasn't seen yet, and its tag is greater than the reported one.
    """
    return max([deleted, *(each.tag for each in reported.values() if each.matches)])
