"""What is computed from the cost of stages."""

import pytest

from bench.cost import Point, figures_of, stages_of
from bench.cost_apply import ApplyCosts
from bench.figures import Figure

CAPTURE_US = {"capture": 4.0, "capture, main thread": 3.0, "sender": 2.0, "kafka, published": 3.0}
EVENT_US = {
    "driver, Python": 1.0,
    "driver, JVM": 2.0,
    "Python workers": 7.0,
    "kafka, read": 1.0,
    "opensearch": 40.0,
    "valkey": 5.0,
    "warehouse": 6.0,
}
BATCH_MS = dict.fromkeys(EVENT_US, 0.0) | {"driver, Python": 40.0, "driver, JVM": 60.0}


def point(tables: int = 1, partitions: int = 1, more: float = 1.0) -> Point:
    event_us = {stage: us * more for stage, us in EVENT_US.items()}
    return Point(tables, partitions, CAPTURE_US, ApplyCosts(event_us, BATCH_MS))


def computed(figures: list[Figure]) -> dict[str, float]:
    return {
        figure.name: figure.value
        for figure in figures
        if "partition: " not in figure.name and "partitions: " not in figure.name
    }


def test_a_curve_is_called_computed_and_is_bounded_by_the_driver() -> None:
    values = computed(figures_of([point()], 100_000))
    assert values["the driver's share of a batch of 100,000 events"] == pytest.approx(100 * 0.1 / 1.1)
    assert values["the driver's share of a batch of 10,000 events"] == pytest.approx(50.0)
    rates = [value for name, value in values.items() if name.endswith("tasks of a sink") and "full" not in name]
    assert rates == sorted(rates)
    assert rates[-1] < 100_000 / 0.1
    assert all(name.startswith("computed, ") for name in values if "cores" in name)


def test_every_figure_has_a_name_of_its_own() -> None:
    names = [figure.name for figure in figures_of([point(), point(partitions=8), point(tables=10)], 100_000)]
    assert len(set(names)) == len(names)


def test_partitions_that_make_events_dearer_bend_the_curve() -> None:
    straight = computed(figures_of([point(), point(partitions=8)], 100_000))
    bent = computed(figures_of([point(), point(partitions=8, more=2.0)], 100_000))
    name = "computed, 32 cores for each stage: tasks of a sink"
    assert bent[name] < straight[name]


def test_many_tables_do_not_bend_it() -> None:
    assert computed(figures_of([point(), point(tables=2_000, more=3.0)], 100_000)) == computed(
        figures_of([point()], 100_000)
    )


def test_kafka_has_what_is_published_and_what_a_sink_reads() -> None:
    assert {stage.name: stage.us for stage in stages_of(point())}["Kafka"] == 4.0


def test_one_thread_and_one_process_of_a_slot_can_not_use_more_cores() -> None:
    serial = {stage.name for stage in stages_of(point()) if stage.serial}
    assert serial == {"capture, main thread", "sender", "valkey"}
