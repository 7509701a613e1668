"""cdc.event_format.compiled: which code encodes rows, why, and what the compiled one leaves to Python."""

from types import ModuleType, SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from cdc.event_format.compiled import RowEncoding, agrees, row_encoding
from cdc.event_format.encode import TableEncoder
from cdc.model.errors import ConfigurationError
from cdc.protocol.compiled_code import CompiledCode
from tests.builders import column, table
from tests.copy_lines import copy_line
from tests.row_kernels import compiled
from tests.wal import RELATION_ID, data_frame, insert, update

FRAME = data_frame(insert(b"1", b"x"), 8)


def encoder(*columns: Any, **shape: Any) -> TableEncoder:
    return TableEncoder(table(*columns, **shape), server="shop", database="app", version="1")


def encode(*frames: bytes | memoryview, encoding: RowEncoding, **options: Any) -> Any:
    """Frames of ``public.orders`` through the kernel."""
    kernel = encoding.kernel(encoder())
    assert kernel is not None
    arriving = iter(frames[1:])
    values: dict[str, Any] = {
        "relation": RELATION_ID, "updates": True, "prefix": b"p", "seq": 1, "source": b'{"lsn":', "time": b"5",
        "text_max": 1000, "rows_max": 100, "bytes_max": 100_000,
    }  # fmt: skip
    return kernel.encode(frames[0], lambda: next(arriving, None), **{**values, **options})


def test_a_row_is_its_key_and_its_event() -> None:
    assert encode(FRAME, encoding=compiled()) == (
        [
            (
                b'{"id":1}',
                b'{"op":"c","tag":"p00000001","before":null,"after":{"id":1,"note":"x"},"source":{"lsn":8},"ts_ms":5}',
            )
        ],
        None,
        99,
    )


def test_memory_of_the_client_is_read_without_a_copy() -> None:
    frame = memoryview(bytearray(FRAME))
    assert encode(frame, encoding=compiled()) == encode(FRAME, encoding=compiled())


@pytest.mark.parametrize(
    "other",
    [
        data_frame(insert(b"1", b"x", of=RELATION_ID + 1)),
        data_frame(update(b"1", b"x", key=(b"2", None))),
        data_frame(insert(None, b"x")),
        data_frame(insert(b"1", b"x" * 2000)),
        data_frame(insert(b"1", b"\xff")),
        FRAME[:-1],
        FRAME + b"\0",
        b"k",
        b"",
    ],
)
def test_a_run_ends_before_a_frame_that_python_has_to_look_at(other: bytes) -> None:
    pairs, following, _ = encode(FRAME, other, FRAME, encoding=compiled())
    assert (len(pairs), following) == (1, other)
    assert encode(other, FRAME, encoding=compiled()) == ([], other, 0)


def test_an_update_is_taken_where_updates_are_wanted() -> None:
    frame = data_frame(update(b"1", b"x"))
    [(_, value)], following, _ = encode(frame, encoding=compiled())
    assert (value[:9], following) == (b'{"op":"u"', None)
    assert encode(frame, encoding=compiled(), updates=False)[1] == frame


@pytest.mark.parametrize("limit", [{"rows_max": 2}, {"bytes_max": 150}])
def test_a_run_ends_with_its_limits(limit: dict[str, int]) -> None:
    pairs, following, size = encode(FRAME, FRAME, FRAME, encoding=compiled(), **limit)
    assert (len(pairs), following, size) == (2, None, 198)


def test_numbers_beyond_the_tags_are_left_to_python() -> None:
    pairs, following, _ = encode(FRAME, FRAME, encoding=compiled(), seq=0xFFFF_FFFF)
    assert (len(pairs), following) == (1, FRAME)


def copied(*lines: bytes, start: int = 0) -> Any:
    kernel: Any = compiled().kernel(encoder())
    return kernel.encode_copied(list(lines), start, prefix=b"p", source=b"{", lsn=1, time=b"2")


LINE = b"1\tx\n"


def test_lines_of_a_copy_are_rows_of_a_snapshot() -> None:
    [(key, value)], following, size = copied(LINE)
    assert (key, value[:28], following, size) == (b'{"id":1}', b'{"op":"r","tag":"p00000000",', 1, len(value))


def test_what_copy_escapes_is_as_it_was() -> None:
    rows = [(b"1", b"\b\f\n\r\t\v\\N"), (b"2", None), (b"3", b""), (b"4", b"\\.")]
    pairs, following, _ = copied(*map(copy_line, rows))
    assert following == 4
    afters = [orjson.loads(value[: value.index(b',"source"')] + b"}")["after"] for _, value in pairs]
    assert [after["note"] for after in afters] == ["\b\f\n\r\t\v\\N", None, "", "\\."]


@pytest.mark.parametrize(
    "other",
    [
        b"",
        b"\n",
        b"1\tx",
        b"1\n",
        b"1\tx\ty\n",
        b"1\tx\\\n",
        b"1\t\\x\n",
        b"1\tx\\N\n",
        b"1\t\\Nx\n",
        b"1\\\tx\n",
        b"\\N\tx\n",
        b"1\t\xff\n",
        b"1\t" + b"x" * 70_000 + b"\n",
    ],
)
def test_a_line_that_python_has_to_look_at_ends_it(other: bytes) -> None:
    pairs, following, _ = copied(LINE, other, LINE)
    assert (len(pairs), following) == (1, 1)
    assert copied(LINE, other, LINE, start=2)[1] == 3


def test_a_table_with_a_type_that_it_doesnt_know_has_no_kernel() -> None:
    encoding = compiled()
    assert encoding.kernel(encoder(column("id", "int8"), column("list", is_array=True))) is None
    assert encoding.kernel(encoder(column("id", "int8"), column("list"))) is not None


@pytest.mark.parametrize("key", [("id", "id"), ()])
def test_the_kernel_refuses_columns_that_make_no_sense(key: tuple[str, ...]) -> None:
    module: Any = compiled().module
    with pytest.raises(ValueError, match="make no sense"):
        module.RowKernel([(b'"id"', module.TEXT)] if key else [], tuple(map(len, key))[:2])


def test_it_can_be_switched_off() -> None:
    encoding = row_encoding("off")
    assert (encoding.module, str(encoding)) == (None, "Python code: LOCKSTEP_KERNEL=off")
    assert encoding.kernel(encoder()) is None


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="LOCKSTEP_KERNEL is 'on'"):
        row_encoding("on")


def test_where_it_is_required_and_missing_capture_doesnt_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.event_format.compiled.compiled_code", lambda: CompiledCode(None, "it isn't here"))
    assert str(row_encoding("auto")) == "Python code: it isn't here"
    with pytest.raises(ConfigurationError, match="it isn't here"):
        row_encoding("require")


def test_a_kernel_of_other_code_isnt_used() -> None:
    real: Any = compiled().module

    class Older:
        def __init__(self, *arguments: Any) -> None:
            self._kernel = real.RowKernel(*arguments)

        def encode(self, *arguments: Any, **options: Any) -> Any:
            pairs, following, size = self._kernel.encode(*arguments, **options)
            return [(key, value.replace(b"before", b"earlier")) for key, value in pairs], following, size

        def encode_copied(self, *arguments: Any, **options: Any) -> Any:
            return self._kernel.encode_copied(*arguments, **options)

    class WithoutCopies:
        def __init__(self, *arguments: Any) -> None:
            self.encode = real.RowKernel(*arguments).encode

    kinds = {name: getattr(real, name) for name in dir(real) if name.isupper()}
    assert agrees(real)
    for other in (Older, WithoutCopies):
        assert not agrees(cast(ModuleType, SimpleNamespace(**kinds, RowKernel=other)))
    assert not agrees(cast(ModuleType, SimpleNamespace(**kinds)))
    assert not agrees(cast(ModuleType, SimpleNamespace()))
