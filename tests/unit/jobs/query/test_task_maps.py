"""jobs.query.task_maps"""

from jobs.query.task_maps import topics_to_send

FEW = [f"t{number}" for number in range(64)]
MANY = [f"t{number}" for number in range(2_000)]


def test_tasks_are_told_of_all_topics_where_there_are_few() -> None:
    assert topics_to_send(["t1"], frozenset(), FEW) == frozenset(FEW)


def test_what_was_told_does_not_grow_without_end() -> None:
    assert topics_to_send(["t1999"], frozenset(FEW), MANY) == {"t1999"}
