"""The ledger of a first copy: one record in ``__state`` per range of blocks whose rows are all on the topic. A range's
record is committed in the Kafka transaction of its last rows. It identifies the relation's shape and file, since blocks
mean something else once the table was altered or rewritten. After the copy, all records are removed."""

from dataclasses import dataclass
from typing import Final, Self

import orjson

from cdc.model.table import TableName
from cdc.model.tag import EPOCH_MAX
from cdc.protocol.record_fields import FORMAT, parse_record

_KIND: Final = "range"


@dataclass(frozen=True, slots=True)
class CopiedRange:
    """Blocks of a relation from ``first`` on and before ``end``; None: unbounded.

    ``begun_lsn`` is the handoff of the copy's first start, ``point_lsn`` the consistent point at which the range was
    read. ``shape`` and ``storage`` identify the table's shape and the relation's file. ``size`` is in bytes of values,
    ``committed_ms`` in milliseconds since 1970, ``took_ms`` the time that the range took.
    """

    slot: str
    epoch: int
    begun_lsn: int
    point_lsn: int
    table: TableName
    shape: str
    storage: str
    first: int | None
    end: int | None
    rows: int
    size: int
    committed_ms: int
    took_ms: int

    def key(self) -> bytes:
        """Differs for each range of each file, so writers needn't read other records."""
        name = self.table
        return orjson.dumps([_KIND, self.slot, name.schema, name.name, self.shape, self.storage, self.first, self.end])

    def to_bytes(self) -> bytes:
        return orjson.dumps(
            {
                "format": FORMAT,
                "slot": self.slot,
                "epoch": self.epoch,
                "begun_lsn": self.begun_lsn,
                "point_lsn": self.point_lsn,
                "schema": self.table.schema,
                "table": self.table.name,
                "shape": self.shape,
                "storage": self.storage,
                "first": self.first,
                "end": self.end,
                "rows": self.rows,
                "size": self.size,
                "committed_ms": self.committed_ms,
                "took_ms": self.took_ms,
            }
        )

    @classmethod
    def from_bytes(cls, value: bytes | None, what: str) -> Self:
        """Raises as ``parse_record``, and ForeignRecord."""
        fields = parse_record(value, what)
        first, end = (None if fields.is_null(name) else fields.number(name) for name in ("first", "end"))
        return cls(
            slot=fields.text("slot"),
            epoch=fields.number("epoch", most=EPOCH_MAX),
            begun_lsn=fields.number("begun_lsn"),
            point_lsn=fields.number("point_lsn"),
            table=TableName(fields.text("schema"), fields.text("table")),
            shape=fields.text("shape"),
            storage=fields.text("storage"),
            first=first,
            end=end,
            rows=fields.number("rows"),
            size=fields.number("size"),
            committed_ms=fields.number("committed_ms"),
            took_ms=fields.number("took_ms"),
        )


def is_range_key(key: bytes) -> bool:
    """Whether a record of ``__state`` belongs to the ledger. No slot's name looks like this."""
    return key.startswith(b'["range",')
