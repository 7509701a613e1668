"""What the reports of jobs become in metrics."""

from prometheus_client import CollectorRegistry

from jobs.report import ViewReport
from monitor.metrics.definitions import Part
from monitor.metrics.meters import Meters
from monitor.metrics.sinks import measured
from views.counters import Counters
from views.figures import Building, Doing, ViewFigures

LABELS = {"sink": "timeline", "generation": "2"}


def value(registry: CollectorRegistry, name: str) -> float | None:
    return registry.get_sample_value(f"lockstep_view_{name}", LABELS)


def test_a_view_has_its_figures_and_counts_what_was_done_since() -> None:
    meters = Meters(Part.APPLY)
    report = measured(lambda _: None, meters)
    figures = ViewFigures(8, 10, 4096, Counters(5, 20, 50, 100, 7, 800))
    for done in (Counters(5, 20, 50, 100, 7, 800), Counters(1, 2, 3, 4, 5, 6)):
        report(ViewReport("timeline", 2, figures, done))
    registry = meters.registry
    assert [value(registry, name) for name in ("rows", "state_rows", "state_bytes")] == [800, 10, 4096]
    counted = ("steps_total", "transactions_total", "changes_in_total", "changes_out_total")
    assert [value(registry, name) for name in counted] == [6, 12, 22, 53]
    assert [value(registry, name) for name in ("amplification", "building", "built_ratio")] == [2.5, 0, 1]


def test_a_building_shows_how_far_it_is_and_counts_nothing() -> None:
    meters = Meters(Part.APPLY)
    building = Building(1_000, Doing.READING, 100, 400, 50.0)
    figures = ViewFigures(0, 10, 4096, Counters(0, 20, 50, 100), building)
    measured(lambda _: None, meters)(ViewReport("timeline", 2, figures, figures.counters))
    registry = meters.registry
    assert [value(registry, name) for name in ("building", "built_ratio", "building_left_seconds")] == [1, 0.25, 6.0]
    assert value(registry, "changes_in_total") is None
