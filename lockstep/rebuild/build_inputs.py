"""What a build stands on: the topics that it reads and the shapes that its tables had when it began.

It is kept with the generation and looked at again while that is built. A topic that was made anew, or has lost
records, lacks rows; a column that is called otherwise or has another type leaves the rows applied before as they were.
Neither passes by waiting.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cdc.kafka.control_topics import read_tables
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_names import SCHEMA, control_topic
from cdc.model.errors import LockstepError, PositionMismatch
from cdc.model.table import Column, Table, TableName
from lockstep.config import Config
from sinks.contract import CoordinationRecords, TopicPartition

_NOTE: Final = "basis"


@dataclass(frozen=True, slots=True)
class BuildInputs:
    """Kafka's id of each table's topic, and the tables as the log knows them. What isn't there yet, or any more, is left out."""

    topic_ids: Mapping[TableName, str]
    shapes: Mapping[TableName, Table]

    def to_json(self) -> str:
        return orjson.dumps(
            {
                "topics": [[name.schema, name.name, topic_id] for name, topic_id in self.topic_ids.items()],
                "shapes": [shape.to_json() for shape in self.shapes.values()],
            }
        ).decode()

    @classmethod
    def from_json(cls, text: str) -> "BuildInputs":
        fields: dict[str, Any] = orjson.loads(text)
        shapes = map(Table.from_json, fields["shapes"])
        return cls(
            {TableName(schema, name): topic_id for schema, name, topic_id in fields["topics"]},
            {shape.name: shape for shape in shapes},
        )


@dataclass(frozen=True, slots=True)
class Lost:
    """A partition that begins at ``begin``, where ``wanted`` is what is still to be read."""

    table: TableName
    partition: int
    begin: int
    wanted: int


def read_basis(config: Config, tables: Sequence[TableName]) -> BuildInputs:
    """How it is now. Raises Unavailable."""
    topics = {config.topics()[name]: name for name in tables}
    client = config.kafka.client()
    cluster = TopicAdmin(client)
    existing = cluster.partition_counts()
    found = [topic for topic in topics if topic in existing]
    ids = cluster.topic_ids(found) if found else {}
    shapes = (
        read_tables(client, config.pipeline.name) if control_topic(config.pipeline.name, SCHEMA) in existing else {}
    )
    return BuildInputs(
        {topics[topic]: topic_id for topic, topic_id in ids.items()},
        {name: shapes[name] for name in tables if name in shapes},
    )


def check_complete(basis: BuildInputs, tables: Sequence[TableName]) -> None:
    """Raise LockstepError while capture hasn't published something of a table that is to be read."""
    for name in tables:
        if name not in basis.topic_ids or name not in basis.shapes:
            raise LockstepError(
                f"table {name} isn't in the log",
                hint="start capture: it creates the topics and publishes the tables' shapes before the first row",
            )


def load_basis(records: CoordinationRecords, generation: int) -> BuildInputs | None:
    """What a generation was begun on; None where nothing was read for it yet."""
    text = records.load(f"g{generation}.{_NOTE}")
    return None if text is None else BuildInputs.from_json(text)


def save_basis(records: CoordinationRecords, generation: int, basis: BuildInputs) -> None:
    records.save(f"g{generation}.{_NOTE}", basis.to_json())


def made_anew(begun: BuildInputs, now: BuildInputs) -> list[TableName]:
    """The tables whose topics aren't those of the beginning. Pure."""
    return [name for name, topic_id in begun.topic_ids.items() if now.topic_ids.get(name) != topic_id]


def misfit(begun: BuildInputs, now: BuildInputs) -> str | None:
    """Why rows that were applied since the beginning can't be right any more, or None. Pure."""
    for name, before in begun.shapes.items():
        after = now.shapes.get(name)
        why = None if after is None else _misfit(before, after)
        if why is not None:
            return f"table {name}: {why}"
    return None


def _misfit(before: Table, after: Table) -> str | None:
    if before.key != after.key:
        return f"its key was ({', '.join(before.key)}) and is ({', '.join(after.key)})"
    # Numbers tell which column is which only within one table: one that was made anew counts from 1 again.
    numbered = {column.number: column for column in after.columns if column.number and before.oid == after.oid}
    named = {column.name: column for column in after.columns}
    for column in before.columns:
        same = numbered.get(column.number)
        other = named.get(column.name)
        if same is not None and same.name != column.name:
            return f"column {column.name!r} is called {same.name!r} now"
        if same is None and other is not None and column.number and numbered:
            return f"column {column.name!r} was dropped, and another one has its name"
        if other is not None and _form(column) != _form(other):
            return f"column {column.name!r} was {_typed(column)} and is {_typed(other)}"
    return None


def _form(column: Column) -> tuple[str, bool]:
    return column.value_type, column.is_array


def _typed(column: Column) -> str:
    return column.value_type + ("[]" if column.is_array else "")


def lost_beginnings(
    config: Config, tables: Sequence[TableName], next_offsets: Mapping[TopicPartition, int]
) -> list[Lost]:
    """The partitions that have lost what is to be read next. Raises Unavailable."""
    topics = {config.topics()[name]: name for name in tables}
    cluster = TopicAdmin(config.kafka.client())
    counts = cluster.partition_counts()
    begins = cluster.begin_offsets([(topic, n) for topic in topics for n in range(counts.get(topic, 0))])
    found = (Lost(topics[at[0]], at[1], begin, next_offsets.get(at, 0)) for at, begin in sorted(begins.items()))
    return [lost for lost in found if lost.begin > lost.wanted]


def topics_made_anew(config: Config, tables: Sequence[TableName], *, commands: Sequence[str]) -> LockstepError:
    """The error for topics that aren't the same any more; ``commands`` are those for when the copies are there."""
    topics = ", ".join(config.topics()[name] for name in tables)
    return PositionMismatch(
        f"topic {topics} was deleted or created anew since it was begun to be read: it lacks the rows that weren't written since then",
        hint=way_out(tables, commands),
    )


def topics_trimmed(config: Config, lost: Sequence[Lost], *, commands: Sequence[str]) -> LockstepError:
    """The error for topics that have lost records which are still to be read."""
    first = lost[0]
    more = f" (and so with {len(lost) - 1} more partitions)" if len(lost) > 1 else ""
    return PositionMismatch(
        f"topic {config.topics()[first.table]}, partition {first.partition}, begins at {first.begin}: the records from"
        f" {first.wanted} on, which are still to be read, were deleted{more}",
        hint=way_out(dict.fromkeys(one.table for one in lost), commands),
    )


def way_out(tables: Iterable[TableName], commands: Sequence[str]) -> str:
    """How rows that a log lacks come back into it, and what then."""
    return (
        f"let capture copy what is missing: lockstep snapshot table {' '.join(map(str, tables))}\n"
        f"and when its log says that this is done: {', then '.join(commands)}"
    )
