"""The cost of everyday traffic, as figures and as a table of 80 columns. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from bench.figures import Figure, Limit, Target, percentile
from bench.report import amount

PHASE = "everyday"
OURS, GLUE = "Lockstep", "Debezium and glue"
_SHORT = {OURS: "ours", GLUE: "glue"}

SERVERS = ("kafka", "opensearch", "postgres", "warehouse", "valkey")
OUR_PROCESSES = ("capture", "driver", "JVM", "workers", "supervisor", "page")
GLUE_PROCESSES = ("Connect", "glue")

_TARGET_RATE = 50
_MEMORY_MB_MAX = 1_800
_IDLE_PERCENT_MAX = {"all processes": 12.0, "our own processes": 5.0}
_TIMES_MAX = {"all processes": 1.0, "our own processes": 1.0, "kafka": 1.3, "opensearch": 1.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    rate: int
    """Requested transactions per second; 0: nobody wrote."""
    seconds: float
    transactions: int
    cpu_s: Mapping[str, float]
    """Processor seconds by group of processes."""
    memory_mb: Mapping[str, float]
    """At the end, by group."""
    seen_s: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By store, seconds from commit to row, of some of the transactions."""

    def percent(self, *groups: str) -> float:
        """Per cent of a core, of these groups or of all."""
        return 100 * sum(self.cpu_s.get(group, 0.0) for group in groups or self.cpu_s) / self.seconds

    @property
    def per_transaction_ms(self) -> float:
        """Processor time of all groups. Needs at least one transaction."""
        return 1000 * sum(self.cpu_s.values()) / self.transactions

    def seen_ms(self, store: str, percent: float) -> float | None:
        seconds = self.seen_s.get(store)
        return 1000 * percentile(seconds, percent) if seconds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    name: str
    own: Sequence[str]
    """Groups that aren't servers."""
    first_row_s: float
    """From its start to the first row in OpenSearch."""
    costs: Sequence[Cost]

    def at(self, rate: int) -> Cost:
        return next(cost for cost in self.costs if cost.rate == rate)

    @property
    def rates(self) -> list[int]:
        return [cost.rate for cost in self.costs]


def figures_of(ours: Side, glue: Side | None) -> list[Figure]:
    """Ours, beside the glue's if that was measured. The targets are for 50 transactions a second and for idle."""
    figures = [
        _figure(f"{cost.rate}/s: processor time a transaction", cost.per_transaction_ms, "ms", beside, None)
        for cost, beside in (
            (cost, None if glue is None else glue.at(cost.rate).per_transaction_ms) for cost in ours.costs if cost.rate
        )
    ]
    if _TARGET_RATE in ours.rates:
        cost, beside = ours.at(_TARGET_RATE), None if glue is None else glue.at(_TARGET_RATE)
        for name, times in _TIMES_MAX.items():
            figures.append(
                _figure(
                    f"{_TARGET_RATE}/s: {name}",
                    cost.percent(*_groups(name, ours)),
                    "% of a core",
                    None if beside is None or glue is None else beside.percent(*_groups(name, glue)),
                    Target(bound="at most", amount=times, of_limit=True),
                )
            )
        figures.append(
            _figure(
                f"{_TARGET_RATE}/s: memory",
                sum(cost.memory_mb.values()),
                "MB",
                None if beside is None else sum(beside.memory_mb.values()),
                Target(bound="at most", amount=_MEMORY_MB_MAX),
            )
        )
    if 0 in ours.rates:
        for name, most in _IDLE_PERCENT_MAX.items():
            figures.append(
                _figure(
                    f"idle: {name}",
                    ours.at(0).percent(*_groups(name, ours)),
                    "% of a core",
                    None if glue is None else glue.at(0).percent(*_groups(name, glue)),
                    Target(bound="at most", amount=most),
                )
            )
    first = None if glue is None else glue.first_row_s
    return [*figures, _figure("start to first row in OpenSearch", ours.first_row_s, "s", first, None)]


def _groups(name: str, side: Side) -> Sequence[str]:
    return {"all processes": (), "our own processes": side.own}.get(name, (name,))


def _figure(name: str, value: float, unit: str, beside: float | None, target: Target | None) -> Figure:
    limit = None if beside is None else Limit(value=beside, what=f"{GLUE} in the same run")
    return Figure(phase=PHASE, name=name, value=value, unit=unit, limit=limit, target=target)


def report_of(ours: Side, glue: Side | None) -> dict[str, Any]:
    """All measurements, for JSON, with the rows that ``table`` shows."""
    sides = [ours] if glue is None else [ours, glue]
    columns = [(side, cost) for rate in ours.rates for side in sides for cost in [side.at(rate)]]
    rows: dict[str, list[float | None]] = {}
    for group in [*SERVERS, *(group for side in sides for group in side.own)]:
        rows[group] = [cost.percent(group) if group in cost.cpu_s else None for _, cost in columns]
    rows["all"] = [cost.percent() for _, cost in columns]
    rows["of it, own"] = [cost.percent(*side.own) for side, cost in columns]
    rows["ms/transaction"] = [cost.per_transaction_ms if cost.transactions else None for _, cost in columns]
    rows["transactions/s"] = [cost.transactions / cost.seconds for _, cost in columns]
    rows["MB"] = [sum(cost.memory_mb.values()) for _, cost in columns]
    for store in dict.fromkeys(store for _, cost in columns for store in cost.seen_s):
        for percent in (50, 99):
            rows[f"{store} p{percent} ms"] = [cost.seen_ms(store, percent) for _, cost in columns]
    # Measured once per side, and shown in the side's first column.
    rows["first row s"] = [side.first_row_s if cost.rate == side.rates[0] else None for side, cost in columns]
    return {
        "columns": [f"{_SHORT[side.name]} {f'{cost.rate}/s' if cost.rate else 'idle'}" for side, cost in columns],
        "rows": rows,
        "sides": [asdict(side) for side in sides],
    }


def table(report: Mapping[str, Any]) -> Table:
    """The content of ``report_of``, in 80 columns: per cent of a core by group, then everything else."""
    lines = Table(title="everyday traffic, % of a core", title_justify="left", box=None, padding=(0, 1, 0, 0))
    lines.add_column("", no_wrap=True)
    for name in report["columns"]:
        side, rate = name.split()
        lines.add_column(f"{side}\n{rate}", justify="right", no_wrap=True)
    for name, values in report["rows"].items():
        lines.add_row(name, *("-" if value is None else amount(value) for value in values))
    return lines
