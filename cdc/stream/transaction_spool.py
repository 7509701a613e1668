"""Where the changes of a running transaction wait for its commit: in a file that goes with the process."""

import contextlib
import errno
import os
import struct
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NoReturn

from cdc.model.errors import NotInParts
from cdc.protocol.walsender import Frame

_BLOCK_BYTES: Final = 1024 * 1024
"""How much is read at once."""

_BUFFER_BYTES: Final = 256 * 1024
_BUFFERS_BYTES: Final = 16 * 1024 * 1024
"""What one transaction keeps in memory before it goes to its file, and what all of them do together."""

_RECORD: Final = struct.Struct("<QI")
"""Before each frame: its length, and the transaction that may roll it back."""


class SpoolSpace:
    """The directory of the files, and how much all of them may take."""

    def __init__(self, directory: Path, *, bytes_max: int) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._bytes = 0
        self._open = 0

    def opened(self) -> None:
        """Count a transaction."""
        self._open += 1

    def closed(self, size: int) -> None:
        """A transaction with so many bytes in its file is gone."""
        self._open -= 1
        self._bytes -= size

    @property
    def buffer_bytes(self) -> int:
        """What one transaction may keep in memory, as many as there are."""
        return min(_BUFFER_BYTES, _BUFFERS_BYTES // max(1, self._open))

    def take(self, size: int) -> None:
        """Count bytes that are going to be written. Raises NotInParts when there is no room for them."""
        if self._bytes + size > self._bytes_max:
            raise NotInParts(
                f"large transactions that haven't committed take more than {self._bytes_max} bytes in"
                f" {self._directory} (capture.spool_bytes), so PostgreSQL is to keep them"
            )
        self._bytes += size

    def create(self) -> int:
        """A new file that nobody else sees: its descriptor. Raises NotInParts."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, path = tempfile.mkstemp(prefix="transaction-", dir=self._directory)  # readable by us alone
        except OSError as error:
            self.refused(error)
        with contextlib.suppress(OSError):
            Path(path).unlink()
        return descriptor

    def refused(self, error: OSError) -> NoReturn:
        """Raises NotInParts for what the system said."""
        raise NotInParts(
            f"a large transaction can't wait for its commit in {self._directory} (capture.spool_directory):"
            f" {error.strerror}; PostgreSQL is to keep it"
        ) from error


class TransactionSpool:
    """Frames of one transaction, in order. Small ones stay in memory; others have a file.

    Nobody else sees the file, and it goes with the process, however that ends.
    """

    def __init__(self, space: SpoolSpace) -> None:
        self._space = space
        self._file: int | None = None
        self._written = 0
        self._buffer = bytearray()
        space.opened()

    def append(self, subxid: int, before: Frame, after: Frame) -> None:
        """Add a frame that comes as two pieces. Raises NotInParts when it can't be kept."""
        buffer = self._buffer
        buffer += _RECORD.pack(len(before) + len(after), subxid)
        buffer += before
        buffer += after
        if len(buffer) >= self._space.buffer_bytes:
            self._flush()

    def frames(self, *, without: Collection[int]) -> Iterator[Frame]:
        """All frames but those of subtransactions that were rolled back. Raises NotInParts when it can't be read."""
        at, wanted, size = 0, 0, self._written + len(self._buffer)
        while at < size:
            view = memoryview(self._read(at, min(max(wanted, _BLOCK_BYTES), size - at)))
            end, wanted, in_block = len(view), 0, 0
            while end - in_block >= _RECORD.size:
                length, subxid = _RECORD.unpack_from(view, in_block)
                start = in_block + _RECORD.size
                if length > end - start:
                    wanted = _RECORD.size + length
                    break
                in_block = start + length
                if subxid not in without:
                    yield view[start:in_block]
            at += in_block

    def close(self) -> None:
        """Forget everything, the file too."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._space.closed(self._written)
        self._written = 0
        self._buffer = bytearray()

    def _flush(self) -> None:
        if self._file is None:
            self._file = self._space.create()
        self._space.take(len(self._buffer))
        written = 0
        try:
            with memoryview(self._buffer) as view:
                while written < len(view):
                    written += os.write(self._file, view[written:])
        except OSError as error:
            self._space.refused(error)
        self._written += written
        self._buffer.clear()

    def _read(self, at: int, count: int) -> bytes:
        """So many bytes from there on, which are there."""
        if at >= self._written:
            return bytes(self._buffer[at - self._written : at - self._written + count])
        assert self._file is not None
        in_file = min(count, self._written - at)
        pieces = []
        try:
            while in_file and (piece := os.pread(self._file, in_file, at)):
                pieces.append(piece)
                at, in_file, count = at + len(piece), in_file - len(piece), count - len(piece)
        except OSError as error:
            self._space.refused(error)
        if in_file:
            self._space.refused(OSError(errno.EIO, "the file is shorter than what was written"))
        return b"".join(pieces) + bytes(self._buffer[:count])
