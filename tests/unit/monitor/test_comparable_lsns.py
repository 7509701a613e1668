"""monitor.comparable_lsns: whose tables the LSNs of sinks are of."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from cdc.model.errors import LockstepError, Unavailable
from cdc.model.table import TableName
from cdc.protocol.control_records import CaptureState, ProgressRecord, selection_of
from monitor.comparable_lsns import Line
from tests.configurations import configured
from tests.history import state

ORDERS, LATE = TableName("public", "orders"), TableName("public", "late")
WHOLE, WITHOUT = replace(state(), captured=(ORDERS, LATE)), replace(state(), captured=(ORDERS,))


@dataclass
class _World:
    """Source and Kafka, as a line asks them. ``looks`` counts those at the state."""

    recorded: CaptureState | None = WHOLE
    topics: set[str] = field(default_factory=lambda: {"shop.public.orders", "shop.public.late", "shop.__state"})
    wal_end: int = 1000
    looks: int = 0

    def position(self) -> tuple[int, bool, str]:
        return self.wal_end, True, "reserved"

    def elsewhere(self, _: object) -> tuple[str, ...]:
        return ()

    def new_records(self) -> list[ProgressRecord]:
        return [] if self.recorded is None else [published(self.recorded)]

    def partition_counts(self, topics: Iterable[str], **_: object) -> dict[str, int]:
        return dict.fromkeys(self.topics.intersection(topics), 1)

    def exists(self, topic: str) -> bool:
        return topic in self.topics

    def read_state(self, *_: object) -> CaptureState | None:
        self.looks += 1
        return self.recorded


def published(recorded: CaptureState) -> ProgressRecord:
    return ProgressRecord(800, 0, {}, recorded.epoch, (), selection=selection_of(recorded.captured))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> _World:
    world = _World()
    for name in ("SourceLook", "ProgressReader", "TopicAdmin"):
        monkeypatch.setattr(f"monitor.comparable_lsns.{name}", lambda *_, **__: world)
    monkeypatch.setattr("monitor.comparable_lsns.read_state", world.read_state)
    return world


@pytest.fixture
def line(tmp_path: Path, world: _World) -> Line:
    return Line(configured(tmp_path, tables=["public.orders", "public.late"]).as_pipeline())


def test_nobody_is_let_go_while_capture_lacks_a_table_that_the_configuration_names(line: Line, world: _World) -> None:
    """A topic of it may be there, of a time when it was captured."""
    world.recorded = WITHOUT
    with pytest.raises(Unavailable, match=r"without public\.late, which source\.tables names"):
        line.check()
    world.recorded = WHOLE
    line.check()
    looks = world.looks
    for _ in range(3):
        line.check()
    assert world.looks == looks, "what is known of a selection isn't asked again"


def test_a_state_of_other_tables_than_the_newest_record_says_nothing(
    line: Line, world: _World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "new_records", lambda: [published(WITHOUT)])
    with pytest.raises(Unavailable, match="has just begun with other tables"):
        line.check()


def test_a_capture_without_a_named_table_that_has_no_topic_is_told_and_not_that_nothing_is_published(
    line: Line, world: _World
) -> None:
    world.topics.remove("shop.public.late")
    world.recorded = WITHOUT
    with pytest.raises(Unavailable, match=r"without public\.late.*start `lockstep capture`"):
        line.check()
    world.topics.clear()
    with pytest.raises(Unavailable, match="hasn't published anything yet"):
        line.check()


def test_a_source_whose_wal_ends_before_what_was_published_is_refused(line: Line, world: _World) -> None:
    world.wal_end = 700
    with pytest.raises(LockstepError, match="the source's WAL ends at"):
        line.check()
