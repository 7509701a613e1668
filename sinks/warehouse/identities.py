"""Whether the tables of a generation are still the known ones."""

from collections.abc import Callable, Collection, Mapping

from cdc.model.errors import DataLost
from cdc.model.table import TableName
from sinks.warehouse.bookkeeping import WarehouseBookkeeping
from sinks.warehouse.dialect import Storage, Storages
from sinks.warehouse.identity import Identity, Noted, Now, what_became
from sinks.warehouse.names import HISTORY_SUFFIX
from sinks.warehouse.purging import Purging
from sinks.warehouse.stored_table import StoredTable


class Identities:
    """Identities of one generation's tables. Called inside transactions. ``is_empty``: a relation has no row."""

    def __init__(
        self,
        stored: Storages,
        bookkeeping: WarehouseBookkeeping,
        purging: Purging,
        is_empty: Callable[[str], bool],
    ) -> None:
        self._stored = stored
        self._bookkeeping = bookkeeping
        self._purging = purging
        self._is_empty = is_empty

    def of(self, names: Collection[TableName]) -> dict[TableName, str]:
        """The identity of each of these tables, with its history."""
        tables = self._bookkeeping.tables(names)
        storages = self._storages(tables)
        bookkeeping = self._stored.of_bookkeeping().relation

        def noted(relation: str) -> Noted:
            return Noted(storages[relation], has_rows=not self._is_empty(relation))

        found = {
            name: Identity(bookkeeping, {relation: noted(relation) for relation in held.relations})
            for name, held in tables.items()
            if storages.keys() >= held.relations.keys()
        }
        return {name: identity.to_json() for name, identity in found.items()}

    def lost(self, known: Mapping[TableName, str]) -> dict[TableName, str]:
        """Which of these tables no longer have the known identity, and what became of each."""
        tables = self._bookkeeping.tables(known)
        now = Now(
            self._stored.of_bookkeeping().relation,
            self._storages(tables),
            self._purged_relations(tables),
            self._is_empty,
            self._stored.keeps_rows,
        )
        found = {
            name: what_became(
                Identity.from_json(text) if text else None, tables[name].relations if name in tables else (), now
            )
            for name, text in known.items()
        }
        return {name: what for name, what in found.items() if what is not None}

    def still_there(self, tables: Mapping[TableName, StoredTable]) -> dict[TableName, StoredTable]:
        """Those of these tables, with their histories, that nobody has dropped."""
        storages = self._storages(tables)
        return {name: held for name, held in tables.items() if storages.keys() >= held.relations.keys()}

    def check_same(self, known: Mapping[TableName, str]) -> None:
        """Raise DataLost if one of these tables is no longer stored where it was, for whatever reason.

        Called in a transaction that has written to them: nobody can empty or drop them until it ends.
        """
        identities = {name: Identity.from_json(text) for name, text in known.items() if text}
        storages = self._stored.of([relation for each in identities.values() for relation in each.relations])
        for name, identity in identities.items():
            for relation, noted in identity.relations.items():
                if storages.get(relation) != noted.storage:
                    raise DataLost(
                        f"{relation}, which has rows of {name}, was emptied, replaced or rewritten by another client"
                    )

    def _storages(self, tables: Mapping[TableName, StoredTable]) -> Mapping[str, Storage]:
        return self._stored.of([relation for held in tables.values() for relation in held.relations])

    def _purged_relations(self, tables: Mapping[TableName, StoredTable]) -> set[str]:
        """Relations from which rows were purged or erased: they may rightly be empty."""
        purged = {tables[name].name for name in self._purging.rows.load() if name in tables}
        return purged | {tables[name].name + HISTORY_SUFFIX for name in self._purging.versions.load() if name in tables}
