"""Rows through the compiled kernel and through Python, to compare the results."""

import os
import shlex
import shutil
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.capture.questions import Event
from cdc.event_format.compiled import RowEncoding, row_encoding
from cdc.model.errors import LockstepError
from cdc.model.lsn import Lsn
from cdc.model.table import Table, TableName
from cdc.protocol.compiled_code import load_compiled
from cdc.protocol.control_records import CaptureState
from cdc.protocol.pgoutput import Begin
from cdc.toast.memory import MemoryStore
from cdc.toast.rule import ToastRule
from sinks.sink_kernel import agrees
from tests.edges import Capture
from tests.history import relations
from tests.wal import COMMIT_TIME_US, HANDOFF, data_frame

NO_COMPILER: Final = "nothing can be compiled here"

COMMIT_LSN: Final = HANDOFF + 0x1000


def can_compile() -> bool:
    """Whether `make setup` finds a C compiler and Python's headers."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return shutil.which(compiler) is not None and headers.exists()


def compiled() -> RowEncoding:
    """The compiled kernel. Without one, skips the test, which is fine only if none can be built."""
    encoding = row_encoding("auto")
    if encoding.module is None:
        pytest.skip(f"run make setup: {encoding.why}" if can_compile() else NO_COMPILER)
    return encoding


@dataclass(frozen=True)
class Outcome:
    """The result of frames: batches, states, the error that ended it, and what is remembered of large values."""

    batches: Sequence[Sequence[Event]]
    states: Sequence[CaptureState]
    error: tuple[type[Exception], str, str | None] | None
    remembered: object

    @property
    def events(self) -> list[Event]:
        return [event for batch in self.batches for event in batch]


class CountingKernel:
    def __init__(self, kernel: Any, rows: list[int]) -> None:
        self._kernel = kernel
        self._rows = rows

    def encode(self, *arguments: Any, **options: Any) -> Any:
        encoded = self._kernel.encode(*arguments, **options)
        self._rows.append(len(encoded[0]))
        return encoded


def outcome(
    frames: Sequence[bytes],
    shapes: Sequence[Table],
    encoding: RowEncoding | None,
    *,
    rules: Sequence[ToastRule] = (),
    encoded: list[int] | None = None,
    **options: Any,
) -> Outcome:
    """Capture these frames, by Python if there is no ``encoding``. Lengths of runs go to ``encoded``."""
    memory = MemoryStore()
    capture = Capture(frames, shapes=shapes, parts={"memory": memory}, **options)
    for index, published in enumerate(capture.assembler.relations.tables.values()):
        published.toast = rules[index] if rules else None
        kernel = None if encoding is None else encoding.kernel(published.encoder)
        published.kernel = None if kernel is None else CountingKernel(kernel, [] if encoded is None else encoded)
    error = None
    try:
        capture.run()
    except LockstepError as raised:
        error = (type(raised), str(raised), raised.hint)
    assert capture.publisher.batches or error or not frames
    return Outcome(capture.publisher.batches, capture.publisher.states, error, dict(memory._rows))


def framed(messages: Sequence[bytes], shapes: Sequence[Table], *, lsn: int = HANDOFF + 0x800) -> list[bytes]:
    """Frames of an open transaction that describes these tables and goes on with messages of any bytes."""
    head = data_frame(Begin(Lsn(COMMIT_LSN), COMMIT_TIME_US, 700), lsn)
    start = head[:25]
    return [head, *(data_frame(shape) for shape in relations(*shapes)), *(start + message for message in messages)]


def name(number: int) -> TableName:
    return TableName("public", f"t{number}")


def compiled_sink_kernel() -> Any:
    """The compiled module of the sinks, likewise."""
    code = load_compiled("sinks._kernel", agrees)
    if code.module is None:
        pytest.skip(f"run make setup: {code.why}" if can_compile() else NO_COMPILER)
    return code.module
