"""jobs.query.task_maps"""

from jobs.query.task_maps import told_topics

FEW = [f"t{number}" for number in range(64)]
MANY = [f"t{number}" for number in range(2_000)]


def test_tasks_are_told_of_all_topics_where_there_are_few() -> None:
    assert told_topics(["t1"], frozenset(), FEW) == frozenset(FEW)


def test_of_many_topics_tasks_are_told_of_those_that_batches_had_lately() -> None:
    first = told_topics(["t1"], frozenset(), MANY)
    assert first == {"t1"}
    assert told_topics(["t2", "t3"], first, MANY) == {"t1", "t2", "t3"}


def test_what_was_told_does_not_grow_without_end() -> None:
    assert told_topics(["t1999"], frozenset(FEW), MANY) == {"t1999"}


def test_a_batch_with_many_topics_has_all_of_them() -> None:
    assert told_topics(MANY, frozenset(FEW), MANY) == frozenset(MANY)
