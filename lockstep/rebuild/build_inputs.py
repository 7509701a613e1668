"""What a build is made from: the topics that it reads, and the shapes that its tables had when it began.

They are stored with the generation and checked while it is built. A topic that was recreated or trimmed lacks rows. A
column that was renamed or retyped leaves the rows applied before as they were. Waiting mends neither.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cdc.kafka.control_topics import read_tables
from cdc.kafka.topic_admin import TopicAdmin, partitions_of
from cdc.kafka.topic_names import SCHEMA, control_topic
from cdc.model.errors import LockstepError, PositionMismatch
from cdc.model.table import Column, Table, TableName
from lockstep.config import Config
from sinks.contract import CoordinationRecords, TopicPartition

_FORMAT: Final = 1
"""Of the coordination record. A build of another format is begun again."""


@dataclass(frozen=True, slots=True)
class BuildInputs:
    """Kafka's id of each table's topic, and the tables' shapes as the log knows them. A table is absent if its topic or
    shape doesn't exist."""

    topic_ids: Mapping[TableName, str]
    shapes: Mapping[TableName, Table]

    def to_json(self) -> str:
        return orjson.dumps(
            {
                "format": _FORMAT,
                "topics": [[name.schema, name.name, topic_id] for name, topic_id in self.topic_ids.items()],
                "shapes": [shape.to_json() for shape in self.shapes.values()],
            }
        ).decode()

    @classmethod
    def from_json(cls, text: str) -> "BuildInputs":
        """Raises ValueError for a record of another format."""
        fields: dict[str, Any] = orjson.loads(text)
        if fields.get("format") != _FORMAT:
            raise ValueError(f"format {fields.get('format')}, not {_FORMAT}")
        shapes = map(Table.from_json, fields["shapes"])
        return cls(
            {TableName(schema, name): topic_id for schema, name, topic_id in fields["topics"]},
            {shape.name: shape for shape in shapes},
        )


@dataclass(frozen=True, slots=True)
class TrimmedPartition:
    """A partition that begins at offset ``begin``, after ``wanted``, which is still to be read."""

    table: TableName
    partition: int
    begin: int
    wanted: int


def read_inputs(config: Config, tables: Sequence[TableName]) -> BuildInputs:
    """The inputs as they are now. Raises Unavailable."""
    topics = dict(zip(config.topics_of(tables), tables, strict=True))
    client = config.kafka.client()
    cluster = TopicAdmin(client)
    existing = cluster.partition_counts([*topics, control_topic(config.pipeline.name, SCHEMA)], must_see=True)
    there = [topic for topic in topics if topic in existing]
    ids = cluster.topic_ids(there) if there else {}
    shapes = (
        read_tables(client, config.pipeline.name) if control_topic(config.pipeline.name, SCHEMA) in existing else {}
    )
    return BuildInputs(
        {topics[topic]: topic_id for topic, topic_id in ids.items()},
        {name: shapes[name] for name in tables if name in shapes},
    )


def check_complete(inputs: BuildInputs, tables: Sequence[TableName]) -> None:
    """Raise LockstepError while capture hasn't published the topic or shape of a table. Pure."""
    for name in tables:
        if name not in inputs.topic_ids or name not in inputs.shapes:
            raise LockstepError(
                f"table {name} isn't in the log",
                hint="start `lockstep capture`: it creates the topics and publishes the tables' shapes before any row",
            )


def load_inputs(records: CoordinationRecords, generation: int) -> BuildInputs | None:
    """What a generation was begun with; None if nothing was read for it yet. Raises LockstepError for a record of
    another version of Lockstep, and Unavailable."""
    text = records.load(_record_name(generation))
    if text is None:
        return None
    try:
        return BuildInputs.from_json(text)
    except ValueError as error:
        raise LockstepError(
            f"generation {generation} was begun by another version of Lockstep: its build inputs have {error}",
            hint=f"drop it with `lockstep generations SINK --drop {generation}`, then run the rebuild again",
        ) from None


def save_inputs(records: CoordinationRecords, generation: int, inputs: BuildInputs) -> None:
    """Store them with the generation. Raises Unavailable."""
    records.save(_record_name(generation), inputs.to_json())


def _record_name(generation: int) -> str:
    return f"g{generation}.build_inputs"


def recreated_topics(begun: BuildInputs, now: BuildInputs) -> list[TableName]:
    """The tables whose topics aren't those of the beginning. Pure."""
    return [name for name, topic_id in begun.topic_ids.items() if now.topic_ids.get(name) != topic_id]


def incompatible_change(begun: BuildInputs, now: BuildInputs) -> str | None:
    """Why rows that were applied since the beginning can't be right any more, or None. Pure."""
    for name, before in begun.shapes.items():
        after = now.shapes.get(name)
        why = None if after is None else _incompatible_change(before, after)
        if why is not None:
            return f"table {name}: {why}"
    return None


def _incompatible_change(before: Table, after: Table) -> str | None:
    if before.key != after.key:
        return f"its key was ({', '.join(before.key)}) and is ({', '.join(after.key)})"
    # Numbers identify columns within one relation only: a table that was recreated counts from 1 again.
    numbered = {
        column.number: column for column in after.columns if column.number and before.relation == after.relation
    }
    named = {column.name: column for column in after.columns}
    for column in before.columns:
        same = numbered.get(column.number)
        namesake = named.get(column.name)
        if same is not None and same.name != column.name:
            return f"column {column.name!r} was renamed to {same.name!r}"
        if same is None and namesake is not None and column.number and numbered:
            return f"column {column.name!r} was dropped, and another one has its name"
        if namesake is not None and _type(column) != _type(namesake):
            return f"column {column.name!r} was {_type(column)} and is {_type(namesake)}"
    return None


def _type(column: Column) -> str:
    return column.value_type + ("[]" if column.is_array else "")


def trimmed_partitions(
    config: Config, tables: Sequence[TableName], next_offsets: Mapping[TopicPartition, int]
) -> list[TrimmedPartition]:
    """The partitions that have lost the records to be read next. Raises Unavailable, also while the brokers don't list
    one of the topics."""
    topics = dict(zip(config.topics_of(tables), tables, strict=True))
    cluster = TopicAdmin(config.kafka.client())
    begins = cluster.begin_offsets(partitions_of(topics, cluster.partition_counts(topics)))
    return [
        TrimmedPartition(topics[topic], partition, begin, wanted)
        for (topic, partition), begin in sorted(begins.items())
        if begin > (wanted := next_offsets.get((topic, partition), 0))
    ]


def recreated_topics_error(config: Config, tables: Sequence[TableName], *, commands: Sequence[str]) -> LockstepError:
    """The error for topics that were replaced. ``commands`` are those to run once the copies are there."""
    topics = ", ".join(config.topics_of(tables))
    return PositionMismatch(
        f"topic {topics} was deleted or recreated since this build began to read it: it lacks the rows that weren't"
        " written since then",
        hint=recopy_hint(tables, commands),
    )


def trimmed_topics_error(
    config: Config, trimmed: Sequence[TrimmedPartition], *, to_copy: Iterable[TableName], commands: Sequence[str]
) -> LockstepError:
    """The error for topics that have lost records which are still to be read. Its way out copies the tables
    ``to_copy``, then runs ``commands``."""
    first = trimmed[0]
    more = f" (and so with {len(trimmed) - 1} more partitions)" if len(trimmed) > 1 else ""
    return PositionMismatch(
        f"topic {config.topics()[first.table]}, partition {first.partition}, begins at {first.begin}: the records from"
        f" {first.wanted} on, which are still to be read, were deleted{more}",
        hint=recopy_hint(to_copy, commands),
    )


def recopy_hint(tables: Iterable[TableName], commands: Sequence[str]) -> str:
    """How to bring rows back that a log lacks, and what to run then. Pure."""
    return (
        f"let capture copy what is missing: lockstep snapshot table {' '.join(map(str, tables))}\n"
        f"and when its log says that this is done: {', then '.join(commands)}"
    )
