"""Coordination records as documents of a sink's bookkeeping index."""

from sinks.opensearch.bookkeeping import Bookkeeping


class OpenSearchCoordination:
    """The coordination records of an OpenSearch sink."""

    def __init__(self, bookkeeping: Bookkeeping) -> None:
        self._bookkeeping = bookkeeping

    def load(self, name: str) -> str | None:
        source = self._bookkeeping.load(record_id(name))
        return None if source is None else str(source["text"])

    def save(self, name: str, text: str | None) -> None:
        if text is None:
            self._bookkeeping.remove(record_id(name))
        else:
            self._bookkeeping.create_index()
            self._bookkeeping.save(record_id(name), {"text": text})

    def create(self, name: str, text: str) -> bool:
        self._bookkeeping.create_index()
        return self._bookkeeping.create(record_id(name), {"text": text})


def record_id(name: str) -> str:
    """The id of a coordination record's document."""
    return f"coordination.{name}"
