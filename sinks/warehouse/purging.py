"""Removes for good rows that were deleted long ago or are to be erased, and versions that histories no longer need."""

from collections.abc import Collection, Mapping

from cdc.model.append_only import is_append_only
from cdc.model.event import JsonValue
from cdc.model.table import TableName, quote_identifier
from sinks.capabilities.erasing import Leftover, marks_of_rows
from sinks.warehouse.bookkeeping import WarehouseBookkeeping
from sinks.warehouse.dialect import Dialect
from sinks.warehouse.history_bookkeeping import HistoryBookkeeping
from sinks.warehouse.names import DELETED_COLUMN, TAG_COLUMN
from sinks.warehouse.purged import BLOCKS, PORTION, Purged
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.stored_table import GenerationSchema


class Purging:
    """Purges one generation. Every method is called inside a transaction."""

    def __init__(
        self,
        dialect: Dialect,
        settings: WarehouseSettings,
        schema: GenerationSchema,
        generation: int,
        bookkeeping: WarehouseBookkeeping,
    ) -> None:
        self._connection = dialect.connection
        self._upkeep = dialect.upkeep
        self._settings = settings
        self._schema = schema
        self._bookkeeping = bookkeeping
        self._histories = HistoryBookkeeping(dialect.connection)
        self.rows = Purged(dialect.connection, generation)
        self.versions = Purged(dialect.connection, generation, "purged_versions")

    def purge(self, below: str, whole: Collection[TableName] | None = None) -> bool:
        """Delete some of each table's rows that were deleted long enough ago, with tags less than ``below``.

        ``whole`` are the tables of which all events below that have been applied; None: all. Returns whether there may
        be more.
        """
        older_than_s = self._settings.purge_deleted_after_days * 86_400
        counts: list[int] = []
        tags: dict[TableName, str] = {}
        for name, held in sorted(self._bookkeeping.tables().items()):
            # A table without the time of its rows doesn't know when a row was deleted.
            if not held.has_synced_at or is_append_only(held.shape.table) or not (whole is None or name in whole):
                continue
            count, tag = self._upkeep.purge(held, older_than_s=older_than_s, below=below, rows_max=PORTION)
            counts.append(count)
            if tag:
                tags[name] = tag
        if tags:
            self.rows.raise_to(tags)
        return PORTION in counts

    def trim_histories(self, below: str, whole: Collection[TableName] | None, first_block: int, *, now_ms: int) -> bool:
        """Like ``purge`` for versions that histories no longer need. Returns whether one has more blocks."""
        complete_from_ms = now_ms - int(self._settings.keep_history_days * 86_400_000)
        has_more = False
        tags: dict[TableName, str] = {}
        for name, held in sorted(self._bookkeeping.tables().items()):
            if not held.has_history or not (whole is None or name in whole):
                continue
            goes_on, tag = self._upkeep.trim_history(
                held, complete_from_ms=complete_from_ms, below=below, first_block=first_block, blocks=BLOCKS
            )
            has_more |= goes_on
            if tag:
                tags[name] = tag
                self._histories.raise_complete_from(name, complete_from_ms)
        if tags:
            self.versions.raise_to(tags)
        return has_more

    def leftovers(self, name: TableName, key: Mapping[str, JsonValue]) -> list[Leftover]:
        held = self._bookkeeping.tables([name]).get(name)
        if held is None:
            return []
        if set(held.shape.table.key) != key.keys():
            return [Leftover("rows by another key of the table", has_values=True)]
        kept = self._upkeep.kept(held, key)
        found = []
        if kept.is_there:
            mark = Leftover(f"the mark of its deletion in {held.name}", has_values=False)
            found.append(mark if kept.is_deleted else Leftover(f"the row in {held.name}", has_values=True))
        if kept.versions:
            found.append(
                Leftover(f"{kept.versions} version{'s' * (kept.versions > 1)} in its history", has_values=True)
            )
        return found

    def marks(self, name: TableName, *, below: str | None = None) -> list[Leftover]:
        """What is kept of all deleted rows of a table with tags less than ``below``; None: of any."""
        held = self._bookkeeping.tables([name]).get(name)
        if held is None:
            return []
        deleted, tag = quote_identifier(DELETED_COLUMN), quote_identifier(TAG_COLUMN)
        until = "" if below is None else f" and {tag} < '{below}'"
        count = self._connection.run(f"select count(*) from {self._schema.table(held)} where {deleted}{until}")
        return marks_of_rows(int(count.scalar_one()))

    def erase_marks(self, name: TableName, *, below: str) -> bool:
        """Delete some marks with tags less than ``below``, while no batch runs. Returns whether there may be more."""
        held = self._bookkeeping.tables([name]).get(name)
        if held is None:
            return False
        count, tag = self._upkeep.purge(held, older_than_s=None, below=below, rows_max=PORTION)
        if tag:
            self.rows.raise_to({name: tag})
        return count == PORTION

    def erase(self, name: TableName, key: Mapping[str, JsonValue], *, below: str) -> None:
        """Delete this key's row, if marked as deleted, and versions, of tags below ``below``. No batch may run."""
        held = self._bookkeeping.tables([name]).get(name)
        if held is None or set(held.shape.table.key) != key.keys():
            return
        tag, version_tag = self._upkeep.erase(held, key, below=below)
        if tag:
            self.rows.raise_to({name: tag})
        if version_tag:
            self.versions.raise_to({name: version_tag})

    @property
    def trims_histories(self) -> bool:
        return self._settings.keep_history_days > 0 and self._settings.keeps_history

    @property
    def purges(self) -> bool:
        return self._settings.purge_deleted_after_days > 0 and self._settings.synced_at
