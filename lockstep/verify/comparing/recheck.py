"""Decides which candidates really differ, while rows go on changing.

A round reads the expected rows, takes a sync point, and waits until the sink has applied everything up to it. Then it
reads the sink's rows, and the expected rows again. Then, for one key:

* The sink has what was expected before, afterwards, or at a look in between: equal. The sink is at least as far as the
  first look, so it has no old version.
* The expected row has changed meanwhile: nobody can tell. The key takes part in the next round.
* The expected row hasn't changed, and the sink has something else: suspect. If the next round finds both sides
  unchanged, the key differs.

One round isn't enough: a row can come and go between the two looks, and the sink may be read in the middle of that.
Then the sink's row has a tag of its own, and must have changed by the next round's sync point. The time until the
second look is also longer than the time in which a commit that is in the WAL becomes visible to others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from cdc.model.table import Table
from lockstep.verify.canonical import Fingerprint, Key, Row, differing_columns, portions
from lockstep.verify.report import Difference, Kind
from lockstep.verify.sides.expected import Expected, Version
from lockstep.verify.sides.sink import Copy, SinkSide
from lockstep.verify.waiting import Applied, Waiting

_PAUSE_S: Final = 0.25
_PAUSE_MAX_S: Final = 4.0

_LOOKS_IN_BETWEEN_KEYS_MAX: Final = 200
"""Rows that are written all the time are never the same twice. While they are few, looking more often catches them."""

_DETAILS_AT_ONCE: Final = 200


class Verdict(Enum):
    """What one round says about a key; the module's docstring has the rules."""

    EQUAL = "equal"
    CHANGED = "changed"
    SUSPECT = "suspect"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Observation:
    """What one round saw of a key. None means no row. ``between`` are fingerprints of the versions in between."""

    before: Version | None
    after: Version | None
    copies: tuple[Copy, ...] = ()
    between: frozenset[Fingerprint | None] = frozenset()


def verdict(now: Observation, suspicion: Observation | None) -> Verdict:
    """What a round says about a key. ``suspicion`` is the last round's observation if the key was suspect. Pure."""
    expected = {_fingerprint(now.before), _fingerprint(now.after), *now.between}
    stored: set[Fingerprint | None] = {copy.fingerprint for copy in now.copies} or {None}
    if stored & expected:
        return Verdict.EQUAL
    if now.before != now.after:
        return Verdict.CHANGED
    if suspicion is not None and (suspicion.after, suspicion.copies) == (now.before, now.copies):
        return Verdict.DIFFERENT
    return Verdict.SUSPECT


def _fingerprint(version: Version | None) -> Fingerprint | None:
    return None if version is None else version.fingerprint


@dataclass(slots=True)
class Rechecked:
    """The results. ``copies`` is what the sink has of equal keys, empty if no row is expected. ``undecided`` keys
    changed in every round."""

    copies: dict[Key, tuple[Copy, ...]] = field(default_factory=dict)
    different: dict[Key, Difference] = field(default_factory=dict)
    undecided: list[Key] = field(default_factory=list)


def recheck(
    table: Table,
    keys: Iterable[Key],
    *,
    expected: Expected,
    sink: SinkSide,
    applied: Applied,
    waiting: Waiting,
    rounds_max: int,
) -> Rechecked:
    """Look at these keys until each is equal or different, or ``rounds_max`` rounds have passed. Raises Stalled if
    nothing is applied, and what the sides raise."""
    rechecked = Rechecked()
    suspicions: dict[Key, Observation] = {}
    remaining = list(keys)
    for index in range(rounds_max):
        if not remaining:
            break
        if index:
            waiting.sleep(min(_PAUSE_MAX_S, _PAUSE_S * 2.0 ** (index - 1)))
        observations = _observe(table, remaining, expected, sink, applied)
        verdicts = {key: verdict(observation, suspicions.get(key)) for key, observation in observations.items()}
        certain = {key: observations[key] for key, result in verdicts.items() if result is Verdict.DIFFERENT}
        rechecked.different |= _details(table, certain, expected, sink)
        rechecked.copies |= {
            key: observations[key].copies for key, result in verdicts.items() if result is Verdict.EQUAL
        }
        # A key that changed while its details were read stays suspect: the next round decides.
        suspicions = {
            key: observations[key]
            for key, result in verdicts.items()
            if result is Verdict.SUSPECT or (result is Verdict.DIFFERENT and key not in rechecked.different)
        }
        remaining = [
            key for key, result in verdicts.items() if result is not Verdict.EQUAL and key not in rechecked.different
        ]
    rechecked.undecided = remaining
    return rechecked


def _observe(
    table: Table, keys: Sequence[Key], expected: Expected, sink: SinkSide, applied: Applied
) -> dict[Key, Observation]:
    between: dict[Key, set[Fingerprint | None]] = {}

    def look_again() -> None:
        versions = expected.versions(table, keys)
        for key in keys:
            between.setdefault(key, set()).add(_fingerprint(versions.get(key)))

    versions_before = expected.versions(table, keys)
    point = expected.sync_point()
    is_cheap = expected.can_be_asked_often and len(keys) <= _LOOKS_IN_BETWEEN_KEYS_MAX
    applied.wait(point, look_again if is_cheap else None)
    copies = sink.copies(table, keys)
    versions_after = expected.versions(table, keys)
    for key, versions in expected.versions_between().items():
        between.setdefault(key, set()).update(versions)
    return {
        key: Observation(
            versions_before.get(key), versions_after.get(key), copies.get(key, ()), frozenset(between.get(key, ()))
        )
        for key in keys
    }


def _details(
    table: Table, certain: Mapping[Key, Observation], expected: Expected, sink: SinkSide
) -> dict[Key, Difference]:
    """The columns in which rows differ. Omits keys whose row has changed on a side since."""
    differences: dict[Key, Difference] = {}
    for portion in portions(certain, _DETAILS_AT_ONCE):
        expected_rows = expected.rows(table, portion)
        stored = sink.rows(table, portion)
        for key in portion:
            version, row = expected_rows.get(key, (None, None))
            copies = stored.get(key, [])
            if version == certain[key].after and tuple(copy for copy, _ in copies) == certain[key].copies:
                copy, stored_row = copies[0] if copies else (None, None)
                differences[key] = _difference(table, key, row, stored_row, None if copy is None else copy.tag)
    return differences


def _difference(table: Table, key: Key, expected: Row | None, stored: Row | None, tag: str | None) -> Difference:
    """The values aren't kept: many rows may differ, and be large."""
    if stored is None:
        return Difference(Kind.MISSING, key)
    if expected is None:
        return Difference(Kind.EXTRA, key, sink_tag=tag)
    return Difference(Kind.DIFFERENT, key, differing_columns(table, expected, stored), tag)
