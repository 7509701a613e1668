"""Remembers up to which tag rows were purged: older events of missing rows are repetitions.

A deleted row stays with its tag, so that an older event that comes again doesn't bring it back. When it is purged, its
table's greatest purged tag takes its place. Only rows below the watermark are purged, and everything below it has been
applied. So an event at or below that tag is a repetition: its row exists in this version or a newer one, or it was
deleted and purged. The same holds for the versions of a history.
"""

from collections.abc import Mapping
from typing import Final

import orjson

from cdc.model.table import TableName
from sinks.warehouse.coordination import load_record, save_record
from sinks.warehouse.dialect import Connection

PORTION: Final = 1_000
"""How many rows of a table one transaction deletes at most."""

PURGE_S: Final = 1.0
IDLE_S: Final = 60.0
"""The shortest time between two purges: after one that deleted as many rows as it may, and after a smaller one."""

BLOCKS: Final = 500
"""How many of the server's blocks of a history one transaction looks through."""

PASS_S: Final = 3600.0
"""The shortest time between two passes through all histories."""


class Purged:
    """The greatest purged tag per table, in the generation's record ``what``. Called inside transactions."""

    def __init__(self, connection: Connection, generation: int, what: str = "purged") -> None:
        self._connection = connection
        self._name = f"g{generation}.{what}"

    def load(self) -> dict[TableName, str]:
        content = load_record(self._connection, self._name)
        return {TableName(schema, name): tag for schema, name, tag in orjson.loads(content or "[]")}

    def raise_to(self, tags: Mapping[TableName, str]) -> None:
        """Rows of these tables up to these tags were purged. A greater known tag stays."""
        known = self.load()
        now = known | {table: max(tag, known.get(table, "")) for table, tag in tags.items()}
        text = orjson.dumps([[table.schema, table.name, tag] for table, tag in sorted(now.items())]).decode()
        save_record(self._connection, self._name, text)
