"""The state in a file: one LMDB environment, one write transaction per step.

A step is stored whole or not at all, whenever the process is killed. After a power failure the last step may be
missing, together with its offsets: it is done again from the log. LMDB's keys have at most 511 bytes. A longer key is
stored as its first bytes and a digest of all of it, with the whole key beside the value. Keys with the same first bytes
are put in order when they are read.
"""

import contextlib
import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import lmdb

from cdc.model.errors import LockstepError, Overtaken
from views.state.contract import Entry, Reading, Size, Step, UnusableState
from views.state.memory import after_prefix

T = TypeVar("T")

FILE_NAME: Final = "view.lmdb"
FORMAT: Final = b"2"

_COPY_NAME: Final = f"{FILE_NAME}.compact"
_LOCK: Final = "-lock"
"""The suffix that LMDB gives its lock file."""

COPIED_AT_ONCE: Final = 20_000
_MAP_BYTES: Final = 64 * 1024 * 1024
_PLAIN_MAX: Final = 447
"""Longer keys are cut. With kind and digest, a key stays below LMDB's 511 bytes."""

_DIGEST_BYTES: Final = 32
_CUT_LENGTH: Final = 1 + _PLAIN_MAX + _DIGEST_BYTES
_LENGTH: Final = struct.Struct("<I")
_DATA, _OWN = b"d", b"s"
_STORED_MAX: Final = len(_DATA) + _PLAIN_MAX
_IS_FORMAT, _IS_IDENTITY, _IS_WRITER = _OWN + b"format", _OWN + b"identity", _OWN + b"writer"
_OWN_ENTRIES: Final = 3
_UNUSABLE = (lmdb.InvalidError, lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)


class FileState:
    """A State in a directory, for one thread of one process. ``identity`` says what the state belongs to."""

    begin = _DATA

    def __init__(self, directory: Path, *, identity: str, map_bytes: int = _MAP_BYTES) -> None:
        """Open or create it. Raises UnusableState for the state of another view, version or program."""
        self._directory = directory
        self._map_bytes = map_bytes
        self._identity = identity.encode()
        self._writer = os.urandom(16)
        self._writer_before: bytes | None = None
        self._environment: lmdb.Environment | None = None
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._remove_copy()
            self._open()
            self._written(self._take)
        except (lmdb.Error, OSError) as error:
            self._refused("opened", error)
        except LockstepError:
            self.close()
            raise

    def _open(self) -> None:
        self._environment = _environment(self._directory / FILE_NAME, self._map_bytes)
        self._environment.reader_check()
        self._map_bytes = self._environment.info()["map_size"]

    def _take(self, transaction: "lmdb.Transaction[bytes]") -> None:
        on_disk = transaction.get(_IS_FORMAT)
        if on_disk is None and transaction.stat()["entries"]:
            self._foreign("was written by another program")
        if on_disk not in (None, FORMAT):
            self._foreign("was written by another version of Lockstep")
        if on_disk is not None and transaction.get(_IS_IDENTITY) != self._identity:
            self._foreign("belongs to another query, or to columns of other types")
        self._writer_before = transaction.get(_IS_WRITER)
        self._mark(transaction)

    def _mark(self, transaction: "lmdb.Transaction[bytes]") -> None:
        transaction.put(_IS_FORMAT, FORMAT)
        transaction.put(_IS_IDENTITY, self._identity)
        transaction.put(_IS_WRITER, self._writer)

    @property
    def writer(self) -> bytes:
        """Identifies who has the file open: another value each time it is opened."""
        return self._writer

    @property
    def writer_before(self) -> bytes | None:
        """The ``writer`` that had the file before; None for a new file."""
        return self._writer_before

    def update(self, work: Callable[[Step], T]) -> T:
        return self._changed(lambda transaction: work(_Transaction(transaction)))

    def clear(self) -> None:
        def emptied(transaction: "lmdb.Transaction[bytes]") -> None:
            transaction.drop(self._opened().open_db(None, txn=transaction), delete=False)
            self._mark(transaction)

        self._changed(emptied)

    def compact(self) -> None:
        try:
            self._copy()
        except (lmdb.Error, OSError):
            # Later steps use the space anyway. A full disk stops them with an error.
            self._remove_copy()
            return
        try:
            # A process that has the old file open keeps it, with its lock, and finds another writer there. Its later
            # steps aren't in the new file. If the sink has more than the new file, the state is built again.
            self._opened().close()
            (self._directory / _COPY_NAME).replace(self._directory / FILE_NAME)
            self._remove_copy()
            (self._directory / f"{FILE_NAME}{_LOCK}").unlink(missing_ok=True)
            _sync(self._directory)
            self._open()
        except (lmdb.Error, OSError) as error:
            self._refused("opened", error)

    def _copy(self) -> None:
        """Copy all entries in order, which fills the new file's pages. LMDB's own copy leaves pages as full as they
        are.
        """
        with self._opened().begin() as transaction, contextlib.closing(transaction.cursor()) as cursor:
            if transaction.get(_IS_WRITER) != self._writer:
                raise _fenced()
            entries = iter(cursor.iternext())
            with contextlib.closing(
                _environment(self._directory / _COPY_NAME, self._map_bytes, sync=False)
            ) as environment:
                copied = COPIED_AT_ONCE
                while copied == COPIED_AT_ONCE:
                    with environment.begin(write=True) as into, contextlib.closing(into.cursor()) as end:
                        copied, _ = end.putmulti(islice(entries, COPIED_AT_ONCE), append=True)
                environment.sync(True)

    def _remove_copy(self) -> None:
        for name in (_COPY_NAME, f"{_COPY_NAME}{_LOCK}"):
            (self._directory / name).unlink(missing_ok=True)

    def _changed(self, work: Callable[["lmdb.Transaction[bytes]"], T]) -> T:
        def owned(transaction: "lmdb.Transaction[bytes]") -> T:
            if transaction.get(_IS_WRITER) != self._writer:
                raise _fenced()
            return work(transaction)

        try:
            return self._written(owned)
        except lmdb.MapResizedError as error:  # only a later process makes it larger
            raise _fenced() from error
        except lmdb.Error as error:
            self._refused("written", error)

    def _written(self, work: Callable[["lmdb.Transaction[bytes]"], T]) -> T:
        """Run ``work`` in a write transaction, again with a larger map if the map is full. A map that is as large as
        the file when it is opened is full too.
        """
        while True:
            try:
                with self._opened().begin(write=True) as transaction:
                    return work(transaction)
            except lmdb.MapFullError:
                self._grow()

    def read(self, work: Callable[[Reading], T]) -> T:
        try:
            with self._opened().begin() as transaction:
                return work(_Transaction(transaction))
        except lmdb.MapResizedError as error:
            raise _fenced() from error
        except lmdb.Error as error:
            self._refused("read", error)

    def size(self) -> Size:
        return _size_of(self._opened())

    def close(self) -> None:
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def _grow(self) -> None:
        self._map_bytes *= 2
        try:
            self._opened().set_mapsize(self._map_bytes)
        except (lmdb.Error, OSError) as error:
            self._refused("made larger", error)

    def _opened(self) -> lmdb.Environment:
        assert self._environment is not None, "the state is closed"
        return self._environment

    def _foreign(self, why: str) -> NoReturn:
        raise UnusableState(
            f"the view's state in {self._directory} {why}; nothing was changed",
            hint="build the view anew, in a new generation with a state directory of its own",
        )

    def _refused(self, doing: str, error: Exception) -> NoReturn:
        self.close()
        message = f"the view's state in {self._directory} can't be {doing}: {error}"
        if isinstance(error, _UNUSABLE):
            hint = "it is damaged, or no state of a view. It holds nothing that the log doesn't: build the view anew"
            raise UnusableState(message, hint=hint) from error
        hint = "look for a full disk, missing permissions or another process that has it open. The step was not kept"
        raise LockstepError(message, hint=hint) from error


WATCHED_AT_ONCE: Final = 100_000
"""Entries read in one transaction. While one is open, LMDB doesn't reuse the pages that the job frees."""


class WatchedState:
    """Read-only access to the state that another process maintains in this directory and goes on changing. Every method
    raises LockstepError when the file can't be read, and UnusableState for a file of another program.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._environment: lmdb.Environment | None = None
        path = directory / FILE_NAME
        if not path.is_file():
            raise UnusableState(f"there is no state of a view in {directory}")
        try:
            self._environment = lmdb.open(str(path), subdir=False, readonly=True, readahead=False, create=False)
            with self._opened().begin() as transaction:
                on_disk = transaction.get(_IS_FORMAT)
                self.identity = (transaction.get(_IS_IDENTITY) or b"").decode()
        except lmdb.Error as error:
            self.close()
            raise self._unreadable(error) from error
        if on_disk != FORMAT:
            self.close()
            raise UnusableState(f"the view's state in {directory} was written by another version of Lockstep")

    def read(self, work: Callable[[Reading], T]) -> T:
        try:
            return self._read(work)
        except lmdb.MapResizedError:  # the job has made it larger
            self._opened().set_mapsize(0)
            return self._read(work)

    def _read(self, work: Callable[[Reading], T]) -> T:
        try:
            with self._opened().begin() as transaction:
                return work(_Transaction(transaction))
        except lmdb.MapResizedError:
            raise
        except lmdb.Error as error:
            raise self._unreadable(error) from error

    def entries(self) -> Iterator[Entry]:
        """All entries, in order; not as of one moment if the state changes meanwhile."""
        after: bytes | None = None
        while portion := self.read(partial(_portion, after=after)):
            yield from portion
            after = portion[-1][0]

    def size(self) -> Size:
        return _size_of(self._opened())

    def close(self) -> None:
        """Closing twice does nothing."""
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def _opened(self) -> lmdb.Environment:
        assert self._environment is not None, "the state is closed"
        return self._environment

    def _unreadable(self, error: Exception) -> LockstepError:
        message = f"the view's state in {self._directory} can't be read: {error}"
        if isinstance(error, _UNUSABLE):
            return UnusableState(message, hint="it is damaged, or no state of a view")
        return LockstepError(message, hint="run it as the user of `lockstep apply`, whose file it is")


def _portion(state: Reading, *, after: bytes | None) -> list[Entry]:
    return list(islice(state.scan(b"", after=after), WATCHED_AT_ONCE))


def _size_of(environment: lmdb.Environment) -> Size:
    used = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    return Size(environment.stat()["entries"] - _OWN_ENTRIES, used)


def _environment(path: Path, map_bytes: int, *, sync: bool = True) -> lmdb.Environment:
    return lmdb.open(
        str(path), subdir=False, map_size=map_bytes, mode=0o600, readahead=False, max_spare_txns=1, sync=sync
    )


def _sync(directory: Path) -> None:
    """Make a rename durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Transaction:
    """Keys of any length on top of LMDB's."""

    def __init__(self, transaction: "lmdb.Transaction[bytes]") -> None:
        self._transaction = transaction

    def get(self, key: bytes) -> bytes | None:
        if len(key) <= _PLAIN_MAX:
            return self._transaction.get(_DATA + key)
        stored = self._transaction.get(_cut(key))
        return None if stored is None else _entry(stored)[1]

    def put(self, key: bytes, value: bytes) -> None:
        if len(key) <= _PLAIN_MAX:
            self._transaction.put(_DATA + key, value)
        else:
            self._transaction.put(*_cut_entry(key, value))

    def put_all(self, entries: Mapping[bytes, bytes]) -> None:
        # Tuned: entries in the tree's order.
        self.put_stored(sorted([(_DATA + key, value) for key, value in entries.items()]))

    def put_stored(self, entries: Sequence[Entry]) -> None:
        # Tuned: one call for all; hardly any key is cut.
        if not all(map(_STORED_MAX.__ge__, map(len, map(itemgetter(0), entries)))):
            entries = [
                entry if len(entry[0]) <= _STORED_MAX else _cut_entry(entry[0][len(_DATA) :], entry[1])
                for entry in entries
            ]
        cursor = self._transaction.cursor()
        with contextlib.closing(cursor):
            cursor.putmulti(entries)

    def delete(self, key: bytes) -> None:
        self._transaction.delete(_DATA + key if len(key) <= _PLAIN_MAX else _cut(key))

    def delete_all(self, keys: Iterable[bytes]) -> None:
        delete = self._transaction.delete  # tuned: no call of ours for each key
        for key in keys:
            delete(_DATA + key if len(key) <= _PLAIN_MAX else _cut(key))

    def scan(self, prefix: bytes, *, after: bytes | None = None) -> Iterator[Entry]:
        start = prefix if after is None or after < prefix else after
        is_after = start is after
        cursor = self._transaction.cursor()
        with contextlib.closing(cursor):
            if cursor.set_range(_DATA + start[:_PLAIN_MAX]):
                # Tuned: hardly any key is cut, and until one is, the keys are in order.
                begins, skipped, last = _DATA + prefix, _DATA + start if is_after else b"", None
                for raw_key, value in cursor.iternext():
                    if len(raw_key) == _CUT_LENGTH:
                        break
                    if not raw_key.startswith(begins):
                        if raw_key > begins:
                            return
                        continue  # shorter than the prefix, whose own keys are all cut
                    if raw_key > skipped:
                        last = raw_key[1:]
                        yield last, value
                else:
                    return
                is_after, start = (is_after, start) if last is None else (True, last)
                cursor.set_range(_DATA + start[:_PLAIN_MAX])
                for key, value in _in_order(iter(cursor.iternext())):
                    if not key.startswith(prefix):
                        if key > prefix:
                            return
                        continue
                    if not is_after or key > start:
                        yield key, value

    def scan_back(self, prefix: bytes, *, before: bytes | None = None) -> Iterator[Entry]:
        beyond = after_prefix(prefix)
        if before is not None and (beyond is None or before < beyond):
            beyond = before
        cursor = self._transaction.cursor()
        with contextlib.closing(cursor):
            if beyond is None:
                is_there = cursor.set_range(_OWN) and cursor.prev()
            else:
                # Cut keys with the same beginning may be less than this one.
                limit = after_prefix(_DATA + beyond[:_PLAIN_MAX]) if len(beyond) > _PLAIN_MAX else _DATA + beyond
                assert limit is not None
                is_there = cursor.prev() if cursor.set_range(limit) else cursor.last()
            if is_there:
                for key, value in _in_order(iter(cursor.iterprev()), reverse=True):
                    if not key.startswith(prefix):
                        if key < prefix:
                            return
                        continue
                    if beyond is None or key < beyond:
                        yield key, value


def _in_order(stored: Iterator[Entry], *, reverse: bool = False) -> Iterator[Entry]:
    """Entries with their whole keys. Cut keys with the same beginning are neighbours and are sorted here."""
    alike: list[Entry] = []
    head = b""
    for raw_key, raw_value in stored:
        if raw_key[:1] != _DATA:
            break
        is_cut = len(raw_key) == _CUT_LENGTH
        if alike and not (is_cut and raw_key[:-_DIGEST_BYTES] == head):
            yield from sorted(alike, reverse=reverse)
            alike.clear()
        if is_cut:
            head = raw_key[:-_DIGEST_BYTES]
            alike.append(_entry(raw_value))
        else:
            yield raw_key[1:], raw_value
    yield from sorted(alike, reverse=reverse)


def _cut(key: bytes) -> bytes:
    return _DATA + key[:_PLAIN_MAX] + hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()


def _cut_entry(key: bytes, value: bytes) -> Entry:
    return _cut(key), _LENGTH.pack(len(key)) + key + value


def _entry(stored: bytes) -> Entry:
    (length,) = _LENGTH.unpack_from(stored)
    end = _LENGTH.size + length
    return stored[_LENGTH.size : end], stored[end:]


def _fenced() -> Overtaken:
    return Overtaken(
        "another process has opened the view's state; this one stops",
        hint="one job keeps a view: if it wasn't you, look for a second `lockstep apply` or `lockstep run`",
    )
