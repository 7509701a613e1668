"""jobs.executor.view_coordination"""

import pytest

from jobs.executor.view_coordination import BUILDING, RUN, has_had_state, note_name
from sinks.memory import open_memory
from tests.generations import prepared_store


@pytest.mark.parametrize(("tasks", "shard"), [(1, None), (4, 0), (4, 3)])
def test_a_view_has_had_a_state_once_the_run_of_one_is_noted(tasks: int, shard: int | None) -> None:
    records = open_memory(prepared_store(1)).records
    records.save(note_name(RUN, 2, shard), "of another generation")
    assert not has_had_state(records, 1, tasks=tasks)
    records.save(note_name(RUN, 1, shard), BUILDING)
    assert not has_had_state(records, 1, tasks=tasks), "what writes already isn't whole"
    records.save(note_name(RUN, 1, shard), "run")
    assert has_had_state(records, 1, tasks=tasks)
