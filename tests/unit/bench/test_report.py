"""The table and the document."""

import json
import math
from dataclasses import replace

from rich.console import Console

from bench.figures import Figure, Limit, Target
from bench.report import amount, document, ratio_text, table

REACHED = Figure(
    phase="drain",
    name="rows per second",
    value=50_000.0,
    unit="rows/s",
    limit=Limit(value=200_000.0, what="null reader"),
    target=Target(bound="at least", amount=0.2, of_limit=True),
)
MISSED = Figure(
    phase="into Kafka", name="p50", value=21.0, unit="ms", limit=None, target=Target(bound="at most", amount=20)
)
UNKNOWN = Figure(phase="drain", name="second half", value=math.nan, unit="rows/s", limit=Limit(value=1.0, what="x"))


def printed(*figures: Figure) -> str:
    console = Console(width=140, record=True, file=None, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        console.print(table(figures))
    return captured.get()


def test_the_table_shows_figures_targets_results_and_what_all_runs_had() -> None:
    text = printed(REACHED)
    for part in ("50,000 rows/s", "200,000 rows/s", "25 %", ">= 20 %", "reached", "limit 1: null reader"):
        assert part in text
    text = printed(replace(REACHED, spread=(45_000.0, 61_000.0)), MISSED)
    for part in ("of all runs", "45,000 to 61,000", "<= 20.0 ms", "missed"):
        assert part in text


def test_the_document_is_json_also_where_a_value_is_unknown() -> None:
    made = document([REACHED, UNKNOWN], machine={}, sizes={}, started="2026-01-01T00:00:00+00:00", seconds=1.0, runs=[])
    figures = json.loads(json.dumps(made, allow_nan=False))["figures"]
    assert figures[0]["ratio"] == 0.25
    assert figures[0]["reached"] is True
    assert figures[1]["value"] is None


def test_amounts_have_the_digits_that_matter() -> None:
    assert [amount(v) for v in (123_456.7, 99.94, 1.0, 0.123, math.nan)] == ["123,457", "99.9", "1.0", "0.12", "-"]
    assert (ratio_text(0.25), ratio_text(3.0), ratio_text(1234.0)) == ("25 %", "3.0 x", "1,234.0 x")
