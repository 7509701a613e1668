"""An opened Delta table of a generation: its properties, how its rows are stored, and its live rows."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from cdc.model.table import TableName
from sinks.columns.shape import Shape
from sinks.delta.lake import Lake, talking

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

    from sinks.columns.arrow_columns import Rows

SHAPE: Final = "lockstep.shape"
"""Property of a table: the shape for which it was prepared last."""

FENCE: Final = "lockstep.fence"
"""Property of a table: the fence of its writer."""

BULK: Final = "lockstep.bulk"
"""Property of a table: ``yes`` while batches are appended."""

SYNCED_AT: Final = "lockstep.synced_at"
"""Property of a table: ``yes`` if each row stores the time of its last write."""

_SCAN_ROWS: Final = 8192


class OpenedTable:
    """A Delta table of one generation, as of the last refresh."""

    def __init__(self, lake: Lake, name: TableName, path: str, table: "DeltaTable") -> None:
        self._lake = lake
        self.name = name
        self.path = path
        self.table = table
        self._shape_text = ""
        self._rows: Rows | None = None

    @property
    def fence(self) -> int:
        return int(self.table.metadata().configuration[FENCE])

    @property
    def is_bulk(self) -> bool:
        return self.table.metadata().configuration.get(BULK) == "yes"

    @property
    def has_synced_at(self) -> bool:
        return self.table.metadata().configuration.get(SYNCED_AT) == "yes"

    def has_rows(self) -> bool:
        return bool(self.table.file_uris())

    def refresh(self) -> None:
        self.table = self._lake.refresh(self.path, self.table)

    def rows(self) -> "Rows":
        """How its rows are stored, as of the last refresh."""
        from sinks.delta.values import rows_of

        metadata = self.table.metadata()
        text = metadata.configuration[SHAPE]
        if self._rows is None or text != self._shape_text:
            self._rows = rows_of(Shape.from_json(text), metadata.partition_columns)
            self._shape_text = text
        return self._rows

    def columns(self) -> "pa.Schema":
        """Its columns. While the table is being prepared, ``rows`` may not know some of them yet."""
        import pyarrow as pa

        return pa.schema(self.table.schema())

    def read(self, columns: Sequence[str], condition: Any) -> Iterator["pa.RecordBatch"]:
        """The live rows that fulfil a condition. The caller may be slow."""
        import pyarrow.dataset as ds

        live = ~ds.field("_deleted")
        with talking():
            scanner = self.table.to_pyarrow_dataset().scanner(
                columns={name: ds.field(name) for name in columns},
                filter=live if condition is None else live & condition,
                batch_size=_SCAN_ROWS,
                batch_readahead=2,
                fragment_readahead=1,
            )
            yield from scanner.to_batches()


def is_among(name: str, values: "pa.Array") -> Any:
    """The condition that a column has one of these values. For integers, files that can't contain one aren't read."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        # deltalake gives pyarrow the files' ranges as text views, which pyarrow can't compare with text.
        large = pa.large_string() if pa.types.is_string(values.type) else pa.large_binary()
        return ds.field(name).cast(large).isin(values.unique().cast(large))
    return ds.field(name).isin(values.unique())
