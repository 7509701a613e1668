"""Coordination records in the bookkeeping table of a Delta sink."""

from collections.abc import Collection
from dataclasses import replace

from sinks.delta.bookkeeping import CatalogueState
from sinks.delta.tables import DeltaTables


class DeltaCoordination:
    """Each change is one commit to the sink's bookkeeping table."""

    def __init__(self, tables: DeltaTables) -> None:
        self._tables = tables
        self._bookkeeping = tables.bookkeeping

    def load(self, name: str) -> str | None:
        return self._bookkeeping.read().records.get(name)

    def load_all(self, names: Collection[str]) -> dict[str, str]:
        records = self._bookkeeping.read().records
        return {name: records[name] for name in names if name in records}

    def save(self, name: str, text: str | None, *, fence: int = 0) -> None:
        def save(state: CatalogueState, _live: int | None) -> CatalogueState:
            if fence and self._tables.build(state).fence != fence:
                raise self._tables.fenced_off()
            others = {known: content for known, content in state.records.items() if known != name}
            return replace(state, records=others if text is None else {**others, name: text})

        self._bookkeeping.change(save)

    def create(self, name: str, text: str) -> bool:
        created = False

        def create(state: CatalogueState, _live: int | None) -> CatalogueState:
            nonlocal created
            created = name not in state.records
            return replace(state, records={**state.records, name: text}) if created else state

        self._bookkeeping.change(create)
        return created
