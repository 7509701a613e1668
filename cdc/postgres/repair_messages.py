"""Requests to capture to publish current rows again, by key or for a whole table, sent as messages in the WAL.

They go through the WAL because the answer must be in stream order. Capture takes a snapshot after the request,
publishes everything that committed before the snapshot, and then the rows in the snapshot. A message is::

  {"format":4,"slot":"lockstep_shop","schema":"public","table":"orders","keys":[{"id":42},...]}

``"keys":null`` means the whole table. A request is for the slot that it names; several pipelines may read one database,
and all of them see it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import orjson
import psycopg

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue
from cdc.model.table import TableName
from cdc.postgres.slot import emit_messages
from cdc.protocol.record_fields import FORMAT, parse_record

REPAIR_PREFIX: Final = "lockstep.repair"
"""Prefix of the messages. They are never published, whatever prefixes are configured."""

KEYS_MAX: Final = 100_000
"""How many keys of a table capture holds until it can read their rows. For more, a copy of the table is cheaper."""

_KEYS_PER_MESSAGE: Final = 500

Key = Mapping[str, JsonValue]
"""Key columns and their values, as in an event's key."""


class UnreadableRequest(Exception):
    """A message under our prefix that isn't a request. Says why, and never shows a value."""


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """One message: publish these keys' rows again, or their deletion. None: all rows and deletions of the table."""

    slot: str
    table: TableName
    keys: tuple[Key, ...] | None

    def to_bytes(self) -> bytes:
        """Raises TypeError for values that JSON doesn't have."""
        return orjson.dumps(
            {
                "format": FORMAT,
                "slot": self.slot,
                "schema": self.table.schema,
                "table": self.table.name,
                "keys": None if self.keys is None else [dict(key) for key in self.keys],
            }
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Anybody may write such messages, so everything is checked. Raises UnreadableRequest."""
        try:
            fields = parse_record(content, "it")
            slot, table = fields.text("slot"), TableName(fields.text("schema"), fields.text("table"))
            keys = None if fields.is_null("keys") else tuple(fields.mappings("keys"))
        except LockstepError as error:
            raise UnreadableRequest(error.message) from None
        return cls(slot, table, keys)


def request_repair(
    connection: psycopg.Connection[Any], table: TableName, keys: Sequence[Key] | None, *, slot: str
) -> int:
    """Request the rows of these keys, or the whole table, from the capture of ``slot``; returns an LSN after the
    commit.

    ``keys`` are in the event's form. All arrive together, in messages of limited size. Once capture's state has reached
    the LSN, capture has seen the request. The events follow, with later tags: each key gets its row (``r``), or a
    delete if the source doesn't have it.

    Only the process that saw a request remembers it: if it ends before the rows are published, the request is lost. So
    check afterwards, and repeat the request for what is still wrong, which does no harm. Raises LockstepError for more
    than ``KEYS_MAX`` keys, for keys that JSON doesn't have, and if PostgreSQL refuses; Unavailable if it can't be
    reached.
    """
    if keys is not None and len(keys) > KEYS_MAX:
        raise LockstepError(
            f"{len(keys)} keys of {table} are too many to be repaired at once (at most {KEYS_MAX})",
            hint="ask for a part of them, and for the next when those are done; or copy the table again: lockstep"
            " snapshot table",
        )
    portions: list[tuple[Key, ...] | None] = [None]
    if keys is not None:
        portions = [tuple(keys[start : start + _KEYS_PER_MESSAGE]) for start in range(0, len(keys), _KEYS_PER_MESSAGE)]
    try:
        contents = [RepairRequest(slot, table, portion).to_bytes() for portion in portions]
    except TypeError:  # its text may show a value
        raise LockstepError(
            f"keys of {table} aren't JSON", hint="give them in the form that the keys of the table's events have"
        ) from None
    return emit_messages(connection, REPAIR_PREFIX, contents)
