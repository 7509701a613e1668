"""jobs.query.task_maps"""

from jobs.query.task_maps import told_topics

FEW = [f"t{number}" for number in range(64)]
MANY = [f"t{number}" for number in range(2_000)]


def test_tasks_are_told_of_all_topics_where_there_are_few() -> None:
    assert told_topics(["t1"], frozenset(), FEW) == frozenset(FEW)


def test_what_was_told_does_not_grow_without_end() -> None:
    assert told_topics(["t1999"], frozenset(FEW), MANY) == {"t1999"}
