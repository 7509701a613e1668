"""The temporary tables through which a batch's rows pass (pure)."""

from typing import Final

from cdc.model.table import quote_identifier

_DEAD_BYTES_MAX: Final = 4_000_000
"""How much deleted data a staging table may hold: each batch reads past it."""


class Staging:
    """One connection's staging table for ``target``, a relation with its schema. It is empty between two batches.

    It isn't created with ``on commit delete rows``: each commit would truncate the staging tables of all tables that
    the connection ever wrote to, some 3 ms each.
    """

    def __init__(self, name: str, target: str) -> None:
        self.name = name
        self.relation = f"pg_temp.{quote_identifier(name)}"
        self.create = f"create temporary table {quote_identifier(name)} (like {target})"
        self._dead_bytes = 0

    def emptying(self, size: int) -> str:
        """How to empty it after a COPY of this size: mostly DELETE, sometimes TRUNCATE, as nobody vacuums it."""
        self._dead_bytes += size
        if self._dead_bytes <= _DEAD_BYTES_MAX:
            return f"delete from {self.relation}"
        self._dead_bytes = 0
        return f"truncate {self.relation}"
