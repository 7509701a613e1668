"""Targets, ratios and percentiles."""

from dataclasses import replace

import pytest

from bench.figures import Figure, Limit, Target, median_run, percentile

SHARE = Target(bound="at least", amount=0.2, of_limit=True)


def figure(value: float, limit: float | None = None, target: Target | None = None) -> Figure:
    return Figure(
        phase="drain",
        name="rows per second",
        value=value,
        unit="rows/s",
        limit=None if limit is None else Limit(value=limit, what="null reader"),
        target=target,
    )


@pytest.mark.parametrize(("percent", "expected"), [(50, 5), (90, 9), (99, 10), (99.9, 10), (0, 1)])
def test_a_percentile_is_a_measured_value(percent: float, expected: float) -> None:
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == expected


def test_a_share_is_compared_with_the_limit_and_an_amount_with_the_value() -> None:
    assert figure(20, 100, SHARE).passed is True
    assert figure(19, 100, SHARE).passed is False
    assert figure(20, None, SHARE).passed is None
    amount = Target(bound="at most", amount=20)
    assert figure(20, 1, amount).passed is True
    assert figure(20.1, 1000, amount).passed is False
    assert figure(1, 2).passed is None


def test_of_several_runs_the_median_share_counts_with_its_own_limit_and_else_the_median_value() -> None:
    runs = [[figure(50, 100, SHARE)], [figure(60, 400, SHARE)], [figure(90, 300, SHARE)]]
    assert median_run(runs) == [replace(figure(90, 300, SHARE), spread=(50, 90))]
    runs = [[figure(3, 1)], [figure(1, 9)], [figure(2, 5)]]
    assert median_run(runs) == [replace(figure(2, 5), spread=(1, 3))]
    assert median_run([[figure(2, 5)]]) == [figure(2, 5)]
