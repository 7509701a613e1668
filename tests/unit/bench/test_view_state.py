"""What a view's state costs, and the figures that are made of it."""

from pathlib import Path

from bench.view_state import Cost, cost_of, figures_of, sharded_figures, sharded_us


def test_a_state_is_built_and_changed_and_its_cost_said(tmp_path: Path) -> None:
    cost = cost_of(1_000, tmp_path)
    assert 800 < cost.entries < 1_300
    assert sorted(cost.change_us) == [1, 50]
    assert min(cost.bytes_on_disk, cost.bytes_of_rows, cost.build_us, *cost.change_us.values()) > 0


def test_figures_set_the_largest_state_beside_the_smallest() -> None:
    small = Cost(10, {1: 100.0, 50: 10.0}, 1, 1, 5.0)
    large = Cost(1_000, {1: 150.0, 50: 30.0}, 3_000_000, 1_000_000, 6.0)
    one, fifty, disk, built = figures_of([small, Cost(99, {1: 0.0, 50: 0.0}, 1, 1, 1.0), large])
    assert (one.name, one.ratio, one.passed) == ("a change in a state of 1,000 rows, 1 a step", 1.5, True)
    assert (fifty.ratio, fifty.passed) == (3.0, False)
    assert (disk.value, disk.ratio, disk.passed) == (3.0, 3.0, False)
    assert (built.value, built.passed) == (6.0, None)


def test_each_task_of_a_view_in_shards_has_its_own_cost(tmp_path: Path) -> None:
    assert [len(sharded_us(500, count, tmp_path)) for count in (1, 2)] == [1, 2]
    assert min(sharded_us(500, 2, tmp_path)) > 0
    busiest, together = sharded_figures({1: [100.0], 2: [70.0, 50.0]})
    assert (busiest.name, busiest.ratio) == ("a change where 2 tasks keep the view, the busiest one", 0.7)
    assert (together.name, together.ratio) == ("a change where 2 tasks keep the view, all together", 1.2)
