"""Chooses the code that turns ordinary rows of the log into what stores receive: the compiled kernel, else Python.

``_kernel.pyx`` repeats what ``cdc.event_format``, ``sinks.columns.copy_text`` and the writers of the sinks do.
These stay the reference: a kernel that returns other bytes isn't used, for example one built from older code.
"""

import os
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdc.event_format.decode import RowReader
from cdc.event_format.encode import event_value
from cdc.model.event import parse_object
from cdc.protocol.compiled_code import VARIABLE, CompiledCode, KernelChoice, chosen_code, load_compiled
from sinks.columns.copy_text import copy_line

if TYPE_CHECKING:
    from sinks._kernel import LineKernel


def chosen_sink_kernel() -> CompiledCode:
    """The code that this process's environment asks for, or the best one available. Raises as ``chosen_code`` does."""
    return chosen_code(
        os.environ.get(VARIABLE) or KernelChoice.AUTO, compiled_code, cannot="rows can't be written to sinks"
    )


def line_kernel(columns: Sequence[str]) -> "LineKernel | None":
    """The maker of COPY lines for a table with these columns, or None for Python's. Raises as ``chosen_code`` does."""
    module: Any = chosen_sink_kernel().module
    return None if module is None else _lines_of(module, columns)


@cache
def compiled_code() -> CompiledCode:
    return load_compiled("sinks._kernel", agrees)


def _lines_of(module: Any, columns: Sequence[str]) -> "LineKernel":
    kernel: LineKernel = module.LineKernel([orjson.dumps(name) for name in columns])
    return kernel


_COLUMNS: Final = ("id", 'odd "name"', "flag", "number", "note", "gone")
_ROWS: Final = (
    b'{"id":42,"odd \\"name\\"":null,"flag":true,"number":-0.5,"note":"\\"\\\\\\n\\t\xe2\x82\xac","gone":"x"}',
    b'{"id":-7,"flag":false,"number":1.0,"note":"\\r/"}',
)
_TAGS: Final = ["0" * 28, "0123456789abcdef" + "9" * 12]
_KEYS: Final = [b'{"id":42}', b'{"id":"a\xc3\xbc"}']
_KEYS_OF_TWO: Final = [b'{"id":42,"no":-7}', b'{"id":"a\xc3\xbc","no":0}']


def agrees(module: ModuleType) -> bool:
    """Whether a compiled module treats two rows as Python does."""
    source = b'{"version":"1","schema":"s","schema_id":"9","lsn":'
    events = [
        event_value(b"u", tag[:-8].encode(), int(tag[-8:], 16), b"null", row, source, lsn=1, commit_time_ms=2)
        for tag, row in zip(_TAGS, _ROWS, strict=True)
    ]
    reader = RowReader()
    taken: list[Any] = [reader.read(event)[0] for event in events]
    lines = ""
    for tag, row in zip(_TAGS, _ROWS, strict=True):
        held = parse_object(row)
        lines += copy_line((*map(held.get, _COLUMNS), tag, "f"))
    deletion = copy_line((42, *[None] * (len(_COLUMNS) - 1), _TAGS[0], "x"))
    of_module: Any = module
    try:
        rows: list[bytes | None] = []
        kernel = _lines_of(of_module, _COLUMNS)
        return (
            of_module.take_rows(events, 0, reader.beginning, rows) == len(events)
            and rows == taken
            and kernel.lines(_KEYS, _TAGS, list(_ROWS), ["f", "f"], 0, 2) == (lines.encode(), 2)
            and kernel.lines(_KEYS, _TAGS, [None, None], ["x", "x"], 0, 1) == (deletion.encode(), 1)
            and _names(of_module, _KEYS, [b'{"id":']) == [b"p:42", "p:aü".encode()]
            and _names(of_module, _KEYS_OF_TWO, [b'{"id":', b',"no":']) == [b"p:42:-7", "p:aü:0".encode()]
            and _documents(of_module) == [_document(index) for index in range(2)]
        )
    except (AttributeError, TypeError, ValueError):
        return False  # an older one's functions


def _names(module: Any, keys: Sequence[bytes], key_starts: Sequence[bytes]) -> list[bytes]:
    """The names of two rows, one of them deleted; none if the values made with them differ from Python's."""
    names: list[bytes] = []
    values: list[bytes] = []
    taken = module.take_arguments(
        list(keys),
        _TAGS,
        [_ROWS[0], None],
        0,
        2,
        key_starts=list(key_starts),
        prefix=b"p:",
        bytes_max=1 << 20,
        names=names,
        values=values,
    )
    is_same = taken == (2, len(_ROWS[0])) and values == [_TAGS[0].encode() + _ROWS[0], _TAGS[1].encode()]
    return names if is_same else []


def _documents(module: Any) -> list[bytes]:
    lines: list[bytes] = []
    module.take_documents(
        _KEYS,
        [_TAGS[0]] * 2,
        list(_ROWS),
        0,
        2,
        key_start=b'{"id":',
        head=b"<",
        middle=b">",
        transaction=_TAGS[0][:20],
        first_version=2**62,
        seq_max=9,
        bytes_max=1 << 20,
        lines=lines,
    )
    return lines


def _document(index: int) -> bytes:
    identity = str(parse_object(_KEYS[index])["id"]).encode()
    return b'<%b","version":%d>%b",%b\n' % (identity, 2**62, _TAGS[0].encode(), _ROWS[index][1:])
