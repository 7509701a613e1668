"""Builders with defaults, so that a test shows only what it is about."""

from collections.abc import Mapping, Sequence

from cdc.model.event import JsonValue, Position, RowEvent
from cdc.model.table import Column, ReplicaIdentity, Table, TableName
from cdc.model.tag import Tag
from sinks.contract import Batch, Progress

# pg_type's oids of the built-in types that tests use. Other types get an arbitrary number.
_OIDS = {
    "bool": 16, "bytea": 17, "int8": 20, "int2": 21, "int4": 23, "text": 25, "oid": 26, "json": 114, "float4": 700,
    "float8": 701, "date": 1082, "time": 1083, "timestamp": 1114, "timestamptz": 1184, "interval": 1186,
    "numeric": 1700,
    "uuid": 2950, "jsonb": 3802, "varchar": 1043,
}  # fmt: skip
_ENUM_OID = 90_000

ORDERS = TableName("public", "orders")


def column(
    name: str,
    value_type: str = "text",
    *,
    is_array: bool = False,
    type_name: str | None = None,
    type_modifier: int = -1,
) -> Column:
    """A column of a built-in type; ``type_name`` declares it as another type (an enum, a domain)."""
    oid = _OIDS.get(value_type, _ENUM_OID) if type_name is None else _ENUM_OID
    declared = (value_type if type_name is None else type_name) + ("[]" if is_array else "")
    return Column(name, declared, value_type, is_array, oid, type_modifier)


def table(
    *columns: Column, name: TableName = ORDERS, key: Sequence[str] = ("id",), identity: str = ReplicaIdentity.DEFAULT
) -> Table:
    """A table; without columns ``public.orders (id int8, note text)``."""
    return Table(name, columns or (column("id", "int8"), column("note")), tuple(key), ReplicaIdentity(identity))


def tag(commit: int, seq: int = 1, *, epoch: int = 1) -> str:
    """The tag of a change in the ``commit``-th transaction: later commits and later changes are greater."""
    return str(Tag(epoch, 0x1000000 + commit * 8, seq))


def upsert(
    row: Mapping[str, JsonValue],
    at: str | int,
    *,
    of: Table | None = None,
) -> RowEvent:
    """A row's new state at a tag (or at the first change of a commit)."""
    shape = of or table()
    text = at if isinstance(at, str) else tag(at)
    return RowEvent(shape.name, {name: row[name] for name in shape.key}, text, row, _position(shape.name, text))


def delete(key: Mapping[str, JsonValue], at: str | int, *, of: Table | None = None) -> RowEvent:
    """A row's deletion at a tag (or at the first change of a commit)."""
    shape = of or table()
    text = at if isinstance(at, str) else tag(at)
    return RowEvent(shape.name, dict(key), text, None, _position(shape.name, text))


def batch(*events: RowEvent, fence: int = 0, next_offsets: Mapping[tuple[str, int], int] | None = None) -> Batch:
    return Batch(events, next_offsets or {}, fence)


def progress(watermark_lsn: int = 0x16_B374D848, **changes: object) -> Progress:
    values: dict[str, object] = {
        "next_offsets": {("shop.public.orders", 0): 17, ("shop.public.orders", 1): 4},
        "watermark_lsn": watermark_lsn,
        "commit_time_ms": 1_700_000_000_000,
        "updated_at_ms": 1_700_000_000_250,
        "topic_ids": {"shop.public.orders": "Uo3yZ2JnQ8G1vB7fV0s4hA"},
        "rejected": 2,
    }
    return Progress(**{**values, **changes})  # type: ignore[arg-type]


def _position(name: TableName, text: str) -> Position:
    # Offsets are evidence only; derived from the tag they differ where events do.
    return Position(f"shop.{name.schema}.{name.name}", 0, int(text[-16:], 16) % 1_000_000)
