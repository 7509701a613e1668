"""Portions of rows."""

from bench.limits import portions_of


def test_each_task_of_each_batch_takes_its_share_in_order() -> None:
    assert portions_of([0, 1, 2, 3, 4, 5, 6], batch=4, tasks=2) == [[0, 2], [1, 3], [4, 6], [5]]


def test_a_task_without_rows_has_no_portion() -> None:
    assert portions_of([0], batch=4, tasks=3) == [[0]]
    assert portions_of([], batch=4, tasks=3) == []
