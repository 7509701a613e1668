"""What alerts keep on disk: who was told of what, and what is still to be delivered.

One process tells: it holds the lock of the directory for as long as it lives, and the system frees it in any end.
``state.json`` is its alone.

What root makes there belongs to the directory's owner, since the process that tells may be a service of that user.
"""

import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

from cdc.model.errors import LockstepError
from monitor.alerts.book import Entry, Key, Message

logger = logging.getLogger("lockstep.alerts")

_FORMAT: Final = 3
_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True, slots=True)
class State:
    """``queue`` has what is still to be delivered, oldest first; None where there was no webhook."""

    book: Mapping[Key, Entry] = field(default_factory=dict)
    queue: Sequence[Message] | None = None


@dataclass(frozen=True, slots=True)
class Watcher:
    """Whether a process of this machine tells, and when one that does has looked last; None: none ever has."""

    is_there: bool
    looked_ms: int | None


class AlertStore:
    """The directory of a pipeline's alerts. Every method raises LockstepError for a file that can't be used."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: int | None = None
        self._has_said = False

    def take_lock(self) -> bool:
        """Become the one that tells; False while another process is, which is logged once. Lasts until ``close``."""
        if self._lock is None:
            try:
                make_directory(self._directory)
                lock = open_lock(self._directory / "lock")
            except OSError as error:
                raise self._unusable(error) from error
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                if not self._has_said:
                    self._has_said = True
                    logger.info(
                        "another process tells of alerts, since it holds %s/lock; this one does when that one ends",
                        self._directory,
                    )
                return False
            self._lock, self._has_said = lock, False
        return True

    def mark_look(self) -> None:
        """Let others see that whoever has the lock looks."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                os.utime(self._lock)

    def watcher(self) -> Watcher:
        """Who tells now."""
        try:
            lock = os.open(self._directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return Watcher(False, None)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            looked_ms = os.fstat(lock).st_mtime_ns // 1_000_000
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return Watcher(True, looked_ms)
            return Watcher(False, looked_ms)
        finally:
            os.close(lock)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load(self) -> State:
        """What was saved last."""
        return self._read("state.json", _state) or State()

    def save(self, state: State) -> None:
        """Keep this. It is on disk when it returns."""
        self._write(
            "state.json",
            {
                "open": [entry.to_json() for entry in state.book.values()],
                "queue": None if state.queue is None else [message.to_json() for message in state.queue],
            },
        )

    def _read(self, name: str, parse: Callable[[Mapping[str, Any]], _Parsed]) -> _Parsed | None:
        """What is in the file; None where there is none."""
        path = self._directory / name
        try:
            document = orjson.loads(path.read_bytes())
            if document["format"] != _FORMAT:
                raise LockstepError(f"{path} is of another version of Lockstep", hint="use that one, or move it away")
            return parse(document)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # no JSON, or JSON of another shape
            raise LockstepError(
                f"{path} is damaged", hint="move it away: alerts that are open are told once more"
            ) from error

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        try:
            handle, temporary = tempfile.mkstemp(dir=self._directory, prefix=f".{name}.")
            try:
                with os.fdopen(handle, "wb") as file:
                    _give_to_owner(handle, self._directory)
                    file.write(orjson.dumps({"format": _FORMAT, **document}))
                    file.flush()
                    os.fsync(file.fileno())
                Path(temporary).replace(self._directory / name)
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(temporary).unlink()
                raise
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> LockstepError:
        return LockstepError(
            f"the directory {self._directory} can't be used: {error.strerror}",
            hint="check pipeline.data_directory, its permissions and its disk",
        )


def make_directory(directory: Path) -> None:
    """Make it and what is missing above it. Raises OSError."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        made = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _give_to_owner(made, path.parent)
        finally:
            os.close(made)


def open_lock(path: Path) -> int:
    """A descriptor of a file to lock, made where there is none. Raises OSError."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    _give_to_owner(lock, path.parent)
    return lock


def _give_to_owner(descriptor: int, directory: Path) -> None:
    """Let what root has just made belong to whom the directory belongs. By its descriptor: names can be changed."""
    if os.geteuid() == 0:
        owner = directory.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _state(document: Mapping[str, Any]) -> State:
    entries = [Entry.from_json(entry) for entry in document["open"]]
    queue = document["queue"]
    if queue is not None:
        queue = [Message.from_json(message) for message in queue]
    return State({entry.condition.key: entry for entry in entries}, queue)
