"""Writes rows to a Delta table: appends, merges by tag, and values of new columns."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sinks.delta.lake import Lake
from sinks.delta.names import OWN_COLUMNS, SYNCED_COLUMN, quoted
from sinks.delta.opened_table import OpenedTable

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties


def with_synced_at(schema: "pa.Schema") -> "pa.Schema":
    import pyarrow as pa

    return schema.append(pa.field(SYNCED_COLUMN, pa.timestamp("us", "UTC")))


def append(opened: OpenedTable, data: "pa.Table", properties: "CommitProperties") -> None:
    from deltalake import write_deltalake

    write_deltalake(opened.table, data, mode="append", commit_properties=properties)


def merge(
    opened: OpenedTable,
    data: "pa.Table",
    key: Sequence[str],
    properties: "CommitProperties",
    *,
    overwrite_equal_tags: bool,
    deletes_before: str = "",
    deleted_at: datetime | None = None,
    erased: str = "",
) -> Mapping[str, Any]:
    """Insert rows, or replace those with a lesser tag, in one commit. Returns deltalake's figures.

    ``deletes_before`` marks all other rows with a lesser tag as deleted, and also those that come again as deleted.
    ``deleted_at`` is the time of that, if rows store it. Rows up to the tag ``erased`` that don't exist are
    repetitions, and aren't inserted.
    """
    newer = f"{quoted('_tag', of='s')} {'>=' if overwrite_equal_tags else '>'} {quoted('_tag', of='t')}"
    is_live = f"not {quoted('_deleted', of='t')}"
    if deletes_before:
        newer = f"{newer} or ({quoted('_deleted', of='s')} and {is_live})"
    merger = (
        opened.table.merge(
            data,
            " and ".join(f"{quoted(name, of='t')} = {quoted(name, of='s')}" for name in key),
            source_alias="s",
            target_alias="t",
            # A batch is in memory anyway. Without streaming, files that can't hold one of its keys aren't read.
            streamed_exec=False,
            commit_properties=properties,
        )
        .when_matched_update_all(newer)
        .when_not_matched_insert_all(f"{quoted('_tag', of='s')} > '{erased}'" if erased else None)
    )
    if deletes_before:
        marks = {quoted("_deleted"): "true"}
        if deleted_at is not None:
            marks[quoted(SYNCED_COLUMN)] = time_literal(deleted_at)
        merger = merger.when_not_matched_by_source_update(
            marks, f"{quoted('_tag', of='t')} < '{deletes_before}' and {is_live}"
        )
    return merger.execute()


def time_literal(time: datetime) -> str:
    """A time as SQL text, which takes the type of the column that it is compared with. A typed literal has no zone."""
    return f"'{time.astimezone(UTC).replace(tzinfo=None).isoformat()}Z'"


def fit(data: "pa.Table", columns: "pa.Schema", *, synced_at: datetime | None = None) -> "pa.Table":
    """The rows with all columns of the table. ``synced_at`` is the time of writing, if the table stores it."""
    import pyarrow as pa

    if synced_at is not None:
        times = pa.array([synced_at] * data.num_rows, pa.timestamp("us", "UTC"))
        data = data.append_column(columns.field(SYNCED_COLUMN), times)
    for field in columns:
        if field.name not in data.column_names:
            data = data.append_column(field, pa.nulls(data.num_rows, field.type))
    return data.select(columns.names)


def delta_fields(schema: "pa.Schema", names: Iterable[str]) -> Any:
    """These columns of a schema, in deltalake's form."""
    import pyarrow as pa
    from deltalake import Schema

    return Schema.from_arrow(pa.schema([schema.field(name) for name in names])).fields


def fill(lake: Lake, opened: OpenedTable, values: "pa.Table") -> None:
    """Write these values to all rows of the table, in one commit. Raises Overtaken."""
    exact = quoted("_exact", of="t")
    addition = quoted("_exact", of="s")
    updates = {quoted(name): quoted(name, of="s") for name in values.column_names if name not in OWN_COLUMNS}
    if values.column("_exact")[0].is_valid:
        updates[quoted("_exact")] = (
            f"case when {exact} is null then {addition} else "
            f"concat(substr({exact}, 1, length({exact}) - 1), ',', substr({addition}, 2)) end"
        )
    lake.commit(
        opened.path,
        opened.table,
        lambda properties: (
            opened.table.merge(
                values,
                f"{quoted('_deleted', of='t')} = {quoted('_deleted', of='s')}",
                source_alias="s",
                target_alias="t",
                commit_properties=properties,
            )
            .when_matched_update(updates)
            .execute()
        ),
    )
