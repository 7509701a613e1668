"""The figures of one large transaction."""

from bench.large import Large, Spent, figures_of

WHOLE = Large(last_row_s=8.0, bystander_s=9.0, before=Spent(1, 1, 1, 1), after=Spent(4, 3, 3, 2), memory_mb=90)
PARTS = Large(last_row_s=4.0, bystander_s=8.0, before=Spent(2, 2, 2, 1), after=Spent(3, 2, 0.3, 2), memory_mb=95)


def test_the_spool_is_set_beside_whole_transactions() -> None:
    figures = {figure.name: figure for figure in figures_of(WHOLE, PARTS, 1_000_000)}
    last_row, bystander = figures["commit to last row"], figures["a bystander's commit to its row"]
    assert (last_row.value, last_row.ratio, last_row.passed) == (4.0, 0.5, True)
    assert bystander.passed is False
    assert figures["before the commit: capture and sender"].ratio == 2.0


def test_targets_in_seconds_are_those_of_a_million_rows() -> None:
    figures = {figure.name: figure for figure in figures_of(WHOLE, PARTS, 10_000)}
    assert figures["commit to last row"].passed is None
    assert figures["peak memory of capture"].passed is True
