"""Rows of Delta tables, written with deltalake. ``docs/sinks/delta.md`` says what is stored where."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from cdc.model.append_only import is_append_only
from cdc.model.event import JsonValue, RowEvent
from cdc.model.table import Table, TableName
from sinks.capabilities.erasing import check_erased
from sinks.contract import (
    NOTHING_ADDED,
    AddedValues,
    Batch,
    OpenedSink,
    Outcome,
    Rejection,
    Sink,
    StoredRow,
    TablesRefused,
)
from sinks.delta.bookkeeping import CatalogueState, GenerationState
from sinks.delta.coordination import DeltaCoordination
from sinks.delta.emptied import emptied_tag, note_truncates, with_deletions
from sinks.delta.erasing import DeltaErasing, erased_tag
from sinks.delta.generations import DeltaGenerations
from sinks.delta.lake import TARGET_FILE_BYTES, talking
from sinks.delta.merge import append, fit, merge
from sinks.delta.names import unfit_tables
from sinks.delta.opened_table import OpenedTable, is_among
from sinks.delta.settings import DeltaSettings
from sinks.delta.tables import DeltaTables

if TYPE_CHECKING:
    import pyarrow as pa

    from sinks.columns.arrow_columns import Rows

_OFFSET: Final = "lockstep.offset:"

OPTIMIZE_EVERY_COMMITS = 100
"""After this many commits to a table, its small files are compacted."""


def open_delta(name: str, settings: DeltaSettings, generation: int) -> OpenedSink:
    """The destination opened for one generation, not yet connected. Raises ConfigurationError for an unfit prefix."""
    tables = DeltaTables(name, settings, generation)
    generations = DeltaGenerations(tables, settings)
    return OpenedSink(
        DeltaSink(tables, settings),
        generations,
        DeltaCoordination(tables),
        bulk=generations,
        erasing=DeltaErasing(tables, retention_hours=settings.retention_hours),
        identities=generations,
    )


class DeltaSink(Sink):
    def __init__(self, tables: DeltaTables, settings: DeltaSettings) -> None:
        self._tables = tables
        self._bookkeeping = tables.bookkeeping
        self._generation = tables.generation
        self._settings = settings

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        build = self._bookkeeping.change(self._entered).builds[self._generation]
        unfit = unfit_tables(tables, known=build.tables, synced_at=self._settings.synced_at)
        if unfit and len(unfit) == len(tables):
            raise TablesRefused(unfit)
        # All are checked before any is changed.
        shapes = {table.name: self._tables.next_shape(table, build) for table in tables if table.name not in unfit}
        for name, shape in shapes.items():
            if name in build.tables:
                self._tables.widen(self._tables.open(name), shape, added.get(name, {}))
        self._tables.add({name: shape for name, shape in shapes.items() if name not in build.tables})

        def choose(state: CatalogueState, live: int | None) -> int | None:
            build = self._tables.build(state)
            may_go = go_live and not build.is_bulk
            return self._generation if live == self._generation or (live is None and may_go) else None

        self._bookkeeping.expose(choose)
        if unfit:
            raise TablesRefused(unfit)
        return NOTHING_ADDED

    def claim(self) -> int:
        def next_fence(state: CatalogueState, _live: int | None) -> CatalogueState:
            build = self._tables.build(state)
            return state.with_build(self._generation, replace(build, fence=build.fence + 1))

        build = self._tables.build(self._bookkeeping.change(next_fence))
        for name in build.tables:
            opened = self._tables.open(name)
            fence = self._tables.repeat(opened, lambda opened: self._tables.raise_fence(opened, build.fence))
            if fence != build.fence:
                raise self._tables.fenced_off()
        self._tables.fence = build.fence
        return self._tables.fence

    def fence(self) -> int:
        return self._tables.build(self._bookkeeping.read()).fence

    def apply(self, batch: Batch) -> Outcome:
        by_table: dict[TableName, list[RowEvent]] = {}
        for event in batch.events:
            by_table.setdefault(event.table, []).append(event)
        applied = 0
        rejections: list[Rejection] = []
        for name, events in sorted(by_table.items()):
            written, refused = self._apply_to(self._tables.open(name), events, batch)
            applied += written
            rejections += refused
        return Outcome(applied, sum(map(len, by_table.values())) - applied - len(rejections), rejections)

    def scan(self, table: Table) -> Iterator[StoredRow]:
        opened = self._tables.open(table.name)
        opened.refresh()
        rows = opened.rows()
        for batch in opened.read(rows.columns_for(table), None):
            yield from rows.decode(batch, table)

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        import pyarrow as pa

        opened = self._tables.open(table.name)
        if not keys:
            return
        opened.refresh()
        rows = opened.rows()
        arrays = rows.key_arrays(keys)
        condition: Any = None
        for name, values in arrays.items():
            among = is_among(name, values)
            condition = among if condition is None else condition & among
        wanted = set(zip(*(values.to_pylist() for values in arrays.values()), strict=True))
        columns = list(dict.fromkeys([*rows.columns_for(table), *table.key]))
        for batch in opened.read(columns, condition):
            stored_keys = zip(*(batch.column(name).to_pylist() for name in table.key), strict=True)
            indexes = [index for index, key in enumerate(stored_keys) if key in wanted]
            yield from rows.decode(batch.take(pa.array(indexes, pa.int64())), table)

    def close(self) -> None:
        self._tables.close()

    def _entered(self, state: CatalogueState, _live: int | None) -> CatalogueState:
        return state if self._generation in state.builds else state.with_build(self._generation, GenerationState())

    def _apply_to(self, opened: OpenedTable, events: Sequence[RowEvent], batch: Batch) -> tuple[int, list[Rejection]]:
        """The number of rows written, and rejections. One commit."""
        rows: Rows | None = None
        data: Any = None
        rejections: list[Rejection] = []

        def write(opened: OpenedTable) -> int:
            nonlocal rows, data, rejections
            if opened.fence != batch.fence:
                raise self._tables.fenced_off()
            name = opened.rows().shape.table.name
            check_erased(batch.erased, {name: erased_tag(opened)}, [name])
            if rows is not opened.rows():
                rows = opened.rows()
                data, rejections = rows.encode(events)
            if not data.num_rows:
                return 0
            now = datetime.now(UTC) if opened.has_synced_at else None
            return self._write(opened, fit(data, opened.columns(), synced_at=now), batch, now=now)

        return self._tables.repeat(opened, write), rejections

    def _write(self, opened: OpenedTable, data: "pa.Table", batch: Batch, *, now: datetime | None) -> int:
        """Append or merge rows. ``now`` is the time of writing, if the table stores it. Raises Overtaken."""
        offsets = {
            f"{_OFFSET}{topic}:{partition}": next_offset
            for (topic, partition), next_offset in batch.next_offsets.items()
        }
        empties, emptied = False, ""
        if is_append_only(opened.rows().shape.table):
            empties = note_truncates(self._tables.lake, opened, data)
            emptied = emptied_tag(opened)
            data = with_deletions(data, emptied)
        if opened.is_bulk:
            self._tables.lake.commit(
                opened.path, opened.table, lambda properties: append(opened, data, properties), offsets
            )
            return data.num_rows  # type: ignore[no-any-return]  # pyarrow has no types
        key = opened.rows().shape.table.key
        before = opened.table.version()
        metrics = self._tables.lake.commit(
            opened.path,
            opened.table,
            lambda properties: merge(
                opened,
                data,
                key,
                properties,
                overwrite_equal_tags=batch.overwrite_equal_tags,
                deletes_before=emptied if empties else "",
                deleted_at=now,
                erased="" if batch.never_applied else erased_tag(opened),
            ),
            offsets,
        )
        if before // OPTIMIZE_EVERY_COMMITS != opened.table.version() // OPTIMIZE_EVERY_COMMITS:
            self._tidy(opened)
        # The updated rows then include others, which the batch doesn't have.
        updated = 0 if empties else metrics["num_target_rows_updated"]
        return int(metrics["num_target_rows_inserted"] + updated)

    def _tidy(self, opened: OpenedTable) -> None:
        """Compact small files, and delete those that nobody reads any more."""
        from deltalake.exceptions import CommitFailedError

        before = opened.table.version()
        # Another task may have just replaced one of these files. The next time is early enough.
        with talking(), suppress(CommitFailedError):
            opened.table.optimize.compact(target_size=TARGET_FILE_BYTES)
        opened.refresh()
        # Before the files that were just compacted are deleted.
        self._tables.lake.sync(opened.path, range(before + 1, opened.table.version() + 1))
        before = opened.table.version()
        with talking():
            opened.table.vacuum(
                retention_hours=self._settings.retention_hours,
                dry_run=False,
                enforce_retention_duration=False,
                full=True,  # also files of killed and overtaken writers
            )
        opened.refresh()
        self._tables.lake.sync(opened.path, range(before + 1, opened.table.version() + 1))
