"""Which ranges of the log a batch consists of, and which task reads which."""

from jobs.executor.log_reader import Range, ranges, spread


def test_a_batch_of_24_000_partitions_has_few_tasks_and_all_of_the_partitions() -> None:
    ends = {(f"shop.public.t{number // 12}", number % 12): number % 7 for number in range(24_000)}
    wanted = ranges({}, ends)
    tasks = spread(wanted, tasks_max=32)
    assert len(tasks) == 32
    read = [part for task in tasks for part in task]
    assert sorted(part.at for part in read) == sorted(part.at for part in wanted)
    loads = [sum(part.end for part in task) for task in tasks]
    assert max(loads) - min(loads) <= 6


def test_a_large_range_has_a_task_of_its_own() -> None:
    large, small = Range("t", 0, 5, 1000), [Range("t", number, None, 10) for number in range(1, 9)]
    assert spread([*small, large], tasks_max=2) == [[large], small]
