"""What the tasks of a batch are told."""

import pickle
from dataclasses import replace

from cdc.model.table import TableName
from jobs.executor.shape_history import TableHistory
from sinks.memory import MemorySink, MemoryStore
from tests.builders import column, table
from tests.task_records import TOPIC, task
from views.plan import RowPlan

COLUMNS = [column(f"c{number}") for number in range(20)]
MANY = [table(*COLUMNS, name=TableName("public", f"t{number}"), key=("c0",)) for number in range(500)]


def test_a_task_of_many_tables_is_told_of_those_that_its_batch_has() -> None:
    few = task(MemorySink(MemoryStore(), 1))
    names = [one.name for one in MANY]
    topics = {f"shop.{name}": name for name in names}
    many = replace(
        few,
        tables={**few.tables, **topics},
        shapes={**few.shapes, **{one.name: one for one in MANY}},
        histories={name: TableHistory(name, ("c0",), {}) for name in names},
        computed=dict.fromkeys(names, RowPlan((), (), None, ())),
        versions=names,
        rejected_before={(TOPIC, b"1"): "tag"} | {(topic, b"1"): "tag" for topic in topics},
    )
    sizes = [len(pickle.dumps(replace(one, open=print))) for one in (few, many.only([TOPIC]), many)]
    assert sizes[1] < 1.2 * sizes[0] < sizes[2] / 20
    assert many.only([TOPIC]) == replace(few, versions=[], rejected_before={(TOPIC, b"1"): "tag"})
    both = many.only([TOPIC, "shop.public.t7"])
    assert both.shapes.keys() == {*few.shapes, MANY[7].name}
    assert both.histories.keys() == both.computed.keys() == set(both.versions) == {MANY[7].name}
