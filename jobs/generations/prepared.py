"""The shapes that a generation's job has prepared it for, in the coordination record ``g<n>.prepared``.

Writers beside the job use these shapes. In an older shape, a row would lack columns that all others have by now; in a
newer one, it could have columns that this sink leaves out. The record is gone while the job prepares other shapes. So a
writer that finds the same record before and after its writes knows that no column came in between.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from cdc.model.table import Table, TableName
from sinks.contract import CoordinationRecords

Prepared = dict[TableName, str]
"""Table -> schema id."""


@contextmanager
def preparing(records: CoordinationRecords, generation: int, tables: Mapping[TableName, Table]) -> Iterator[None]:
    """Store the shapes of these tables once the block, which prepares them, has succeeded."""
    shapes = {name: table.schema_id for name, table in tables.items()}
    is_new = load_prepared(records, generation) != shapes
    if is_new:
        records.save(_note(generation), None)
    yield
    if is_new:
        document = [[name.schema, name.name, schema_id] for name, schema_id in sorted(shapes.items())]
        records.save(_note(generation), json.dumps(document))


def load_prepared(records: CoordinationRecords, generation: int) -> Prepared | None:
    """The shapes; None if no job has prepared any, or one is about to."""
    text = records.load(_note(generation))
    return (
        None if text is None else {TableName(schema, name): schema_id for schema, name, schema_id in json.loads(text)}
    )


def _note(generation: int) -> str:
    return f"g{generation}.prepared"
