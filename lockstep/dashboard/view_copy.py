"""A copy of a view's result in a file, with the offset at which each row came, for readers that begin or catch up.

One thread writes it, step by step. Each reader sees it as of one step, whatever is written meanwhile.
"""

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from cdc.model.closing import Closing
from cdc.model.errors import LockstepError
from cdc.model.event import value_text
from monitor.view_feed import ViewRecord

GONE_S: Final = 24 * 3600.0
"""How long the copy remembers a deleted row. A reader that was away for longer starts from the beginning."""

_FILE: Final = "rows.sqlite"


@dataclass(frozen=True, slots=True)
class At:
    """A step: the ``number``-th that was read here. Rows of later steps come at offset ``end`` or after it."""

    number: int
    end: int
    epoch: int
    lsn: int


Filter = Mapping[str, str]
"""Columns of the key -> the value, as text."""


class ViewCopy:
    """Writes the copy, in one thread. ``directory`` is empty, and its owner removes it. Raises LockstepError if the
    file can't be written."""

    def __init__(self, directory: Path, key: Sequence[str]) -> None:
        self._file = directory / _FILE
        self._key = tuple(key)
        with closing(_opened(self._file)) as connection:
            connection.execute("pragma journal_mode = wal")
            columns = ", ".join(f"k{place} text not null" for place in range(len(key)))
            connection.execute(
                f"create table rows (key text primary key, at integer not null, gone_s real, row text, {columns})"
            )
            connection.execute("create index by_offset on rows (at)")
            connection.execute("create index by_age on rows (gone_s) where row is null")
            for place in range(len(key)):
                connection.execute(f"create index by_k{place} on rows (k{place})")
            connection.execute("create table step (number integer, end integer, epoch integer, lsn integer)")
            connection.execute("insert into step values (0, 0, 0, 0)")
        self._connection: sqlite3.Connection | None = None

    def _writing(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = _opened(self._file)
        if not self._connection.in_transaction:
            self._connection.execute("begin immediate")
        return self._connection

    def add(self, records: Sequence[ViewRecord], *, now_s: float) -> None:
        """Add rows of the next step. Readers see them once it is committed."""
        places = ", ".join("?" * (4 + len(self._key)))
        rows = []
        for record in records:
            key = orjson.loads(record.key)
            values = [value_text(key[name]) for name in self._key]
            row = None if record.value is None else record.value.decode()
            rows.append((record.key.decode(), record.offset, None if row is not None else now_s, row, *values))
        try:
            self._writing().executemany(f"insert or replace into rows values ({places})", rows)
        except sqlite3.Error as error:
            raise _refused(self._file, error) from error

    def commit(self, at: At, *, now_s: float) -> None:
        """Commit the added rows: they are the result as of this step."""
        try:
            writing = self._writing()
            writing.execute("delete from rows where row is null and gone_s < ?", (now_s - GONE_S,))
            writing.execute("update step set number = ?, end = ?, epoch = ?, lsn = ?", _numbers(at))
            writing.execute("commit")
        except sqlite3.Error as error:
            raise _refused(self._file, error) from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def reader(self) -> "CopyReader":
        return CopyReader(self._file, self._key)


class CopyReader(Closing):
    """The copy as of one step, ``at``. Close it soon: the file grows meanwhile. Any thread may read it, one at a time.
    Closing it ends a read in progress."""

    def __init__(self, file: Path, key: tuple[str, ...]) -> None:
        self._key = key
        # SQLite's module crashes if a connection is closed while another thread uses it.
        self._use = threading.Lock()
        self._is_closed = False
        self._connection = _opened(file)
        self._connection.execute("begin")
        self.at = At(*self._connection.execute("select number, end, epoch, lsn from step").fetchone())

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._connection.interrupt()
        with self._use:
            self._connection.close()

    def rows(self, wanted: Filter, *, portion: int) -> Iterator[list[tuple[str, str | None]]]:
        """All rows with these values in their key, in lists of at most ``portion``: the key and the row, both JSON."""
        return self._found("row is not null", [], wanted, portion)

    def since(self, end: int, wanted: Filter, *, portion: int) -> Iterator[list[tuple[str, str | None]]]:
        """What has changed at this offset or after it, each key once. A row of None: the key has no row any more."""
        return self._found("at >= ?", [end], wanted, portion)

    def _found(
        self, condition: str, values: list[int | str], wanted: Filter, portion: int
    ) -> Iterator[list[tuple[str, str | None]]]:
        conditions = [condition, *(f"k{self._key.index(name)} = ?" for name in wanted)]
        query = f"select key, row from rows where {' and '.join(conditions)}"
        cursor: sqlite3.Cursor | None = None
        while True:
            with self._use:
                if self._is_closed:
                    return
                if cursor is None:
                    cursor = self._connection.execute(query, [*values, *wanted.values()])
                found = cursor.fetchmany(portion)
            if not found:
                return
            yield found


def _numbers(at: At) -> tuple[int, int, int, int]:
    return at.number, at.end, at.epoch, at.lsn


def _opened(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    connection.execute("pragma synchronous = off")  # the file is thrown away whenever its process ends
    return connection


def _refused(file: Path, error: sqlite3.Error) -> LockstepError:
    return LockstepError(
        f"the rows of a view can't be kept in {file.parent}: {error}",
        hint="look for a full disk or missing permissions; TMPDIR says where they are",
    )
