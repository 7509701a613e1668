"""The large values on disk: one LMDB file per slot, a copy of what the topics hold, never ahead of them.

Changes gather in memory. ``commit`` writes them in one LMDB transaction with the position and the offsets that they
belong to. Capture calls it after Kafka has committed the same changes, so:

* After a kill between the two, the store lacks one commit. It is completed from the topics, from ``offsets()`` on.
* After a power failure it may lack two commits. Data reach the disk before the page that makes them valid, and that
  page before the next commit's (LMDB's ``metasync=False``). That halves the cost, and nothing valid is ever
  overwritten.
* A commit without a change writes nothing. Position and offsets then lag on disk, which is safe: everything below
  ``offsets()`` is contained. Reading on from there finds nothing new and ends with the same rows, since each row's last
  record is applied last. ``close`` writes them, and so does a commit once a reader would have to read ``LAZY_RECORDS``
  records for nothing.

After opening it, compare ``position()`` with the state in Kafka. Equal: all is there. Older or None: read on from
``offsets()``. Newer: Kafka has lost what it had committed, and only ``empty`` is right.

An unusable file - another pipeline's, an earlier format, damaged - is emptied, since the topics can refill it. A
process that was held up while another one opened the store is Fenced when it tries to write.
"""

import contextlib
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import lmdb

from cdc.model.errors import Fenced, LockstepError, Unavailable
from cdc.toast import entries
from cdc.toast.entries import Bucket, Damaged
from cdc.toast.memory import Offsets, Position, Values

FILE_NAME: Final = "large-values.lmdb"

LAZY_RECORDS: Final = 100_000
"""About how many records irrelevant to the store a restart may read: it takes a second."""

_FORMAT: Final = b"1"
_MAP_BYTES: Final = 64 * 1024 * 1024
_POSITION: Final = struct.Struct(">QI")
_NUMBER: Final = struct.Struct(">Q")
_TOPIC_ID: Final = struct.Struct(">I")

# One-letter prefixes; those of rows and offsets are in `entries`.
_IS_FORMAT, _IS_IDENTITY, _IS_WRITER, _IS_POSITION = b"mformat", b"midentity", b"mwriter", b"mposition"
_TOPIC_PREFIX, _OFFSET_PREFIX = b"t", b"o"

T = TypeVar("T")

_UNUSABLE = (lmdb.InvalidError, lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.VersionMismatchError, Damaged)


class ValuesFile:
    """An LMDB file that grows when it is full, and is never shorter than its pages."""

    def __init__(self, path: Path, map_bytes: int) -> None:
        self.path = path
        self._map_bytes = map_bytes
        self._environment: lmdb.Environment | None = None
        self._bytes = 0

    @property
    def is_open(self) -> bool:
        return self._environment is not None

    @property
    def opened(self) -> lmdb.Environment:
        assert self._environment is not None, "the store is closed"
        return self._environment

    def open(self) -> bool:
        """Open the file. Returns whether it is whole: reading a page beyond the end of a truncated file would kill the
        process."""
        self._environment = lmdb.open(
            str(self.path),
            subdir=False,
            map_size=self._map_bytes,
            metasync=False,
            mode=0o600,
            readahead=False,
            max_spare_txns=1,
        )
        self._environment.reader_check()
        self._bytes = self.path.stat().st_size
        # The map of a file that has grown is at least as large as the file.
        self._map_bytes = self._environment.info()["map_size"]
        return self._bytes >= self._needed_bytes()

    def changed(self, work: Callable[["lmdb.Transaction[bytes]"], T]) -> T:
        """Run ``work`` in a writing transaction, and again with a larger map if it is full: a map as large as the file
        has no room to write."""
        while True:
            try:
                with self.opened.begin(write=True) as transaction:
                    return work(transaction)
            except lmdb.MapFullError:
                self._map_bytes *= 2
                self.opened.set_mapsize(self._map_bytes)

    def fill(self) -> None:
        """Extend the file by pages at its end that one transaction took and gave back. A shorter file is then
        truncated."""
        needed = self._needed_bytes()
        if needed > self._bytes:
            self._bytes = self.path.stat().st_size
            if needed > self._bytes:
                os.truncate(self.path, needed)
                self._bytes = needed

    def close(self) -> None:
        if self._environment is not None:
            self._environment.close()
            self._environment = None

    def remove(self) -> None:
        self.close()
        for name in (FILE_NAME, f"{FILE_NAME}-lock"):
            (self.path.parent / name).unlink(missing_ok=True)

    def _needed_bytes(self) -> int:
        return int((self.opened.info()["last_pgno"] + 1) * self.opened.stat()["psize"])


class ToastStore:
    """A DurableMemory in a directory, for one thread. The caller's batch limits what is held in memory until a commit.
    Raises Unavailable if it turned out to be damaged: it has been emptied, so open it again and fill it. Raises Fenced
    if another process has opened it since, and LockstepError if the file system refuses."""

    def __init__(
        self, directory: Path, *, identity: str, say: Callable[[str], None], map_bytes: int = _MAP_BYTES
    ) -> None:
        """Open or create it. ``identity`` is all that its content depends on: pipeline, slot, the topics' ids. ``say``
        gets a sentence if a foreign or damaged store was emptied."""
        self._directory = directory
        self.file = ValuesFile(directory / FILE_NAME, map_bytes)
        self._identity = identity.encode()
        self._writer = os.urandom(16)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                problem = self._open()
            except _UNUSABLE as error:
                problem = f"can't be read ({error})"
            if problem:
                say(
                    f"the store of large values in {directory} {problem}: it is emptied and filled again from the"
                    " topics"
                )
                self.empty()
        except (lmdb.Error, OSError) as error:
            self._failed("opened", error)

    def _open(self) -> str:
        """Open the file and read all but its rows. Returns the problem, in words, if the file isn't ours to use."""
        self._topic_ids: dict[str, int] = {}
        self._position: Position | None = None
        self._offsets: dict[tuple[str, int], int] = {}
        self._advanced: set[tuple[str, int]] = set()
        self._lagging = False
        self._lagging_records = 0
        self._changes: dict[str, dict[bytes, Values | None]] = {}
        self._cleared: set[str] = set()
        self._with_rows: set[str] = set()
        """The topics that may have rows in the file. All topics have a number there, for their offsets."""
        if not self.file.open():
            return "is shorter than it should be"
        problem = self.file.changed(self._take)
        if not problem:
            self.file.fill()
        return problem

    def _take(self, transaction: "lmdb.Transaction[bytes]") -> str:
        """Become the file's writer and read its state. Returns a problem as ``_open`` does."""
        format_on_disk = transaction.get(_IS_FORMAT)
        if format_on_disk is None and transaction.stat()["entries"]:
            return "was written by something else"
        if format_on_disk not in (None, _FORMAT):
            return "was written by another version"
        if format_on_disk is not None and transaction.get(_IS_IDENTITY) != self._identity:
            return "belongs to another slot, pipeline or set of topics"
        transaction.put(_IS_FORMAT, _FORMAT)
        transaction.put(_IS_IDENTITY, self._identity)
        transaction.put(_IS_WRITER, self._writer)
        try:
            self._read_state(transaction)
        except (struct.error, UnicodeDecodeError, KeyError) as error:
            raise Damaged("its state makes no sense") from error
        return ""

    def _read_state(self, transaction: "lmdb.Transaction[bytes]") -> None:
        position = transaction.get(_IS_POSITION)
        if position is not None:
            commit_lsn, seq = _POSITION.unpack(position)
            self._position = commit_lsn, seq
        for key, value in _with_prefix(transaction, _TOPIC_PREFIX):
            (self._topic_ids[key[1:].decode()],) = _TOPIC_ID.unpack(value)
        names = {topic_id: name for name, topic_id in self._topic_ids.items()}
        for key, value in _with_prefix(transaction, _OFFSET_PREFIX):
            topic_id, partition = entries.parse_offset_key(key)
            (self._offsets[names[topic_id], partition],) = _NUMBER.unpack(value)
        for topic, topic_id in self._topic_ids.items():
            if next(_with_prefix(transaction, entries.topic_range(topic_id)), None) is not None:
                self._with_rows.add(topic)

    def empty(self) -> None:
        self.file.remove()
        problem = self._open()
        assert not problem

    def get(self, topic: str, key: bytes) -> Values | None:
        changes = self._changes.get(topic)
        if changes is not None and key in changes:
            return changes[key]
        return self._durable(topic, key)

    def put(self, topic: str, key: bytes, values: Values) -> None:
        self._changes.setdefault(topic, {})[key] = dict(values)

    def forget(self, topic: str, key: bytes) -> None:
        """Costs a look-up, and nothing for a topic without stored rows."""
        changes = self._changes.get(topic)
        if topic in self._with_rows and self._durable(topic, key) is not None:
            self._changes.setdefault(topic, {})[key] = None
        elif changes is not None:
            changes.pop(key, None)
            if not changes:
                del self._changes[topic]

    def clear(self, topic: str) -> None:
        self._changes.pop(topic, None)
        if topic in self._with_rows:
            self._cleared.add(topic)

    def may_have(self, topic: str) -> bool:
        return topic in self._changes or (topic in self._with_rows and topic not in self._cleared)

    def commit(self, position: Position | None, bounds: Offsets | None = None) -> None:
        """Syncs once. Without a change it costs next to nothing."""
        if position != self._position:
            self._position = position
            self._lagging = True
        for partition, offset in (bounds or {}).items():
            advance = offset - self._offsets.get(partition, 0)
            if advance:
                self._offsets[partition] = offset
                self._advanced.add(partition)
                self._lagging = True
                self._lagging_records += advance
        if self._changes or self._cleared or self._lagging_records >= LAZY_RECORDS:
            self._write()

    def discard(self) -> None:
        self._changes.clear()
        self._cleared.clear()

    def position(self) -> Position | None:
        return self._position

    def offsets(self) -> Offsets:
        return dict(self._offsets)

    def close(self) -> None:
        """Write the position if the file's lags, and close the file. What wasn't committed is dropped."""
        self.discard()
        try:
            if self._lagging and self.file.is_open:
                # An older position is as true as this one; another writer's is truer.
                with contextlib.suppress(LockstepError):
                    self._write()
        finally:
            self.file.close()

    def _durable(self, topic: str, key: bytes) -> Values | None:
        """The row's values in the file, if no change hides them."""
        if topic not in self._with_rows or topic in self._cleared:
            return None
        topic_id = self._topic_ids[topic]
        try:
            with self.file.opened.begin(buffers=True) as transaction:
                record = transaction.get(entries.row_key(topic_id, key))
                return None if record is None else entries.unpack(record).get(key)
        except (lmdb.Error, Damaged) as error:
            self._failed("read", error)

    def _write(self) -> None:
        try:
            self._topic_ids = self.file.changed(self._write_changes)
        except (lmdb.Error, Damaged) as error:
            self._failed("written", error)
        self._with_rows -= self._cleared
        self._with_rows |= self._changes.keys()
        self._changes.clear()
        self._cleared.clear()
        self._advanced.clear()
        self._lagging = False
        self._lagging_records = 0
        try:
            self.file.fill()
        except OSError as error:
            self._failed("written", error)

    def _write_changes(self, transaction: "lmdb.Transaction[bytes]") -> dict[str, int]:
        if transaction.get(_IS_WRITER) != self._writer:
            raise _fenced()
        topic_ids = dict(self._topic_ids)
        self._write_rows(transaction, topic_ids)
        if self._position is None:
            transaction.delete(_IS_POSITION)
        else:
            transaction.put(_IS_POSITION, _POSITION.pack(*self._position))
        for topic, partition in self._advanced:
            offset_entry = entries.offset_key(number_of(transaction, topic_ids, topic), partition)
            transaction.put(offset_entry, _NUMBER.pack(self._offsets[topic, partition]))
        return topic_ids

    def _write_rows(self, transaction: "lmdb.Transaction[bytes]", topic_ids: dict[str, int]) -> None:
        for topic in self._cleared:
            prefix = entries.topic_range(topic_ids[topic])
            cursor = transaction.cursor()
            cursor.set_range(prefix)
            while cursor.key().startswith(prefix):  # empty after the last one
                cursor.delete()
        for topic, changes in self._changes.items():
            topic_id = number_of(transaction, topic_ids, topic)
            for key, values in changes.items():
                row_entry = entries.row_key(topic_id, key)
                bucket: Bucket = {}
                if len(key) > entries.KEY_BYTES_MAX and (record := transaction.get(row_entry)) is not None:
                    bucket = entries.unpack(memoryview(record))
                if values is None:
                    bucket.pop(key, None)
                else:
                    bucket[key] = values
                if bucket:
                    transaction.put(row_entry, entries.pack(bucket))
                else:
                    transaction.delete(row_entry)

    def _failed(self, doing: str, error: Exception) -> NoReturn:
        if isinstance(error, lmdb.MapResizedError):  # only a later process makes it larger
            raise _fenced() from error
        if isinstance(error, _UNUSABLE):
            self.file.remove()
            raise Unavailable(
                f"the store of large values in {self._directory} was damaged ({error}) and has been removed;"
                " it is filled again from the topics"
            ) from error
        self.file.close()
        raise LockstepError(
            f"the store of large values in {self._directory} can't be {doing}: {error}",
            hint="look for a full disk, missing permissions or another process that has it open. It holds nothing that"
            " the topics don't: while capture is stopped it may be deleted, and is filled again",
        ) from error


def holds_values(directory: Path, topic: str, key: bytes) -> bool | None:
    """Whether a store, which another process may be writing, holds values of a row. None if there is no store. Raises
    LockstepError if it can't be read."""
    path = directory / FILE_NAME
    if not path.exists():
        return None
    try:
        with (
            lmdb.open(str(path), subdir=False, readonly=True, max_spare_txns=1) as environment,
            environment.begin(buffers=True) as transaction,
        ):
            topic_id = transaction.get(_TOPIC_PREFIX + topic.encode())
            if topic_id is None:
                return False
            record = transaction.get(entries.row_key(_TOPIC_ID.unpack(topic_id)[0], key))
            return record is not None and key in entries.unpack(record)
    except (lmdb.Error, Damaged, OSError) as error:
        raise LockstepError(
            f"the store of large values in {directory} can't be read: {error}",
            hint="while capture is stopped it may be deleted, and is filled again from the topics",
        ) from error


def _with_prefix(transaction: "lmdb.Transaction[bytes]", prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    cursor = transaction.cursor()
    cursor.set_range(prefix)
    while cursor.key().startswith(prefix):  # empty after the last one
        yield cursor.item()
        cursor.next()


def number_of(transaction: "lmdb.Transaction[bytes]", topic_ids: dict[str, int], topic: str) -> int:
    """A topic's number, which replaces its name in keys. A new one is written with what uses it."""
    if topic not in topic_ids:
        topic_ids[topic] = len(topic_ids)
        transaction.put(_TOPIC_PREFIX + topic.encode(), _TOPIC_ID.pack(topic_ids[topic]))
    return topic_ids[topic]


def _fenced() -> Fenced:
    return Fenced(
        "another process has opened the store of large values; this one stops",
        hint="exactly one capture process may run: if it wasn't you, look for a second `lockstep capture` or"
        " `lockstep run`",
    )
