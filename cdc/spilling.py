"""A map that spills into a file: it can hold data about any number of rows in a limited amount of memory."""

import contextlib
import hashlib
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

import lmdb

from cdc.model.closing import Closing
from cdc.model.errors import LockstepError

MEMORY_BYTES: Final = 64 * 1024 * 1024
"""The size of one map at which it goes to its file."""

_ENTRY_BYTES: Final = 200
"""Python's overhead for an entry, besides the bytes themselves."""

MAP_BYTES: Final = 256 * 1024 * 1024
_KEY_BYTES_MAX: Final = 500
"""Longer keys are hashed: LMDB allows 511 bytes."""

_PLAIN, _HASHED = b"p", b"h"
_LENGTH: Final = struct.Struct("<I")


class SpillingMap(Closing):
    """Bytes to bytes, for one thread. Beyond ``MEMORY_BYTES`` it continues in a temporary file in ``directory``. The
    file is private and vanishes with the process, however that ends. Every method raises LockstepError if the file
    can't be written."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._memory_bytes = MEMORY_BYTES
        self._recent: dict[bytes, bytes | None] = {}
        """Changes that the file lacks; None: removed."""
        self._bytes = 0
        self._file: lmdb.Environment | None = None
        self._map_bytes = MAP_BYTES

    @property
    def spilled(self) -> bool:
        return self._file is not None

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        if self._file is None or key in self._recent:
            return self._recent.get(key)
        try:
            with self._file.begin() as transaction:
                stored = transaction.get(_file_key(key))
        except lmdb.Error as error:
            self._refused(error)
        return None if stored is None else _entry(_file_key(key), stored)[1]

    def __setitem__(self, key: bytes, value: bytes) -> None:
        before = self._recent.get(key)
        if before is None and key not in self._recent:
            self._bytes += len(key) + _ENTRY_BYTES
        self._bytes += len(value) - len(before or b"")
        self._recent[key] = value
        if self._bytes > self._memory_bytes:
            self._spill()

    def discard(self, key: bytes) -> None:
        """Remove a key, if present."""
        before = self._recent.pop(key, None)
        if before is not None:
            self._bytes -= len(key) + len(before) + _ENTRY_BYTES
        if self._file is not None:
            self._recent[key] = None
            self._bytes += len(key) + _ENTRY_BYTES
            if self._bytes > self._memory_bytes:
                self._spill()

    def __iter__(self) -> Iterator[bytes]:
        """The keys, in no particular order. The map must not change meanwhile."""
        if self._file is None:
            yield from self._recent
            return
        self._spill()
        try:
            with self._file.begin() as transaction:
                for file_key, stored in transaction.cursor():
                    yield _entry(file_key, stored)[0]
        except lmdb.Error as error:
            self._refused(error)

    def clear(self) -> None:
        """Delete everything, the file too."""
        self._recent.clear()
        self._bytes = 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        self.clear()

    def _spill(self) -> None:
        # In the order of the keys, which is several times as fast.
        changes = sorted((_file_key(key), key, value) for key, value in self._recent.items())
        while True:
            try:
                file = self._file or self._open()
                with file.begin(write=True) as transaction:
                    for file_key, key, value in changes:
                        if value is None:
                            transaction.delete(file_key)
                        else:
                            transaction.put(file_key, _stored(key, value))
                break
            except lmdb.MapFullError:
                self._map_bytes *= 2
                file.set_mapsize(self._map_bytes)
            except (lmdb.Error, OSError) as error:
                self._refused(error)
        self._recent.clear()
        self._bytes = 0

    def _open(self) -> lmdb.Environment:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, path = tempfile.mkstemp(prefix="spilled-", dir=self._directory)
        os.close(descriptor)
        try:
            self._file = lmdb.open(
                path, subdir=False, map_size=self._map_bytes, sync=False, metasync=False, lock=False, max_spare_txns=1
            )
        finally:
            with contextlib.suppress(OSError):
                Path(path).unlink()
        return self._file

    def _refused(self, error: Exception) -> NoReturn:
        raise LockstepError(
            f"changes that don't fit into memory can't be written to {self._directory}: {error}",
            hint="look for a full disk or missing permissions there, or name another directory:"
            " pipeline.data_directory in lockstep.toml. Nothing was skipped",
        ) from error


def _file_key(key: bytes) -> bytes:
    return _PLAIN + key if len(key) <= _KEY_BYTES_MAX else _HASHED + hashlib.sha256(key).digest()


def _stored(key: bytes, value: bytes) -> bytes:
    return value if len(key) <= _KEY_BYTES_MAX else _LENGTH.pack(len(key)) + key + value


def _entry(file_key: bytes, stored: bytes) -> tuple[bytes, bytes]:
    """(key, value)"""
    if file_key.startswith(_PLAIN):
        return file_key[1:], stored
    (length,) = _LENGTH.unpack_from(stored)
    end = _LENGTH.size + length
    return stored[_LENGTH.size : end], stored[end:]
