"""The results as a table for people and as one JSON document. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.figures import Figure, Target


def table(figures: Sequence[Figure]) -> RenderableType:
    """One line per figure, with its limit. The limits are explained below."""
    notes = list(dict.fromkeys(figure.limit.what for figure in figures if figure.limit is not None))
    lines = Table()
    spreads = any(figure.spread is not None for figure in figures)
    headings = ["phase", "figure", "measured", "limit", "", "of limit", "target", "result"]
    if spreads:
        headings.insert(3, "of all runs")
    for heading in headings:
        right = heading in ("measured", "of all runs", "limit", "of limit", "target")
        lines.add_column(heading, justify="right" if right else "left", no_wrap=True)
    last = None
    for figure in figures:
        if last is not None and figure.phase != last:
            lines.add_section()
        limit = figure.limit
        lines.add_row(
            figure.phase if figure.phase != last else "",
            figure.name,
            f"{amount(figure.value)} {figure.unit}",
            *([] if not spreads else ["" if figure.spread is None else " to ".join(map(amount, figure.spread))]),
            "" if limit is None else f"{amount(limit.value)} {figure.unit}",
            "" if limit is None else str(notes.index(limit.what) + 1),
            "" if figure.ratio is None else ratio_text(figure.ratio),
            "" if figure.target is None else target_text(figure.target, figure.unit),
            _mark(figure.passed),
        )
        last = figure.phase
    return Group(lines, *(Text(f"limit {number}: {what}", style="dim") for number, what in enumerate(notes, 1)))


def amount(value: float) -> str:
    """Three significant digits, and no decimals in large numbers."""
    if math.isnan(value):
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"


def ratio_text(ratio: float) -> str:
    """A share below three times the limit, a multiple above."""
    if math.isnan(ratio):
        return "-"
    return f"{100 * ratio:.0f} %" if ratio < 3 else f"{ratio:,.1f} x"


def target_text(target: Target, unit: str) -> str:
    sign = ">=" if target.bound == "at least" else "<="
    return f"{sign} {ratio_text(target.amount)}" if target.of_limit else f"{sign} {amount(target.amount)} {unit}"


def _mark(passed: bool | None) -> Text:
    if passed is None:
        return Text("")
    return Text("reached", style="green") if passed else Text("missed", style="bold red")


def document(
    figures: Sequence[Figure],
    *,
    machine: Mapping[str, Any],
    sizes: Mapping[str, Any],
    started: str,
    seconds: float,
    runs: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """All measurements. ``runs`` holds the details of every repetition."""
    return {
        "format": 1,
        "started": started,
        "seconds": round(seconds, 1),
        "machine": dict(machine),
        "sizes": dict(sizes),
        "figures": [figure_json(figure) for figure in figures],
        "runs": list(runs),
    }


def figure_json(figure: Figure) -> dict[str, Any]:
    target = figure.target
    return {
        "phase": figure.phase,
        "name": figure.name,
        "value": _number(figure.value),
        "unit": figure.unit,
        "spread": None if figure.spread is None else [_number(value) for value in figure.spread],
        "limit": None if figure.limit is None else _number(figure.limit.value),
        "limit_is": None if figure.limit is None else figure.limit.what,
        "ratio": None if figure.ratio is None else _number(figure.ratio),
        "target": None
        if target is None
        else {"bound": target.bound, "amount": target.amount, "of_limit": target.of_limit},
        "reached": figure.passed,
    }


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else round(value, 4)
