"""What is remembered of rows once they are purged: up to which tag events of rows that aren't there are old.

A deleted row stays with its tag, so that an older event that comes again doesn't bring it back. Where it is purged, its
table's greatest purged tag takes its place. Only rows below the watermark are purged, and below it everything has been
applied. So an event at or below that tag is a repetition: its row is there in this version or a newer one, or it was
deleted and purged. The same holds for the versions of a history.
"""

from collections.abc import Mapping
from typing import Final

import orjson

from cdc.model.table import TableName
from sinks.warehouse.coordination import load_record, save_record
from sinks.warehouse.dialect import Connection

PORTION: Final = 1_000
"""So many rows of a table are deleted in one transaction."""

PURGE_S: Final = 1.0
IDLE_S: Final = 60.0
"""The shortest time between two purges: after one that had as many rows as it takes, and after one that had fewer."""

BLOCKS: Final = 500
"""So much of a history is looked through in one transaction, in blocks of the server's."""

PASS_S: Final = 3600.0
"""The shortest time between two passes through all histories."""


class Purged:
    """The greatest purged tag of each table of a generation, in a record that is dropped with it.

    ``what`` names the record. Every method is called inside a transaction.
    """

    def __init__(self, connection: Connection, generation: int, what: str = "purged") -> None:
        self._connection = connection
        self._name = f"g{generation}.{what}"

    def load(self) -> dict[TableName, str]:
        content = load_record(self._connection, self._name)
        return {TableName(schema, name): tag for schema, name, tag in orjson.loads(content or "[]")}

    def raise_to(self, tags: Mapping[TableName, str]) -> None:
        """Rows of these tables up to these tags have been purged. A greater one that is known stays."""
        known = self.load()
        now = known | {table: max(tag, known.get(table, "")) for table, tag in tags.items()}
        text = orjson.dumps([[table.schema, table.name, tag] for table, tag in sorted(now.items())]).decode()
        save_record(self._connection, self._name, text)
