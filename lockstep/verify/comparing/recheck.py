"""Which candidates really differ, while rows go on changing.

A round reads the expected rows, takes a mark behind them, waits until the sink has applied everything up to it, reads the sink's rows, and
reads the expected rows again. Then, for one key:

* The sink has what was expected before, afterwards, or at a look in between: equal. It is at least as far as the first look, so what it has
  is no old version.
* What is expected has changed meanwhile: nobody can tell. It takes part in the next round.
* What is expected hasn't changed and the sink has something else: suspect. When the next round finds both sides as they were, it differs.

Why not at once: a row can come and go between the two looks, and the sink may be seen in the middle of that. Then the sink's row has a
tag of its own, and by the next round's mark it must have moved on. The second look is also later than a commit takes that is in the
WAL already and not yet visible to others.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from cdc.model.table import Table
from lockstep.verify.canonical import Fingerprint, Key, Row
from lockstep.verify.sides.expected import Expected, Version
from lockstep.verify.sides.sink import Copy, SinkSide
from lockstep.verify.sides.source import portions
from lockstep.verify.waiting import Applied, Patience

ROUNDS_MAX: Final = 12

_PAUSE_S: Final = 0.25
_PAUSE_MAX_S: Final = 4.0

_LOOKS_IN_BETWEEN_KEYS_MAX: Final = 200
"""Rows that are written all the time are never the same twice; while they are few, looking more often catches them."""

_DETAILS_AT_ONCE: Final = 200


class Verdict(Enum):
    EQUAL = "equal"
    CHANGED = "changed"
    SUSPECT = "suspect"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Looks:
    """What one round has seen of a key. None is no row. ``between`` are fingerprints of versions in between, None among them for no row."""

    before: Version | None
    after: Version | None
    copies: tuple[Copy, ...] = ()
    between: frozenset[Fingerprint | None] = frozenset()


def verdict(now: Looks, suspicion: Looks | None) -> Verdict:
    """What a round says about a key; ``suspicion`` is the round in which it was suspect, where the last one was."""
    expected = {_fingerprint(now.before), _fingerprint(now.after), *now.between}
    held: set[Fingerprint | None] = {copy.fingerprint for copy in now.copies} or {None}
    if held & expected:
        return Verdict.EQUAL
    if now.before != now.after:
        return Verdict.CHANGED
    if suspicion is not None and (suspicion.after, suspicion.copies) == (now.before, now.copies):
        return Verdict.DIFFERENT
    return Verdict.SUSPECT


def _fingerprint(version: Version | None) -> Fingerprint | None:
    return None if version is None else version.fingerprint


@dataclass(frozen=True, slots=True)
class Finding:
    """A key that differs: the rows of both sides (None: no row) and the tag of the sink's."""

    expected: Row | None
    stored: Row | None
    tag: str | None


@dataclass(slots=True)
class Settled:
    """What became of the keys. ``copies`` is what the sink had of those that are equal: nothing where it had no row, rightly."""

    copies: dict[Key, tuple[Copy, ...]] = field(default_factory=dict)
    different: dict[Key, Finding] = field(default_factory=dict)
    unsettled: list[Key] = field(default_factory=list)


def settle(
    table: Table,
    keys: Iterable[Key],
    *,
    expected: Expected,
    sink: SinkSide,
    applied: Applied,
    patience: Patience,
    rounds_max: int = ROUNDS_MAX,
) -> Settled:
    """Look at these keys until each is equal or different, or ``rounds_max`` rounds have passed."""
    settled = Settled()
    suspicions: dict[Key, Looks] = {}
    remaining = list(keys)
    for place in range(rounds_max):
        if not remaining:
            break
        if place:
            patience.sleep(min(_PAUSE_MAX_S, _PAUSE_S * 2.0 ** (place - 1)))
        looks = _look(table, remaining, expected, sink, applied)
        verdicts = {key: verdict(seen, suspicions.get(key)) for key, seen in looks.items()}
        certain = {key: looks[key] for key, found in verdicts.items() if found is Verdict.DIFFERENT}
        settled.different |= _details(table, certain, expected, sink)
        settled.copies |= {key: looks[key].copies for key, found in verdicts.items() if found is Verdict.EQUAL}
        # One whose details couldn't be had any more stays a suspect, and the next round sees whether it has changed.
        suspicions = {
            key: looks[key]
            for key, found in verdicts.items()
            if found is Verdict.SUSPECT or (found is Verdict.DIFFERENT and key not in settled.different)
        }
        remaining = [
            key for key, found in verdicts.items() if found is not Verdict.EQUAL and key not in settled.different
        ]
    settled.unsettled = remaining
    return settled


def _look(table: Table, keys: Sequence[Key], expected: Expected, sink: SinkSide, applied: Applied) -> dict[Key, Looks]:
    """One round."""
    between: dict[Key, set[Fingerprint | None]] = {}

    def look_again() -> None:
        versions = expected.versions(table, keys)
        for key in keys:
            between.setdefault(key, set()).add(_fingerprint(versions.get(key)))

    before = expected.versions(table, keys)
    mark = expected.mark()
    is_cheap = expected.can_be_asked_often and len(keys) <= _LOOKS_IN_BETWEEN_KEYS_MAX
    applied.wait(mark, look_again if is_cheap else None)
    copies = sink.copies(table, keys)
    after = expected.versions(table, keys)
    for key, versions in expected.passed().items():
        between.setdefault(key, set()).update(versions)
    return {
        key: Looks(before.get(key), after.get(key), copies.get(key, ()), frozenset(between.get(key, ())))
        for key in keys
    }


def _details(table: Table, certain: Mapping[Key, Looks], expected: Expected, sink: SinkSide) -> dict[Key, Finding]:
    """The values of rows that differ, to say in which columns. Left out are keys of which a side has moved on since."""
    found: dict[Key, Finding] = {}
    for portion in portions(certain, _DETAILS_AT_ONCE):
        wanted = expected.rows(table, portion)
        stored = sink.rows(table, portion)
        for key in portion:
            version, row = wanted.get(key, (None, None))
            copies = stored.get(key, [])
            if version == certain[key].after and tuple(copy for copy, _ in copies) == certain[key].copies:
                first = copies[0] if copies else None
                found[key] = Finding(row, first[1] if first else None, first[0].tag if first else None)
    return found


def strays(
    shown: Mapping[Key, Sequence[Copy]], doubled: Collection[Key], settled: Settled
) -> tuple[dict[Key, Copy], dict[Key, Copy]]:
    """Rows that a pass over the sink showed and that don't stand where their key is looked for. Pure.

    The first are certain: a second copy of a key. The others are gone by now, or were never to be found under their key: they are
    strays when another pass shows the same row again, since a key's tags only grow.
    """
    second: dict[Key, Copy] = {}
    perhaps: dict[Key, Copy] = {}
    for key, copies in settled.copies.items():
        if len(copies) > 1:
            second[key] = copies[-1]
        elif key in doubled:
            others = [copy for copy in shown[key] if copy not in copies]
            second[key] = (others or list(shown[key]))[0]
        elif not copies and shown.get(key):
            perhaps[key] = shown[key][0]
    for key in settled.different:
        if key in doubled:
            second[key] = shown[key][-1]
    return second, perhaps
