import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import PositionMismatch, Unavailable
from jobs.generations.lease import GenerationLease
from jobs.generations.record import Phase, Record, load_record, save_record, set_phase
from jobs.settings import SparkSettings
from jobs.streams.job import _Run, lacking_topic, stream_error
from jobs.streams.plan import StreamQueryPlan
from jobs.streams.rebuild import begin_again
from jobs.streams.resume import Figures
from jobs.streams.settings import StreamQuerySettings, StreamSettings
from sinks.contract import CoordinationRecords
from sinks.memory import MemoryGenerations, MemorySink, MemoryStore, open_memory
from sinks.warehouse.settings import WarehouseSettings
from tests.generations import ORDERS


def test_records_that_are_gone_name_the_way_out_of_a_stream_query() -> None:
    error = stream_error("sessions", "[KAFKA_DATA_LOSS.PARTITIONS_DELETED] ...")
    assert isinstance(error, PositionMismatch)
    assert "stream query 'sessions'" in error.message
    assert "lockstep streams rebuild sessions" in (error.hint or "")


def test_a_topic_that_is_not_there_is_named_with_its_stream_and_what_to_do() -> None:
    streams = {
        name: StreamSettings.model_validate(
            {"topic": f"web.{name}", "columns": {"at": "timestamptz"}, "time": "at", "late": "1 minute"}
        )
        for name in ("searches", "clicks")
    }
    error = lacking_topic("sessions", streams, {"web.clicks"})
    assert error is not None
    assert error.message == "topic web.searches, which stream query 'sessions' reads as searches, doesn't exist"
    assert error.hint == "create it, or mend streams.searches.topic"
    assert lacking_topic("sessions", streams, {"web.clicks", "web.searches"}) is None


def test_what_passes_by_itself_is_waited_for() -> None:
    assert isinstance(stream_error("sessions", "Python worker exited unexpectedly (crashed)"), Unavailable)


def test_a_key_with_too_many_events_is_told_with_the_query_and_the_ways_out() -> None:
    told = "[FAILED_EXECUTE_UDF] ... jobs.streams.pattern_state.TooManyEvents: one key would have more than 4000 events"
    error = stream_error("failed", told)
    assert error.message == "the pattern of stream query 'failed' would keep more than 4,000 events of one key"
    assert "`per`" in (error.hint or "")


def test_a_partition_that_joins_while_a_query_begins_is_taken_in_at_the_next_try() -> None:
    told = "[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED] Partitions specified for Kafka start offsets don't match"
    assert isinstance(stream_error("sessions", told), Unavailable)


class _Build:
    """A run of a job that has built generation 2, while readers have generation 1."""

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
        session = SimpleNamespace(conf=SimpleNamespace(set=lambda *_: None))
        self.opened = open_memory(self.store, 2)
        self.run = _Run(
            self.plan,
            cast(Any, SimpleNamespace(newSession=lambda: session)),
            self.opened,
            GenerationLease(self.opened, 2),
            2,
            stop=threading.Event(),
            report=lambda _: None,
        )
        self.run._figures, self.run._ends = Figures(), {}

    def phase(self, number: int) -> Phase:
        record = load_record(self.opened.records, number)
        assert record is not None
        return record.phase


def test_a_build_that_was_given_up_does_not_go_live() -> None:
    build = _Build()
    assert not build.run._has_other()
    assert begin_again(build.plan) == 3
    assert build.phase(2) is Phase.RETIRED
    build.run._go_live()
    assert (build.store.live, build.run._is_live, build.run._has_other()) == (1, False, True)


def test_a_build_whose_rebuild_was_killed_at_its_beginning_is_not_worked_on_any_more() -> None:
    """It was given up, and no other one begun: the one before goes on."""
    build = _Build()
    set_phase(build.opened.records, 2, Phase.RETIRED)
    build.run._go_live()
    assert (build.store.live, build.run._has_other()) == (1, True)


def test_of_a_build_that_was_given_up_as_it_went_live_the_rows_are_posted_before_it_is_dropped() -> None:
    build = _Build()
    set_phase(build.opened.records, 1, Phase.RETIRED)  # the rebuild had looked before
    assert build.run._shown_generations() == [1]
    build.run._keep_shown()
    assert build.phase(1) is Phase.READY


def test_a_build_that_goes_live_while_it_is_given_up_is_one_that_readers_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the job and the rebuild looks last sees what the other one has done."""
    build, switch = _Build(), MemoryGenerations.switch

    def given_up_and_switched(generations: MemoryGenerations) -> None:
        set_phase(build.opened.records, 2, Phase.RETIRED)
        switch(generations)

    monkeypatch.setattr(MemoryGenerations, "switch", given_up_and_switched)
    monkeypatch.setattr(build.run, "_drop_earlier", lambda: None)
    build.run._go_live()
    assert (build.store.live, build.phase(2)) == (2, Phase.READY)

    build = _Build()

    def switched_and_given_up(records: CoordinationRecords, number: int, phase: Phase) -> None:
        if phase is Phase.RETIRED:
            switch(cast(MemoryGenerations, build.opened.generations))
        set_phase(records, number, phase)

    monkeypatch.setattr("jobs.streams.rebuild.set_phase", switched_and_given_up)
    assert begin_again(build.plan) == 3
    assert (build.store.live, build.phase(2)) == (2, Phase.READY)


def test_nothing_of_an_earlier_build_is_left_where_the_job_is_killed_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The build goes last: what is left of one that isn't listed any more is found by nobody."""
    build, done = _Build(), list[str]()

    def drop(_: MemoryGenerations) -> None:
        done.append("build")

    monkeypatch.setattr(MemoryGenerations, "drop", drop)
    kept = SimpleNamespace(remove=lambda: done.append("checkpoint"))
    monkeypatch.setattr("jobs.streams.job.Checkpoint", lambda _, location: kept if location.endswith("/g1") else None)
    build.run._cluster = cast(Any, SimpleNamespace(exists=lambda _: True, remove=done.extend))
    build.run._drop_earlier()
    assert done == ["shop.__stream_queries.sessions.g1", "checkpoint", "build"]
