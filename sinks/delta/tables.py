"""The Delta tables of one generation: creates, opens, widens and fences them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from cdc.model.errors import ConfigurationError, Fenced, LockstepError, NeedsRebuild
from cdc.model.event import JsonValue
from cdc.model.table import Table, TableName
from sinks.columns.shape import Shape, unprepared
from sinks.delta.bookkeeping import CatalogueState, DeltaBookkeeping, GenerationState
from sinks.delta.lake import TRIES, Lake, Overtaken, too_many
from sinks.delta.merge import delta_fields, fill, with_synced_at
from sinks.delta.names import SYNCED_COLUMN, check_partitions, delta_name
from sinks.delta.opened_table import FENCE, SHAPE, SYNCED_AT, OpenedTable
from sinks.delta.settings import DeltaSettings
from sinks.generation_errors import missing_generation, replaced_writer

_Result = TypeVar("_Result")

_PREFIX: Final = re.compile(r"[A-Za-z0-9_]+")
_DIRECTORY: Final = re.compile(r"(?:[A-Za-z0-9_]|\.[0-9a-f]{2})+(-\d+)?")


class DeltaTables:
    """Opens the tables of one generation when they are first used, and keeps them open.

    ``fence`` is what this object's sink has claimed, 0 before that. Raises ConfigurationError for a prefix that can't
    begin a directory's name. Nothing connects before the first call.
    """

    def __init__(self, name: str, settings: DeltaSettings, generation: int) -> None:
        self._prefix = settings.prefix or name
        if not _PREFIX.fullmatch(self._prefix):
            raise ConfigurationError(
                f"sink {name!r}: {self._prefix!r} can't begin a directory's name",
                hint="set prefix to letters, digits and '_'",
            )
        self.generation = generation
        self.lake = Lake(settings.root, settings.options)
        self.bookkeeping = DeltaBookkeeping(self.lake, f"{self._prefix}_live", name)
        self.fence = 0
        self._directory = f"{self._prefix}_g{generation}/"
        self._name = name
        self._settings = settings
        self._opened: dict[TableName, OpenedTable] = {}

    def remove(self, path: str) -> None:
        """Delete a table of this generation. Raises as ``own`` does."""
        self.lake.remove(self.own(path))

    def own(self, path: str) -> str:
        """A path in the bookkeeping table, if it is below this generation's directory.

        Raises LockstepError for any other: whoever may write to that table must not choose what we write and delete.
        """
        directory, name = path[: len(self._directory)], path[len(self._directory) :]
        if directory != self._directory or not _DIRECTORY.fullmatch(name):
            raise LockstepError(
                f"the bookkeeping table of sink {self._name!r} names {path!r} as a table of generation"
                f" {self.generation}, which can't be: its tables are in {self._directory}",
                hint="find out who else writes below the root of the sink; nothing was deleted. Then give the sink"
                " another prefix, and let lockstep apply build it from the log",
            )
        return path

    def forget_all(self) -> None:
        """Forget all tables: they were removed."""
        self._opened.clear()

    def close(self) -> None:
        self._opened.clear()
        self.bookkeeping.close()

    def open(self, name: TableName) -> OpenedTable:
        """A table of this generation. Raises LockstepError when it wasn't prepared."""
        opened = self._opened.get(name)
        if opened is None:
            path = self.build(self.bookkeeping.read()).tables.get(name)
            table = None if path is None else self.lake.open(self.own(path))
            if path is None or table is None:
                raise unprepared(name)
            opened = self._opened[name] = OpenedTable(self.lake, name, path, table)
        return opened

    def identity(self, path: str) -> str | None:
        """Delta's own id of a table, and its present version; None if it doesn't exist."""
        table = self.lake.seen(self.own(path))
        return None if table is None else f"{table.metadata().id} {table.version()}"

    def is_restored(self, path: str, since: int) -> bool:
        """Whether there was a RESTORE of a table after this version."""
        return self.lake.is_restored(self.own(path), since)

    def build(self, state: CatalogueState) -> GenerationState:
        """This generation in the catalogue state. Raises LockstepError when it isn't there."""
        try:
            return state.builds[self.generation]
        except KeyError:
            raise missing_generation(self.generation, self._name) from None

    def repeat(self, opened: OpenedTable, step: Callable[[OpenedTable], _Result]) -> _Result:
        """Do a step on a refreshed table, until no other commit interferes. Raises Unavailable after many attempts."""
        for _ in range(TRIES):
            opened.refresh()
            try:
                return step(opened)
            except Overtaken:
                continue
        raise too_many(opened.path)

    def next_shape(self, table: Table, build: GenerationState) -> Shape:
        """The next shape of a table. Raises LockstepError when the existing one doesn't fit."""
        from sinks.delta.values import form_of

        if table.name not in build.tables:
            check_partitions(table, self._settings.partitions_of(table.name))
            return Shape.of(table)
        opened = self.open(table.name)
        opened.refresh()
        if opened.has_synced_at != self._settings.synced_at:
            raise NeedsRebuild(
                f"table {table.name} {'has' if opened.has_synced_at else 'lacks'} the column {SYNCED_COLUMN} in"
                f" generation {self.generation}, and synced_at of this sink says something else",
                hint="rebuild it from the log: `lockstep rebuild SINK --switch`",
            )
        known = opened.rows()
        shape = known.shape.evolve(table)
        for column in table.columns:
            kind = form_of(column, is_key=column.name in table.key).type
            if column.name in known.schema.names and known.schema.field(column.name).type != kind:
                raise NeedsRebuild(
                    f"table {table.name} no longer fits what this generation was built for: column {column.name!r} is "
                    f"{column.type_name} now, which its {known.schema.field(column.name).type} can't hold",
                    hint="rebuild it from the log: `lockstep rebuild SINK --switch`",
                )
        return shape

    def widen(self, opened: OpenedTable, shape: Shape, added: Mapping[str, JsonValue]) -> None:
        """Add the shape's missing columns; existing rows get the values of ``added``. Raises Unavailable."""
        if opened.rows().shape == shape:
            return

        def widen(opened: OpenedTable) -> None:
            from sinks.delta.values import rows_of

            known = opened.rows().shape.columns
            new = [column.name for column in shape.columns[len(known) :]]
            rows = rows_of(shape)
            missing = [name for name in new if name not in opened.columns().names]
            if missing:
                fields = delta_fields(rows.schema, missing)
                self.lake.commit(
                    opened.path,
                    opened.table,
                    lambda properties: opened.table.alter.add_columns(fields, commit_properties=properties),
                )
            values = {name: added[name] for name in new if name in added}
            if values and opened.has_rows():
                version = opened.table.version()
                fill(self.lake, opened, rows.filling(values))
                if opened.table.version() != version + 1:
                    raise Overtaken  # by rows of the old shape, which are null in the new columns
            # Nobody writes these columns before this commit.
            self.lake.set_properties(opened.path, opened.table, {SHAPE: shape.to_json()})

        self.repeat(opened, widen)

    def add(self, shapes: Mapping[TableName, Shape]) -> None:
        """Create tables, and enter them in the bookkeeping table with its present fence. Raises Unavailable."""
        if not shapes:
            return
        for _ in range(TRIES):
            state = self.bookkeeping.read()
            build = self.build(state)
            created = [self.create(state, shape) for name, shape in shapes.items() if name not in build.tables]
            if self._enter(created, build.fence):
                return
        raise too_many(f"the bookkeeping table of sink {self._name!r}")

    def create(self, state: CatalogueState, shape: Shape) -> OpenedTable:
        """Create a table. Its fence is at least that of the catalogue state."""
        from sinks.delta.values import rows_of

        name = shape.table.name
        path = self.own(state.path_for(f"{self._directory}{delta_name(name)}"))
        partitions = self._settings.partitions_of(name)
        hours, fence = self._settings.retention_hours, self.build(state).fence
        schema = rows_of(shape, partitions).schema
        if self._settings.synced_at:
            schema = with_synced_at(schema)
        table = self.lake.create(
            path,
            schema,
            partitions=partitions,
            configuration={
                SYNCED_AT: "yes" if self._settings.synced_at else "no",
                SHAPE: shape.to_json(),
                FENCE: str(fence),
                # Versions without their files are useless, and every batch makes one.
                "delta.logRetentionDuration": f"interval {hours} hours",
                "delta.deletedFileRetentionDuration": f"interval {hours} hours",
            },
        )
        # A prepare that was killed before it entered the table may have left it, or another one has just entered it.
        opened = OpenedTable(self.lake, name, path, table)
        self.widen(opened, opened.rows().shape.evolve(shape.table), {})
        self.repeat(opened, lambda opened: self.raise_fence(opened, fence))
        return opened

    def _enter(self, created: Sequence[OpenedTable], fence: int) -> bool:
        """Enter tables. Returns False, and enters nothing, when their fence differs from the bookkeeping table's."""
        highest = max([fence, *(opened.fence for opened in created)])

        def enter(state: CatalogueState, _live: int | None) -> CatalogueState:
            build = self.build(state)
            if build.fence == highest == fence:
                build = replace(build, tables={**{opened.name: opened.path for opened in created}, **build.tables})
            elif build.fence < highest:  # an earlier writer has left a table
                build = replace(build, fence=highest)
            return state.with_build(self.generation, build)

        entered = self.build(self.bookkeeping.change(enter)).tables
        return all(opened.name in entered for opened in created)

    def raise_fence(self, opened: OpenedTable, fence: int) -> int:
        """Admit writers of this fence and shut out older ones. Returns the table's fence, which may be newer."""
        if opened.fence < fence:
            self.lake.set_properties(opened.path, opened.table, {FENCE: str(fence)})
        return opened.fence

    def fenced_off(self) -> Fenced:
        return replaced_writer(self._name, self.generation)
