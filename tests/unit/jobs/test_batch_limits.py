"""jobs.batch_limits"""

from dataclasses import replace

from jobs.batch_limits import BatchLimits
from jobs.settings import SparkSettings

A, B, C = ("t", 0), ("t", 1), ("t", 2)
LIMITS = BatchLimits.of(SparkSettings(), bulk=False)


def test_beyond_it_each_partition_gives_the_same_share_of_what_it_has() -> None:
    assert replace(LIMITS, records_max=300).ends({A: 100}, {A: 1100, B: 500, C: 0}) == {A: 300, B: 100, C: 0}


def test_a_partition_with_little_is_not_passed_over_again_and_again() -> None:
    assert replace(LIMITS, records_max=100).ends({A: 0, B: 7}, {A: 1_000_000, B: 8}) == {A: 99, B: 8}


def test_a_few_records_take_one_task_and_a_backlog_several() -> None:
    assert LIMITS.tasks(SparkSettings().small_batch_rows, cores=2) == 1
    assert LIMITS.tasks(SparkSettings().small_batch_rows + 1, cores=2) > 1
    assert LIMITS.tasks(10**9, cores=64) > LIMITS.tasks(10**9, cores=2)


def test_a_bulk_load_has_larger_batches() -> None:
    bulk = BatchLimits.of(SparkSettings(), bulk=True)
    assert bulk.records_max > LIMITS.records_max
    assert bulk.window_bytes > LIMITS.window_bytes
