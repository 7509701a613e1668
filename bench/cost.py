"""What an event costs each stage, with more partitions and with more tables, and what follows from it for more cores.

All of it is processor time, from /proc: it means something on a machine that does other work, too. There are no
measured speed-ups, since more workers than cores show none. What more cores would bring is computed (`scaling`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench import scaling
from bench.cost_apply import SERVERS, ApplyCosts, apply_costs
from bench.cost_capture import capture_costs
from bench.figures import Figure
from bench.rig import STORES, WAREHOUSE, Rig, Say
from bench.scaling import Stage
from bench.sizes import Sizes

PHASE = "cost"

CORES = (2, 4, 8, 16, 32)
"""Of the curve: that many for each stage that can use them."""

_BATCHES = (100, 1_000, 10_000)
"""Sizes of which the driver's share is computed; the curve is that of batches with all events of a backlog."""

_SERIAL = {"capture, main thread", "sender"}
"""One thread and one process for each slot."""

_DRIVER = ("driver, Python", "driver, JVM")


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured with so many tables and partitions."""

    tables: int
    partitions: int
    capture_us: dict[str, float]
    apply: ApplyCosts

    @property
    def name(self) -> str:
        tables = "1 table" if self.tables == 1 else f"{self.tables:,} tables"
        return f"{tables}, {self.partitions} partition{'' if self.partitions == 1 else 's'}"


def measure(rig: Rig, sizes: Sizes, say: Say) -> tuple[list[Figure], dict[str, Any]]:
    """Returns figures and details. Raises LockstepError when a command fails or hangs."""
    rig.up()
    points = []
    wanted: list[tuple[int, int, tuple[str, ...]]] = [(1, partitions, STORES) for partitions in sizes.cost_partitions]
    wanted += [(tables, 1, (WAREHOUSE,)) for tables in sizes.cost_tables]
    for tables, partitions, kinds in wanted:
        points.append(
            Point(
                tables,
                partitions,
                capture_costs(rig, tables=tables, partitions=partitions, events=sizes.cost_events, say=say),
                apply_costs(
                    rig,
                    tables=tables,
                    partitions=partitions,
                    events=sizes.cost_events,
                    batches=sizes.cost_batches,
                    kinds=kinds,
                    say=say,
                ),
            )
        )
    details = {point.name: {"capture_us": point.capture_us} | asdict(point.apply) for point in points}
    return figures_of(points, sizes.cost_events), {"events": sizes.cost_events, "points": details}


def figures_of(points: Sequence[Point], events: int) -> list[Figure]:
    """What was measured, and what is computed from it. The first point has one table and one partition. Pure."""
    figures = []
    for point in points:
        figures += [_figure(f"{point.name}: {stage}", us, "us/event") for stage, us in point.capture_us.items()]
        figures += [_figure(f"{point.name}: {stage}", us, "us/event") for stage, us in point.apply.event_us.items()]
        figures += [
            _figure(f"{point.name}: {stage}, a batch of one row", ms, "ms")
            for stage, ms in point.apply.batch_ms.items()
        ]
    by_partitions = {point.partitions: tasks_us(point.apply) for point in points if point.tables == 1}
    return figures + _computed(points[0], events, scaling.crosstalk_of(by_partitions))


def tasks_us(costs: ApplyCosts) -> float:
    """What an event costs that a sink's tasks do: more of them can share it."""
    return costs.event_us["Python workers"] + sum(costs.event_us[stage] for stage in _DRIVER)


def _computed(point: Point, events: int, crosstalk: float) -> list[Figure]:
    driver_ms = sum(point.apply.batch_ms[stage] for stage in _DRIVER)
    shares = {
        size: scaling.serial_share(batch_ms=driver_ms, event_us=tasks_us(point.apply), events=size)
        for size in (*_BATCHES, events)
    }
    serial = shares[events]
    one_core = 1e6 / (tasks_us(point.apply) + 1000 * driver_ms / events)
    figures = [
        *(
            _figure(f"the driver's share of a batch of {size:,} events", 100 * share, "%")
            for size, share in shares.items()
        ),
        _figure("what an event gets dearer by with each pair of partitions", 100 * crosstalk, "%"),
    ]
    for cores in CORES:
        apply_rate = one_core * scaling.speed_up(cores, serial=serial, crosstalk=crosstalk)
        stages = [*stages_of(point), Stage("tasks of a sink", 1e6 / apply_rate, serial=True)]
        full = scaling.saturation(stages, cores)
        figures += [
            _figure(f"computed, {cores} cores for each stage: tasks of a sink", apply_rate, "events/s"),
            _figure(
                f"computed, {cores} cores for each stage: full first: {full.name}",
                scaling.rate(full, cores),
                "events/s",
            ),
        ]
    return figures


def stages_of(point: Point) -> list[Stage]:
    """All stages but a sink's tasks, which share a driver. Kafka has what is published and what each sink reads."""
    costs: Mapping[str, float] = point.capture_us
    kafka = costs["kafka, published"] + point.apply.event_us["kafka, read"]
    return [
        *(Stage(name, costs[name], serial=True) for name in sorted(_SERIAL)),
        Stage("Kafka", kafka, serial=False),
        # Valkey executes commands one after the other; a shard of an index and a table can use more cores.
        *(
            Stage(server, point.apply.event_us[server], serial=server == "valkey")
            for server in SERVERS.values()
            if server in point.apply.event_us
        ),
    ]


def _figure(name: str, value: float, unit: str) -> Figure:
    return Figure(phase=PHASE, name=name, value=value, unit=unit)
