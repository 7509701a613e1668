"""Which build readers have, and which ones go."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.kafka.settings import KafkaSettings
from extensions.streams.jobs.builds import Builds
from extensions.streams.jobs.plan import StreamQueryPlan
from extensions.streams.jobs.rebuild import begin_again
from extensions.streams.settings import StreamQuerySettings
from jobs.generations.record import Phase, Record, load_record, save_record, set_phase
from jobs.settings import SparkSettings
from sinks.contract import CoordinationRecords
from sinks.memory import MemorySink, MemoryStore, open_memory
from sinks.warehouse.settings import WarehouseSettings
from tests.generations import ORDERS


class _Build:
    """A job has built generation 2, while readers have generation 1."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        for number, is_live in ((1, True), (2, False)):
            MemorySink(self.store, number).prepare([ORDERS], go_live=is_live)
            save_record(open_memory(self.store).records, number, Record("shop", {}))
        self.plan = StreamQueryPlan(
            name="sessions",
            query=StreamQuerySettings(key=("id",), sql="x"),
            settings=WarehouseSettings(url="postgresql://nowhere"),
            streams={},
            pipeline="shop",
            kafka=KafkaSettings(bootstrap_servers="nowhere:1"),
            spark=SparkSettings(),
            once=False,
            open=lambda _name, _settings, number: open_memory(self.store, number),
        )
        self.opened = open_memory(self.store, 2)
        self.done: list[str] = []
        kept = SimpleNamespace(remove=lambda: self.done.append("checkpoint"))
        self.builds = Builds(self.plan, self.opened, 2, lambda _: cast(Any, kept))

    def phase(self, number: int) -> Phase:
        record = load_record(self.opened.records, number)
        assert record is not None
        return record.phase


def test_a_build_that_was_given_up_does_not_go_live() -> None:
    build = _Build()
    assert not build.builds.has_other()
    assert begin_again(build.plan) == 3
    assert build.phase(2) is Phase.RETIRED
    assert not build.builds.go_live()
    assert (build.store.live, build.builds.is_live, build.builds.has_other()) == (1, False, True)


def test_a_build_whose_rebuild_was_killed_at_its_beginning_is_not_worked_on_any_more() -> None:
    """It was given up, and no other one begun: the one before goes on."""
    build = _Build()
    set_phase(build.opened.records, 2, Phase.RETIRED)
    build.builds.go_live()
    assert (build.store.live, build.builds.has_other()) == (1, True)


def test_of_a_build_that_was_given_up_as_it_went_live_the_rows_are_posted_before_it_is_dropped() -> None:
    build = _Build()
    set_phase(build.opened.records, 1, Phase.RETIRED)  # the rebuild had looked before
    assert build.builds.look_shown() == [1]
    assert build.builds.go_live()
    assert (build.builds.shown, build.phase(1)) == ([1, 2], Phase.READY)


def test_a_build_that_goes_live_while_it_is_given_up_is_one_that_readers_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the job and the rebuild looks last sees what the other one has done."""
    build, switch = _Build(), MemorySink.switch

    def given_up_and_switched(generations: MemorySink) -> None:
        set_phase(build.opened.records, 2, Phase.RETIRED)
        switch(generations)

    monkeypatch.setattr(MemorySink, "switch", given_up_and_switched)
    build.builds.go_live()
    assert (build.store.live, build.phase(2)) == (2, Phase.READY)

    build = _Build()

    def switched_and_given_up(records: CoordinationRecords, number: int, phase: Phase) -> None:
        if phase is Phase.RETIRED:
            switch(cast(MemorySink, build.opened.generations))
        set_phase(records, number, phase)

    monkeypatch.setattr("extensions.streams.jobs.rebuild.set_phase", switched_and_given_up)
    assert begin_again(build.plan) == 3
    assert (build.store.live, build.phase(2)) == (2, Phase.READY)


def test_nothing_of_an_earlier_build_is_left_where_the_job_is_killed_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The build goes last: what is left of one that isn't listed any more is found by nobody."""
    build = _Build()
    monkeypatch.setattr(MemorySink, "drop", lambda _: build.done.append("build"))
    cluster = cast(Any, SimpleNamespace(exists=lambda _: True, remove=build.done.extend))
    build.builds.drop_earlier(cluster)
    assert build.done == ["shop.__stream_queries.sessions.g1", "checkpoint", "build"]


def test_a_build_stays_until_the_webhook_has_its_rows() -> None:
    build = _Build()
    assert build.builds.go_live()
    cluster = cast(Any, SimpleNamespace(exists=lambda _: False))
    build.builds.drop_earlier(cluster, lambda _: False)
    assert (build.builds.has_earlier, build.builds.shown, build.done) == (True, [1, 2], [])
    build.builds.drop_earlier(cluster, lambda _: True)
    assert (build.builds.has_earlier, build.builds.shown, build.done) == (False, [2], ["checkpoint"])
