"""The newest event of each key while a view's state is built: on disk, so that memory holds it whatever comes."""

import contextlib
import hashlib
import shutil
import struct
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

import lmdb

from cdc.model.errors import LockstepError
from cdc.model.event import Events, Position, TableEvents
from cdc.model.table import TableName
from cdc.model.tag import TEXT_LENGTH
from jobs.executor.append_only import empties

_MAP_BYTES: Final = 64 * 1024 * 1024
_KEY_MAX: Final = 400
"""A longer key is known by its digest; the key itself is beside the row then."""

_NUMBER: Final = struct.Struct(">H")
_LENGTH: Final = struct.Struct("<I")
_NOWHERE: Final = Position("", 0, 0)


class Inbox:
    """Events by table and key; of one key the one with the greatest tag stays. For one thread of one process.

    Of tables that are ``append_only``, those events stay that nothing has emptied since. What was there before is
    removed, and so is all of it at the end. Raises LockstepError for a full disk and the like.
    """

    def __init__(
        self, directory: Path, tables: Sequence[TableName], *, append_only: Collection[TableName] = ()
    ) -> None:
        self._directory = directory
        self._tables = tables
        self._numbers = {table: _NUMBER.pack(number) for number, table in enumerate(tables)}
        self._emptied = dict.fromkeys(append_only, "")
        self._map_bytes = _MAP_BYTES
        self.rows = 0
        """How many keys it has."""
        shutil.rmtree(directory, ignore_errors=True)
        try:
            directory.mkdir(mode=0o700, parents=True)
            # It is thrown away whenever its process ends, so nothing has to reach the disk.
            self._environment = lmdb.open(
                str(directory), map_size=_MAP_BYTES, sync=False, metasync=False, lock=False, mode=0o600, readahead=False
            )
        except (lmdb.Error, OSError) as error:
            self._refused(error)

    def close(self) -> None:
        """Remove it. Harmless when it was closed before."""
        self._environment.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def add(self, events: Events) -> None:
        """Take events in, in any order."""
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    new = sum(self._add(transaction, of_table) for of_table in events.tables)
                self.rows += new
                return
            except lmdb.MapFullError:
                self._map_bytes *= 2
                try:
                    self._environment.set_mapsize(self._map_bytes)
                except (lmdb.Error, OSError) as error:
                    self._refused(error)
            except lmdb.Error as error:
                self._refused(error)

    def _add(self, transaction: "lmdb.Transaction[bytes]", events: TableEvents) -> int:
        number = self._numbers[events.table]
        new = 0
        emptied = self._emptied.get(events.table)
        for key, tag, row in zip(events.keys, events.tags, events.rows, strict=True):
            if emptied is not None and empties(key, row):
                self._emptied[events.table] = max(self._emptied[events.table], tag)
            own = number + (key if len(key) <= _KEY_MAX else hashlib.blake2b(key).digest())
            known = transaction.get(own)
            if known is not None and known[:TEXT_LENGTH].decode() > tag:
                continue
            new += known is None
            transaction.put(own, tag.encode() + _LENGTH.pack(len(key)) + key + (b"" if row is None else row))
        return new

    def portions(self, rows: int) -> Iterator[TableEvents]:
        """All rows, table by table, so many at a time. Deleted ones are left out."""
        for table in self._tables:
            keys: list[bytes] = []
            tags: list[str] = []
            values: list[bytes | None] = []
            for key, tag, row in self._of(table):
                keys.append(key)
                tags.append(tag)
                values.append(row)
                if len(keys) == rows:
                    yield TableEvents.from_log(table, keys, tags, values, lambda _: _NOWHERE)
                    keys, tags, values = [], [], []
            if keys:
                yield TableEvents.from_log(table, keys, tags, values, lambda _: _NOWHERE)

    def _of(self, table: TableName) -> Iterator[tuple[bytes, str, bytes]]:
        number = self._numbers[table]
        emptied = self._emptied.get(table, "")
        with self._environment.begin() as transaction, contextlib.closing(transaction.cursor()) as cursor:
            if not cursor.set_range(number):
                return
            for own, stored in cursor.iternext():
                if own[: _NUMBER.size] != number:
                    return
                (length,) = _LENGTH.unpack_from(stored, TEXT_LENGTH)
                begin = TEXT_LENGTH + _LENGTH.size
                row = stored[begin + length :]
                tag = stored[:TEXT_LENGTH].decode()
                if row and tag >= emptied:
                    yield stored[begin : begin + length], tag, row

    def _refused(self, error: Exception) -> NoReturn:
        raise LockstepError(
            f"the rows from which a view is built can't be kept in {self._directory}: {error}",
            hint="look for a full disk or missing permissions; spark.view_directory says where they are",
        ) from error
