"""Which code encodes ordinary rows, of the stream and of copies: the compiled kernel if it exists, else Python. Pure.
``_kernel.pyx`` repeats what ``encode`` and ``column_types`` do, for some types. Those modules stay the reference. A
kernel that gives other bytes than they do, for instance one built from older code, isn't used."""

import struct
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Final

import orjson

from cdc.event_format.column_types import JsonEncoder, json_encoder
from cdc.event_format.encode import TableEncoder, event_value
from cdc.model.table import Column, ReplicaIdentity, Table, TableName
from cdc.model.tag import SNAPSHOT_SEQ
from cdc.protocol.compiled_code import CompiledCode, chosen_code, load_compiled
from cdc.protocol.walsender import XLOG_DATA

if TYPE_CHECKING:
    from cdc.event_format._kernel import RowKernel


@dataclass(frozen=True, slots=True)
class RowEncoding(CompiledCode):
    def kernel(self, encoder: TableEncoder) -> "RowKernel | None":
        """The compiled encoder of a table's rows; None if the kernel doesn't know a column's type."""
        return None if self.module is None else _kernel(self.module, encoder)


def row_encoding(choice: str) -> RowEncoding:
    """The encoding for a value of the environment variable. Raises as ``chosen_code``."""
    code = chosen_code(choice, compiled_code, cannot="rows can't be encoded")
    return RowEncoding(code.module, code.why)


@cache
def compiled_code() -> CompiledCode:
    return load_compiled("cdc.event_format._kernel", agrees)


def _kinds(module: ModuleType) -> dict[JsonEncoder, int]:
    """Encoding function -> its kind in the kernel. Functions that are absent exist in Python only."""
    return {
        json_encoder(value_type, False): kind
        for value_type, kind in (
            ("int8", module.VERBATIM),
            ("uuid", module.QUOTED),
            ("text", module.TEXT),
            ("bool", module.BOOL),
            ("float8", module.FLOAT),
            ("timestamp", module.TIMESTAMP),
            ("timestamptz", module.TIMESTAMPTZ),
        )
    }


def _kernel(module: ModuleType, encoder: TableEncoder) -> "RowKernel | None":
    kinds = _kinds(module)
    columns = [
        (orjson.dumps(column.name), kinds.get(json_encoder(column.value_type, column.is_array)))
        for column in encoder.table.columns
    ]
    if not columns or any(kind is None for _, kind in columns):
        return None
    kernel: RowKernel = module.RowKernel(columns, encoder.key_positions)
    return kernel


_SAMPLE: Final[tuple[tuple[str, tuple[bytes, ...]], ...]] = (
    ("int8", (b"42", b"-9223372036854775808")),
    ("text", (b'"\\\n\x01', "\u20ac \U0001f600".encode())),
    ("uuid", (b"00000000-0000-0000-0000-000000000000", b"")),
    ("bool", (b"t", b"f")),
    ("float8", (b"-0", b"-Infinity")),
    ("timestamp", (b"2016-11-04 13:51:30.123456", b"infinity")),
    ("timestamptz", (b"2016-11-04 13:51:30+00", b"0044-03-15 12:00:00+00 BC")),
)
"""A value type of each kind with two values."""


def agrees(module: ModuleType) -> bool:
    """Whether a compiled module encodes two rows of the stream, and of a copy, as Python does."""
    columns = tuple(
        Column(f"column {p}", value_type, value_type, False, 1, -1) for p, (value_type, _) in enumerate(_SAMPLE)
    )
    shape = Table(TableName("s", "t"), columns, (columns[1].name, columns[0].name), ReplicaIdentity.DEFAULT)
    encoder = TableEncoder(shape, server="s", database="d", version="v")
    prefix, source, relation, lsn, time_ms = b"0" * 20, encoder.source(commit_time_ms=1, xid=2), 7, 2**64 - 1, 3
    rows = list(zip(*(values for _, values in _SAMPLE), strict=True))
    frames = [_insert_frame(relation, lsn, row) for row in rows]
    expected = [
        (encoder.key(row), event_value(b"c", prefix, 9 + n, b"null", encoder.row(row), source, lsn, time_ms))
        for n, row in enumerate(rows)
    ]
    copied = [
        (encoder.key(row), event_value(b"r", prefix, SNAPSHOT_SEQ, b"null", encoder.row(row), source, lsn, time_ms))
        for row in rows
    ]
    try:
        kernel = _kernel(module, encoder)
        assert kernel is not None
        lines: list[bytes | memoryview] = [_copy_line(row) for row in rows]
        if kernel.encode_copied(lines, 0, prefix=prefix, source=source, lsn=lsn, time=b"%d" % time_ms)[0] != copied:
            return False
        arriving = iter(frames[1:])
        pairs, _, _ = kernel.encode(
            frames[0],
            lambda: next(arriving, None),
            relation=relation,
            updates=True,
            prefix=prefix,
            seq=9,
            source=source,
            time=b"%d" % time_ms,
            text_max=1 << 20,
            rows_max=len(rows),
            bytes_max=1 << 20,
        )
    except (AttributeError, TypeError, ValueError, AssertionError):
        return False  # it is older and has other methods
    return pairs == expected


def _copy_line(row: tuple[bytes, ...]) -> bytes:
    return b"\t".join(value.replace(b"\\", b"\\\\").replace(b"\n", b"\\n") for value in row) + b"\n"


def _insert_frame(relation: int, lsn: int, row: tuple[bytes, ...]) -> bytes:
    values = b"".join(b"t%b%b" % (struct.pack("!i", len(value)), value) for value in row)
    return struct.pack("!BQQqcIcH", XLOG_DATA, lsn, lsn, 0, b"I", relation, b"N", len(row)) + values
