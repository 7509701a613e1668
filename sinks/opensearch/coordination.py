"""Coordination records as documents of a sink's bookkeeping index."""

from collections.abc import Collection

from sinks.generation_errors import replaced_writer
from sinks.opensearch.indexes import OpenSearchIndexes


class OpenSearchCoordination:
    def __init__(self, indexes: OpenSearchIndexes) -> None:
        self._indexes = indexes
        self._bookkeeping = indexes.bookkeeping

    def load(self, name: str) -> str | None:
        source = self._bookkeeping.load(record_id(name))
        return None if source is None else str(source["text"])

    def load_all(self, names: Collection[str]) -> dict[str, str]:
        found = self._bookkeeping.load_all([record_id(name) for name in names])
        sources = {name: found.get(record_id(name)) for name in names}
        return {name: str(source["text"]) for name, source in sources.items() if source is not None}

    def save(self, name: str, text: str | None, *, fence: int = 0) -> None:
        if text is None:
            self._bookkeeping.remove(record_id(name))
            return
        self._bookkeeping.create_index()
        if not fence:
            self._bookkeeping.save(record_id(name), {"text": text})
        elif not self._bookkeeping.save_version(record_id(name), {"text": text}, fence):
            raise replaced_writer(self._indexes.name, self._indexes.generation)

    def create(self, name: str, text: str) -> bool:
        self._bookkeeping.create_index()
        return self._bookkeeping.create(record_id(name), {"text": text})


def record_id(name: str) -> str:
    return f"coordination.{name}"
