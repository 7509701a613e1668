"""Where the shards of a view are, what of that is stored, and what they hold together."""

from collections.abc import Sequence

import pytest

from cdc.model.errors import Unavailable
from jobs.offsets import Offsets
from jobs.query.view_shards import ViewShards
from sinks.contract import Progress
from tests.builders import progress
from views.counters import Counters
from views.figures import Building, Doing, ViewFigures

P0, P1 = ("t", 0), ("t", 1)


def test_a_view_is_where_all_of_its_shards_are() -> None:
    shards = ViewShards([{}, {}])
    assert shards.least == {}
    shards.reach(0, {P0: 5, P1: 7})
    assert shards.least == {}, "nobody knows where the other one is"
    shards.reach(1, {P0: 6})
    assert shards.least == {P0: 5}
    shards.reach(1, {P1: 6})
    assert shards.least == {P0: 5, P1: 6}
    shards.reach(0, {P0: 9})
    assert shards.least == {P0: 6, P1: 6}


def test_what_a_shard_tells_late_takes_nothing_back() -> None:
    shards = ViewShards([{P0: 9}, {P0: 9, P1: 5}])
    shards.reach(0, {P0: 5, P1: 3})
    assert shards.least == {P0: 9, P1: 3}


def test_what_is_not_stored_is_not_known_to_be() -> None:
    shards, saved = ViewShards([{P0: 1}, {P0: 1}]), list[tuple[Offsets, Sequence[Offsets]]]()
    shards.reach(0, {P0: 5})

    def down(*_: object) -> Progress:
        raise Unavailable("it is down")

    def up(least: Offsets, reached: Sequence[Offsets]) -> Progress:
        saved.append((least, reached))
        return progress()

    with pytest.raises(Unavailable):
        shards.store(down)
    assert (shards.stored(0), shards.stored(1)) == ({P0: 1}, {P0: 1})
    assert shards.store(up) == progress()
    assert (shards.stored(0), shards.stored(1)) == ({P0: 5}, {P0: 1})
    assert saved == [({P0: 1}, [{P0: 5}, {P0: 1}])]
    again = ViewShards.of_progress(saved[0][1], count=2, reached=saved[0][0])
    assert (again.stored(0), again.stored(1), again.least) == ({P0: 5}, {P0: 1}, {P0: 1})


def test_no_shard_is_behind_the_view() -> None:
    """As one whose view a single task has kept since it was stored."""
    shards = ViewShards.of_progress([{P0: 9}, {P0: 2}], count=2, reached={P0: 4, P1: 1})
    assert (shards.stored(0), shards.stored(1)) == ({P0: 9, P1: 1}, {P0: 4, P1: 1})


def test_a_shard_that_waits_for_others_is_ahead() -> None:
    shards = ViewShards([{P0: 5}, {P0: 5}])
    assert not shards.is_ahead(0), "both lack the same"
    shards.reach(1, {P0: 6})
    assert (shards.is_ahead(0), shards.is_ahead(1)) == (False, True)
    shards.reach(0, {P1: 1})
    assert (shards.is_ahead(0), shards.is_ahead(1)) == (False, False), "each lacks something"


def figures(lsn: int, rows: int, *, building: Building | None = None, at_ms: int = 0) -> ViewFigures:
    return ViewFigures(lsn, 10 * rows, 100 * rows, Counters(1, 2, 3, 4, 1, rows), building, at_ms, 60_000 * lsn)


def test_figures_are_told_once_all_shards_have_told_theirs_but_for_a_building() -> None:
    shards, building = ViewShards([{}, {}]), Building(1, Doing.READING, 5, 10, 1.0)
    assert shards.figures(0, figures(8, 1)) is None
    told = shards.figures(1, figures(0, 0, building=building))
    assert told is not None
    assert told.building == building
    told = shards.figures(1, figures(8, 2, at_ms=5))
    assert told is not None
    assert (told.building, told.rows) == (None, 3)
    late = shards.figures(1, figures(0, 0, building=building, at_ms=4))
    assert late is not None
    assert late.building is None, "the last words of a task may be heard after its result"
