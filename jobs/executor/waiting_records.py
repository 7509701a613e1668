"""Records that wait on disk for the end of a step, so that memory doesn't limit their number."""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any, Final, NoReturn

import pyarrow as pa

from cdc.model.errors import LockstepError

ROWS: Final = 10_000
"""How many are read back at once."""


class WaitingRecords:
    """Tables of one schema, in their order. The file is private and goes with the process, however that ends. Raises
    LockstepError for a full disk and the like."""

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
        """All tables, in slices. After this, call ``clear`` before the next ``add``."""
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
        if self._file is not None:
            self._file.close()
        self._file = self._writer = None
        self.rows = 0

    def _refused(self, error: OSError) -> NoReturn:
        with suppress(OSError):  # it may still have something to write
            self.clear()
        raise LockstepError(
            "records that wait for the end of a step can't be kept in a temporary file:"
            f" {error.strerror or type(error).__name__}",
            hint=f"make room in {tempfile.gettempdir()}, or set TMPDIR to a larger place; nothing was applied in part",
        ) from error
