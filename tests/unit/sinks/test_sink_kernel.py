"""sinks.sink_kernel: which code writes rows, why, and what the compiled one leaves to Python."""

from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from cdc.model.errors import ConfigurationError
from cdc.protocol.compiled_code import VARIABLE, CompiledCode
from sinks import sink_kernel
from sinks.sink_kernel import agrees, chosen_sink_kernel, line_kernel
from tests.row_kernels import compiled_sink_kernel

TAG = "0123456789abcdef0123456789ab"
FUNCTIONS = ("take_rows", "take_arguments", "take_documents", "LineKernel")
SOURCE = b',"source":{"version":"1","schema_id":"a"'


def lines(*rows: bytes | None, keys: list[bytes] | None = None, tag: str = TAG) -> tuple[bytes, int]:
    """Rows of a table with the columns ``id`` and ``note`` through the kernel."""
    kernel = compiled_sink_kernel().LineKernel([b'"id"', b'"note"'])
    count = len(rows)
    made: tuple[bytes, int] = kernel.lines(keys or [b"{}"] * count, [tag] * count, list(rows), ["f"] * count, 0, count)
    return made


def test_a_row_is_a_line_of_copy() -> None:
    assert lines(b'{"id":1,"note":"a\\n\\"\\\\"}') == (f'1\ta\\n"\\\\\t{TAG}\tf\n'.encode(), 1)


def test_a_deletion_has_its_key_and_null_for_the_rest() -> None:
    assert lines(None, keys=[b'{"id":1}']) == (f"1\t\\N\t{TAG}\tf\n".encode(), 1)


def test_a_column_that_a_row_lacks_is_null() -> None:
    assert lines(b'{"note":true}')[0] == f"\\N\tt\t{TAG}\tf\n".encode()


@pytest.mark.parametrize(
    "other",
    [
        b"",
        b"{}",
        b"null",
        b'{"id":1',
        b'{"id":1}}',
        b'{"id":1} ',
        b'{"id": 1}',
        b'{"note":"x","id":1}',
        b'{"id":1,"other":2}',
        b'{"id":1,"id":2}',
        b'{"id":[1]}',
        b'{"id":01}',
        b'{"id":-}',
        b'{"id":1.}',
        b'{"id":.5}',
        b'{"id":1e}',
        b'{"id":1e+20}',
        b'{"id":1.5e5}',
        b'{"id":1' + b"0" * 400 + b".5}",
        b'{"id":-0}',
        b'{"id":1234567890123456789}',
        b'{"id":nul}',
        b'{"id":"a\tb"}',
        b'{"id":"\\u0001"}',
        b'{"id":"\\"}',
        b'{"id":"\xff"}',
        b'{"id":"\xed\xa0\x80"}',
    ],
)
def test_a_row_that_python_has_to_look_at_ends_a_run(other: bytes) -> None:
    first = f"1\t\\N\t{TAG}\tf\n".encode()
    assert lines(b'{"id":1}', other, b'{"id":1}') == (first, 1)


def test_a_tag_in_which_something_is_to_be_escaped_is_left_to_python() -> None:
    assert lines(b'{"id":1}', tag="\\" * 28) == (b"", 0)


def event(row: bytes, source: bytes = SOURCE, before: bytes = b"null") -> bytes:
    return b'{"op":"u","tag":"%b","before":%b,"after":%b%b,"lsn":1},"ts_ms":2}' % (TAG.encode(), before, row, source)


@pytest.mark.parametrize(
    "other",
    [
        None,
        b"",
        event(b'{"id":1}')[:80],
        event(b"null"),
        event(b'{"id":1}', SOURCE[:-2] + b'b"'),
        event(b'{"id":1}', SOURCE + b',"table":"{"'),
        event(b'{"id":1}', before=b'{"id":1}'),
    ],
)
def test_rows_are_taken_from_events_up_to_one_that_python_has_to_look_at(other: bytes | None) -> None:
    rows: list[bytes | None] = []
    taken = compiled_sink_kernel().take_rows([event(b'{"a":"{"}'), event(b"{}"), other, event(b"{}")], 0, SOURCE, rows)
    assert (taken, rows) == (2, [b'{"a":"{"}', b"{}"])


ONE, TWO = (b'{"id":',), (b'{"id":', b',"no":')


def arguments(
    *keys: bytes, rows: list[bytes | None] | None = None, bytes_max: int = 100, starts: Sequence[bytes] = ONE
) -> Any:
    names: list[bytes] = []
    values: list[bytes] = []
    rows = rows or [b"{}"] * len(keys)
    end, size = compiled_sink_kernel().take_arguments(
        list(keys), [TAG] * len(keys), rows, 0, len(keys),
        key_starts=list(starts), prefix=b"p:", bytes_max=bytes_max, names=names, values=values,
    )  # fmt: skip
    return end, size, names, values


def test_a_row_is_its_name_and_its_tag_with_the_json() -> None:
    made = arguments(b'{"id":7}', b'{"id":"a b"}', b'{"id":-1}', rows=[b'{"id":7}', None, b"{}"])
    tag = TAG.encode()
    assert made == (3, 10, [b"p:7", b"p:a b", b"p:-1"], [tag + b'{"id":7}', tag, tag + b"{}"])


@pytest.mark.parametrize(
    "other",
    [b"", b"{}", b'{"id":', b'{"id":1', b'{"id":1}}', b'{"id":1,"no":2}', b'{"id":01}', b'{"id":-}', b'{"id":1.5}',
     b'{"id":null}', b'{"id":"a\\n"}', b'{"id":"\xff"}', b'{"id":"a"', b'{"id":"a"}}', b'{"no":1}'],
)  # fmt: skip
def test_a_key_that_python_has_to_look_at_ends_a_run(other: bytes) -> None:
    assert arguments(b'{"id":1}', other, b'{"id":1}')[:3] == (1, 2, [b"p:1"])


def test_values_of_a_key_of_several_columns_have_colons_between_them() -> None:
    made = arguments(b'{"id":7,"no":"a b"}', b'{"id":"","no":-1}', starts=TWO)
    assert made[:3] == (2, 4, [b"p:7:a b", b"p::-1"])


@pytest.mark.parametrize(
    "other",
    [b'{"id":2}', b'{"id":2,"no":', b'{"id":2,"no":3', b'{"id":2,"no":3,"z":4}', b'{"id":2 ,"no":3}',
     b'{"no":3,"id":2}', b'{"id":"a:b","no":3}', b'{"id":2,"no":"5%"}', b'{"id":2,"no":null}',
     b'{"id":"\xff","no":3}', b'{"id":2,"no":01}'],
)  # fmt: skip
def test_a_key_of_several_columns_that_python_has_to_look_at_ends_a_run(other: bytes) -> None:
    assert arguments(b'{"id":1,"no":1}', other, b'{"id":3,"no":1}', starts=TWO)[:3] == (1, 2, [b"p:1:1"])


@pytest.mark.parametrize("count", [0, 17])
def test_a_key_of_more_columns_than_the_kernel_knows_is_left_to_python(count: int) -> None:
    starts = [b"%b%d:" % (b"," if number else b"{", number) for number in range(count)]
    assert arguments(b"".join(start + b"1" for start in starts) + b"}", starts=starts)[:3] == (0, 0, [])


def test_rows_are_taken_up_to_so_many_bytes() -> None:
    assert arguments(b'{"id":1}', b'{"id":2}', bytes_max=3)[:2] == (1, 2)
    assert arguments(b'{"id":1}', bytes_max=1)[:2] == (0, 0)


def documents(*keys: bytes, tag: str = TAG, row: bytes | None = b'{"id":7}', bytes_max: int = 1000) -> Any:
    made: list[bytes] = []
    end, size = compiled_sink_kernel().take_documents(
        list(keys), [tag] * len(keys), [row] * len(keys), 0, len(keys), key_start=b'{"id":', head=b'{"_id":"',
        middle=b'}{"_tag":"', transaction=TAG[:20], first_version=100, seq_max=2000, bytes_max=bytes_max, lines=made,
    )  # fmt: skip
    return end, size, made


def test_a_row_is_lines_of_a_bulk_request() -> None:
    line = b'{"_id":"7","version":1900}{"_tag":"%b00000708","id":7}\n' % TAG[:20].encode()
    assert documents(b'{"id":7}', tag=TAG[:20] + "00000708") == (1, len(line), [line])
    assert b'"version":2100}' in documents(b'{"id":7}', tag=TAG[:20] + "ffffffff")[2][0]


@pytest.mark.parametrize(
    "other",
    [
        {"tag": "1" + TAG[1:]},
        {"tag": TAG[:27]},
        {"tag": TAG[:27] + "A"},
        {"tag": TAG[:27] + " "},
        {"row": None},
        {"row": b""},
        {"bytes_max": 10},
        {"key": b'{"id":""}'},
        {"key": b'{"id":"sha256:1"}'},
        {"key": b'{"id":"%b"}' % (b"x" * 513)},
        {"key": b'{"id":1.5}'},
    ],
)
def test_a_document_that_python_has_to_look_at_ends_a_run(other: dict[str, Any]) -> None:
    key = other.pop("key", b'{"id":1}')
    assert documents(key, **other) == (0, 0, [])


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    assert (chosen_sink_kernel().module, line_kernel(["id"])) == (None, None)


def test_where_it_is_required_and_missing_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_kernel, "compiled_code", lambda: CompiledCode(None, "it isn't here"))
    monkeypatch.setenv(VARIABLE, "auto")
    assert str(chosen_sink_kernel()) == "Python code: it isn't here"
    monkeypatch.setenv(VARIABLE, "require")
    with pytest.raises(ConfigurationError, match="rows can't be written to sinks by compiled code: it isn't here"):
        chosen_sink_kernel()


@pytest.mark.parametrize("missing", FUNCTIONS)
def test_a_kernel_of_other_code_isnt_used(missing: str) -> None:
    real = compiled_sink_kernel()
    functions = {name: getattr(real, name) for name in FUNCTIONS}
    assert agrees(cast(ModuleType, SimpleNamespace(**functions)))
    assert not agrees(cast(ModuleType, SimpleNamespace(**{**functions, missing: lambda *_, **_options: (0, 0)})))
    del functions[missing]
    assert not agrees(cast(ModuleType, SimpleNamespace(**functions)))
