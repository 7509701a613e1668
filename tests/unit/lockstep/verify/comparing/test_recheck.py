"""Which rows differ, while they change: a right sink never does, whatever the timing, and a wrong one does."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from cdc.model.lsn import Lsn
from lockstep.verify.canonical import fingerprint, key_of, key_values
from lockstep.verify.comparing.recheck import Observation, Rechecked, Verdict, recheck, verdict
from lockstep.verify.report import Kind
from lockstep.verify.sides.expected import Expected, Version
from lockstep.verify.sides.sink import Copy, SinkSide
from lockstep.verify.waiting import Applied, SyncPoint, Waiting
from sinks.contract import Progress
from sinks.memory import MemoryStore, open_memory
from tests.builders import batch, column, delete, table, upsert

SHAPE = table(column("id", "int8"), column("value"))

A, B = Version(b"a", "1"), Version(b"b", "2")
A_AGAIN = Version(b"a", "3")
HELD_A, HELD_B, HELD_C = (Copy(f"tag {name}", name.encode()) for name in "abc")


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (Observation(A, A, (HELD_A,)), Verdict.EQUAL),
        (Observation(None, None), Verdict.EQUAL),
        (Observation(A, B, (HELD_A,)), Verdict.EQUAL),
        (Observation(A, B, (HELD_B,)), Verdict.EQUAL),
        (Observation(A, B, (HELD_C,)), Verdict.CHANGED),
        (Observation(A, B, (HELD_C,), frozenset([b"c"])), Verdict.EQUAL),
        (Observation(A, A_AGAIN, (HELD_B,)), Verdict.CHANGED),
        (Observation(None, A), Verdict.EQUAL),
        (Observation(A, A, (), frozenset([None])), Verdict.EQUAL),
        (Observation(A, A), Verdict.SUSPECT),
        (Observation(None, None, (HELD_A,)), Verdict.SUSPECT),
        (Observation(A, A, (HELD_B,)), Verdict.SUSPECT),
        (Observation(A, A, (HELD_B, HELD_A)), Verdict.EQUAL),
    ],
    ids=str,
)
def test_one_round_alone_finds_nothing_different(now, expected):
    assert verdict(now, None) is expected


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (Observation(A, A, (HELD_B,)), Observation(A, A, (HELD_B,)), Verdict.DIFFERENT),
        (Observation(A, A), Observation(A, A), Verdict.DIFFERENT),
        (Observation(None, None, (HELD_A,)), Observation(None, None, (HELD_A,)), Verdict.DIFFERENT),
        (Observation(A, A, (HELD_B,)), Observation(A, A, (HELD_C,)), Verdict.SUSPECT),
        (Observation(None, None, (HELD_A,)), Observation(None, None, (Copy("tag b", b"a"),)), Verdict.SUSPECT),
        (Observation(A, A, (HELD_B,)), Observation(A_AGAIN, A_AGAIN, (HELD_B,)), Verdict.SUSPECT),
        (Observation(A, A, (HELD_B,)), Observation(A, B, (HELD_C,)), Verdict.CHANGED),
        (Observation(A, A, (HELD_B,)), Observation(A, A, (HELD_A,)), Verdict.EQUAL),
    ],
    ids=str,
)
def test_the_second_round_is_sure_when_neither_side_has_moved(before, now, expected):
    assert verdict(now, before) is expected


# A source and a sink in one process, with a clock of their own.


@dataclass
class World:
    """A log of changes, a sink that applies it late, and a seed that decides when what happens.

    Everything that anybody does lets time pass, and in that time changes are committed and applied.
    """

    random: random.Random
    keys: int
    change_probability: float = 0.3
    now_s: float = 0.0
    commits: list[tuple[int, int, str | None]] = field(default_factory=list)
    applied: int = 0
    is_quiet: bool = False
    skips: frozenset[int] = frozenset()
    values: Iterator[str] | None = None
    """None: few of them, so that rows become what they were before."""
    store: MemoryStore = field(default_factory=MemoryStore)

    def __post_init__(self):
        opened = open_memory(self.store, 1)
        self.sink, self.generations = opened.sink, opened.generations
        self.sink.prepare([SHAPE])
        self.fence = self.sink.claim()

    def step(self):
        self.now_s += 0.01
        while not self.is_quiet and self.random.random() < self.change_probability:
            key = self.random.randrange(self.keys)
            value = self.random.choice(["a", "b", None]) if self.values is None else next(self.values)
            self.commits.append((len(self.commits) + 1, key, value))
        for _ in range(self.random.randrange(4)):
            if self.applied < len(self.commits):
                lsn, key, value = self.commits[self.applied]
                self.applied += 1
                if lsn not in self.skips:
                    event = delete({"id": key}, lsn, of=SHAPE) if value is None else upsert(_row(key, value), lsn)
                    self.sink.apply(batch(event, fence=self.fence))
        self.generations.save_progress(Progress({}, self.applied, 0, 0, {}))

    def source(self):
        """Key -> (LSN of the row's version, value) of the rows that are there."""
        rows = {}
        for lsn, key, value in self.commits:
            rows[key] = (lsn, value)
        return {key: version for key, version in rows.items() if version[1] is not None}


def _row(key, value):
    return {"id": key, "value": value}


class Source(Expected):
    """The world's source, in the role of what is expected."""

    name = "source"
    can_be_asked_often = True

    def __init__(self, world):
        self._world = world

    def sync_point(self):
        self._world.step()
        return SyncPoint(lsn=Lsn(len(self._world.commits)))

    def scan(self, _):
        raise AssertionError

    def rows(self, of, keys):
        self._world.step()
        rows = self._world.source()
        versions_by_key = {}
        for key in keys:
            number = key_values(key)["id"]
            if number in rows:
                lsn, value = rows[number]
                row = _row(number, value)
                versions_by_key[key] = Version(fingerprint(of, key, row), str(lsn)), row
        return versions_by_key


class Everything(Source):
    """The same, by somebody who sees every version."""

    can_be_asked_often = False

    def __init__(self, world):
        super().__init__(world)
        self._begin = self._end = 0

    def versions(self, of, keys):
        versions_now = super().versions(of, keys)
        self._begin, self._end = self._end, len(self._world.commits)
        return versions_now

    def versions_between(self):
        seen = {}
        for _, number, value in self._world.commits[self._begin : self._end]:
            key = key_of(SHAPE, {"id": number})
            version = None if value is None else fingerprint(SHAPE, key, _row(number, value))
            seen.setdefault(key, set()).add(version)
        return seen


class LateSink:
    """The world's sink: time passes between one row and the next."""

    def __init__(self, world):
        self._world = world

    def rows(self, of, keys):
        for key in keys:
            self._world.step()
            yield from self._world.sink.rows(of, [key])

    def load_progress(self):
        self._world.step()
        return self._world.generations.load_progress()


def rechecked(world, *, keys=None, expected=None, rounds_max=12) -> Rechecked:
    def sleep(seconds):
        until = world.now_s + seconds
        while world.now_s < until:
            world.step()

    waiting = Waiting(lambda: False, monotonic=lambda: world.now_s, sleep=sleep)
    sink = LateSink(world)
    return recheck(
        SHAPE,
        [key_of(SHAPE, {"id": number}) for number in range(keys or world.keys)],
        expected=expected or Source(world),
        sink=SinkSide(sink, waiting),
        applied=Applied(sink, name="s", generation=1, waiting=waiting, stall_s=60.0, say=lambda _: None),
        waiting=waiting,
        rounds_max=rounds_max,
    )


@pytest.mark.parametrize("seed", range(40))
def test_a_right_sink_never_differs(seed):
    world = World(random.Random(seed), keys=random.Random(seed).choice([1, 3, 30]))

    result = rechecked(world)

    assert result.different == {}
    assert len(result.copies) + len(result.undecided) == world.keys


@pytest.mark.parametrize("seed", range(10))
def test_rows_that_always_change_are_decided_by_who_sees_every_version(seed):
    world = World(random.Random(seed), keys=3, change_probability=0.7)
    world.values = itertools.cycle(map(str, range(100)))

    result = rechecked(world, expected=Everything(world), rounds_max=1)

    assert len(result.copies) == world.keys


@pytest.mark.parametrize("seed", range(10))
def test_all_is_decided_once_nothing_is_written(seed):
    world = World(random.Random(seed), keys=10)
    for _ in range(50):
        world.step()
    world.is_quiet = True

    result = rechecked(world)

    assert (result.different, result.undecided) == ({}, [])
    assert sum(map(bool, result.copies.values())) == len(world.source())


@pytest.mark.parametrize("seed", range(20))
def test_a_change_that_the_sink_has_not_applied_is_found(seed):
    world = World(random.Random(seed), keys=10)
    for _ in range(50):
        world.step()
    newest = {key: lsn for lsn, key, _ in world.commits}
    lost = world.random.choice(sorted(newest))
    world.is_quiet = True
    # Only what is still under way can be lost; else it is applied and taken back.
    world.commits.append((len(world.commits) + 1, lost, "lost"))
    world.skips = frozenset([len(world.commits)])

    result = rechecked(world)

    assert list(result.different) == [key_of(SHAPE, {"id": lost})]
    (difference,) = result.different.values()
    assert (difference.kind is Kind.MISSING) == (difference.sink_tag is None)
    assert difference.columns == (("value",) if difference.sink_tag else ())


@pytest.mark.parametrize("seed", range(10))
def test_a_wrong_row_is_found_while_others_are_written(seed):
    world = World(random.Random(seed), keys=10, change_probability=0.1)
    world.commits = [(number + 1, number, "right") for number in range(11)]
    world.skips = frozenset([11])  # of row 10, which nobody writes again

    result = rechecked(world, keys=11)

    assert list(result.different) == [b'{"id":10}']


def test_a_row_that_changes_at_every_look_is_neither_equal_nor_different():
    world = World(random.Random(1), keys=1)
    world.commits = [(1, 0, "a")]
    world.is_quiet = True
    numbers = itertools.count()

    class Restless(Source):
        def rows(self, of, keys):
            return {key: (Version(b"new", str(next(numbers))), _row(0, "new")) for key in keys}

    result = rechecked(world, expected=Restless(world), rounds_max=4)

    assert (result.different, result.copies, result.undecided) == ({}, {}, [b'{"id":0}'])
