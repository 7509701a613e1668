"""The figures of a pipeline of many tables."""

from bench.many import Costs, figures_of
from bench.many_log import many_tables


def test_many_tables_are_set_beside_few() -> None:
    few, many = Costs(20.0, 0.02, 0.1, {}), Costs(50.0, 0.2, 0.15, {})
    start, idle, batch = figures_of(few, many, 2_000)
    assert (start.value, start.passed) == (50.0, True)
    assert (idle.value, idle.passed) == (20.0, False)
    assert (batch.value, batch.ratio, batch.passed) == (150.0, 1.5, True)


def test_tables_differ_in_their_names_alone() -> None:
    first, second = many_tables(2)
    assert first.name != second.name
    assert (first.columns, first.key) == (second.columns, second.key)
