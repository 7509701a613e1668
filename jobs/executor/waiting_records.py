"""Records that wait for the end of a step: on disk, so that memory holds them however many they are."""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any, Final, NoReturn

import pyarrow as pa

from cdc.model.errors import LockstepError

ROWS: Final = 10_000
"""How many come back at once."""


class WaitingRecords:
    """Tables of one schema, in their order. Nobody else sees the file, which goes with the process, however that ends.

    Raises LockstepError for a full disk and the like.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._writer: Any = None
        self.rows = 0

    def add(self, records: pa.Table) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as this
                self._writer = pa.ipc.new_stream(self._file, records.schema)
            self._writer.write_table(records, max_chunksize=ROWS)
        except OSError as error:
            self._refused(error)
        self.rows += records.num_rows

    def tables(self) -> Iterator[pa.Table]:
        """All of them, some at a time. Nothing can be added after that before ``clear``."""
        if self._file is None:
            return
        try:
            self._writer.close()
            self._file.flush()
            self._file.seek(0)
            with pa.ipc.open_stream(self._file) as stream:
                for batch in stream:
                    yield pa.Table.from_batches([batch])
        except OSError as error:
            self._refused(error)

    def clear(self) -> None:
        """Harmless when it is empty."""
        if self._file is not None:
            self._file.close()
        self._file = self._writer = None
        self.rows = 0

    def _refused(self, error: OSError) -> NoReturn:
        with suppress(OSError):  # it has something to write still
            self.clear()
        raise LockstepError(
            "records that wait for the end of a step can't be kept in a temporary file:"
            f" {error.strerror or type(error).__name__}",
            hint=f"make room in {tempfile.gettempdir()}, or set TMPDIR to a larger place; nothing was applied in part",
        ) from error
