"""The result of a measurement: a value with its target and its limit. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Bound = Literal["at least", "at most"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A goal. With ``of_limit`` it is a share of the figure's limit, else an amount in the figure's unit."""

    bound: Bound
    amount: float
    of_limit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The same thing without Lockstep in between, as ``what`` says."""

    value: float
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value. Without a target it explains others. ``spread``: lowest and highest of several runs."""

    phase: str
    name: str
    value: float
    unit: str
    limit: Limit | None = None
    target: Target | None = None
    spread: tuple[float, float] | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.limit.value if self.limit is not None and self.limit.value else None

    @property
    def passed(self) -> bool | None:
        """Whether the target is met; None without a target, or without a limit to compare with."""
        if self.target is None:
            return None
        reached = self.ratio if self.target.of_limit else self.value
        if reached is None:
            return None
        return reached >= self.target.amount if self.target.bound == "at least" else reached <= self.target.amount


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` % of the values don't exceed. Needs at least one value."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, min(len(ordered), int(rank)) - 1)]


def median_run(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Several runs of the same phases as one: for each figure, the run with the median ratio (or value).

    A value stays beside the limit of its own run; medians of both would pair numbers that were never measured together.
    """
    names = list(dict.fromkeys((figure.phase, figure.name) for run in runs for figure in run))
    chosen = []
    for name in names:
        same = [figure for run in runs for figure in run if (figure.phase, figure.name) == name]
        keys = [_order(figure) for figure in same]
        median = same[keys.index(statistics.median_low(keys))]
        values = [figure.value for figure in same]
        chosen.append(median if len(runs) == 1 else replace(median, spread=(min(values), max(values))))
    return chosen


def _order(figure: Figure) -> float:
    by_share = figure.target is not None and figure.target.of_limit
    return figure.ratio if by_share and figure.ratio is not None else figure.value
