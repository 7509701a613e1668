"""Where the changes of a running transaction wait for its commit: in a file that goes with the process."""

import contextlib
import errno
import os
import struct
import tempfile
from array import array
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate, chain, compress, pairwise
from pathlib import Path
from typing import Final, NoReturn

from cdc.model.errors import NotInParts
from cdc.protocol.walsender import Frame

_BUFFER_BYTES: Final = 256 * 1024
_BUFFERS_BYTES: Final = 16 * 1024 * 1024
"""What one transaction keeps in memory before it goes to its file, and what all of them do together."""

_BLOCK: Final = struct.Struct("<QQ")
"""Before each block of a file: how many frames it has, and their bytes. Their lengths and owners come first."""
_LENGTHS, _OWNERS = "Q", "L"
_FRAME_BYTES: Final = array(_LENGTHS).itemsize + array(_OWNERS).itemsize
"""What a frame takes beside itself."""


class SpoolSpace:
    """The directory of the files, and how much all of them may take."""

    def __init__(self, directory: Path, *, bytes_max: int) -> None:
        self._directory = directory
        self._bytes_max = bytes_max
        self._bytes = 0
        self._open = 0
        self.buffer_bytes = _BUFFER_BYTES
        """What one transaction may keep in memory, as many as there are."""

    def opened(self) -> None:
        """Count a transaction."""
        self._count(1)

    def closed(self, size: int) -> None:
        """A transaction with so many bytes in its file is gone."""
        self._count(-1)
        self._bytes -= size

    def _count(self, more: int) -> None:
        self._open += more
        self.buffer_bytes = min(_BUFFER_BYTES, _BUFFERS_BYTES // max(1, self._open))

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

    Nobody else sees the file, and it goes with the process, however that ends. A file has blocks, so that what is done
    for each frame on its way out is a slice.
    """

    def __init__(self, space: SpoolSpace) -> None:
        self._space = space
        self._file: int | None = None
        self._written = 0
        self._lengths = array(_LENGTHS)
        self._owners = array(_OWNERS)
        """The (sub)transactions that may roll back the frames."""
        self._buffer = bytearray()
        space.opened()

    def append(self, subxid: int, before: Frame, after: Frame) -> None:
        """Add a frame that comes as two pieces. Raises NotInParts when it can't be kept."""
        buffer, lengths = self._buffer, self._lengths
        lengths.append(len(before) + len(after))
        self._owners.append(subxid)
        buffer += before
        buffer += after
        if len(buffer) + _FRAME_BYTES * len(lengths) >= self._space.buffer_bytes:
            self._flush()

    def frames(self, *, without: Collection[int]) -> Iterator[Frame]:
        """All frames but those of subtransactions that were rolled back. Raises NotInParts when it can't be read."""
        return chain.from_iterable(self._blocks(without))

    def _blocks(self, without: Collection[int]) -> Iterator[Iterator[Frame]]:
        at = 0
        while at < self._written:
            count, size = _BLOCK.unpack(self._read(at, _BLOCK.size))
            at += _BLOCK.size
            tables, total = _FRAME_BYTES * count, _FRAME_BYTES * count + size
            with memoryview(self._read(at, total)) as view:
                lengths, owners = array(_LENGTHS), array(_OWNERS)
                middle = count * lengths.itemsize
                lengths.frombytes(view[:middle])
                owners.frombytes(view[middle:tables])
                content = bytes(view[tables:])
            at += total
            yield _frames(content, lengths, owners, without)
        yield _frames(bytes(self._buffer), self._lengths, self._owners, without)

    def close(self) -> None:
        """Forget everything, the file too."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._space.closed(self._written)
        self._written = 0
        self._empty()

    def _empty(self) -> None:
        self._lengths = array(_LENGTHS)
        self._owners = array(_OWNERS)
        self._buffer = bytearray()

    def _flush(self) -> None:
        if self._file is None:
            self._file = self._space.create()
        head = _BLOCK.pack(len(self._lengths), len(self._buffer)) + self._lengths.tobytes() + self._owners.tobytes()
        self._space.take(len(head) + len(self._buffer))
        try:
            for piece in (head, self._buffer):
                written = 0
                with memoryview(piece) as view:
                    while written < len(view):
                        written += os.write(self._file, view[written:])
                self._written += written
        except OSError as error:
            self._space.refused(error)
        self._empty()

    def _read(self, at: int, count: int) -> bytes:
        """So many bytes of the file from there on, which were written."""
        assert self._file is not None
        pieces = []
        try:
            while count and (piece := os.pread(self._file, count, at)):
                pieces.append(piece)
                at, count = at + len(piece), count - len(piece)
        except OSError as error:
            self._space.refused(error)
        if count:
            self._space.refused(OSError(errno.EIO, "the file is shorter than what was written"))
        return b"".join(pieces)


def _frames(content: bytes, lengths: Iterable[int], owners: Iterable[int], without: Collection[int]) -> Iterator[Frame]:
    view = memoryview(content)
    frames = [view[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]
    return compress(frames, (owner not in without for owner in owners)) if without else iter(frames)
