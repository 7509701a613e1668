"""Opens, creates, changes and removes Delta tables below one root, a directory or an object store."""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import orjson

from cdc.model.errors import LockstepError, StoreRefuses, Unavailable

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

# A commit is a file that must not exist yet, so one of two writers wins. deltalake lets the other one continue unless
# both touch the same rows, which isn't enough here. Two commits of one application transaction never pass each other.
# So every commit that depends on what it has read carries this one: compare and set, on any store of deltalake.
CAS: Final = "lockstep"
"""Our commits' application in the log: two of them never pass each other."""

NOTHING: Final[Mapping[str, int]] = MappingProxyType({})

TRIES: Final = 100
"""How often an overtaken commit is repeated. Each time, another one has succeeded."""

TARGET_FILE_BYTES: Final = 16 * 1024 * 1024
"""Small files are compacted up to this size."""

_RETRY_AFTER_S: Final = 1.0

# In the order of precedence. For all other texts, the operator has to act.
_REFUSED: Final = {
    "no space left": "the disk is full: free space",
    "quota exceeded": "the disk quota is used up: free space, or raise it",
    "read-only file system": "the file system is read-only: mount it for writing",
    "permission denied": "let this user read and write below the sink's root",
    "access denied": "check login of this sink, and its rights on the bucket",
    "accessdenied": "check login of this sink, and its rights on the bucket",
    "forbidden": "check login of this sink, and its rights on the bucket",
    "unauthorized": "check login of this sink",
    "invalidaccesskeyid": "check login of this sink",
    "signaturedoesnotmatch": "check login of this sink",
    "nosuchbucket": "create the bucket, or mend the sink's root",
    "missing region": "set storage_options.aws_region of this sink",
}
_PASSING: Final = (
    *("error sending request", "timed out", "timeout", "connection", "dns error", "slowdown", "slow down"),
    *("internal server error", "service unavailable", "bad gateway", "too many requests", "after 10 retries"),
)
# Paths contain the values of partitions.
_PARTITION_VALUE = re.compile(r"=[^/\s\"']+")
_DECORATION = re.compile(r"\x1b\[[0-9;]*m|[\u2500-\u257f\u21b3]")  # colours, lines and arrows


class _Commit(NamedTuple):
    """A file of a log. Another file of the same name differs, or was written at another time."""

    inode: int
    modified_ns: int
    size: int


class Overtaken(Exception):
    """Another commit came first. Nothing was written; look again."""


class Lake:
    """The tables below a root. ``options`` returns deltalake's storage options for each call: secrets may change."""

    def __init__(self, root: str, options: Callable[[], Mapping[str, str]]) -> None:
        self._root = root.rstrip("/")
        self._options = options
        parts = urlsplit(root)
        self._directory = (
            Path(unquote(parts.path) if parts.scheme == "file" else self._root)
            if parts.scheme in ("", "file")
            else None
        )
        self._commits: dict[str, _Commit | None] = {}
        """Of each table, the last commit that was read."""

    def open(self, path: str) -> "DeltaTable | None":
        table = self.seen(path)
        if table is not None:
            self._commits[path] = self._commit(path, table)
        return table

    def seen(self, path: str) -> "DeltaTable | None":
        """Like ``open``, for a single look: it doesn't count as the state of a table that was opened before."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        with talking():
            try:
                return DeltaTable(self._address(path), storage_options=dict(self._options()))
            except TableNotFoundError:
                return None

    def is_restored(self, path: str, since: int) -> bool:
        """Whether a commit after this version is a RESTORE, which is never ours."""
        table = self.seen(path)
        if table is None or table.version() <= since:
            return False
        with talking():
            commits = table.history(table.version() - since)
        return any(commit.get("operation") == "RESTORE" for commit in commits)

    def refresh(self, path: str, table: "DeltaTable") -> "DeltaTable":
        """The table as it is now. If its log is no longer the one from which it was read, it is opened again.

        Then the lake was put back, and other commits may have the former ones' numbers. Without a directory, this is
        noticed only until there are as many commits again.
        """
        from deltalake.exceptions import DeltaError

        with talking():
            if self._commits.get(path) == self._commit(path, table):
                try:
                    table.update_incremental()
                except DeltaError:
                    anew = self.open(path)
                    if anew is None or anew.version() >= table.version():
                        raise
                    return anew
                self._commits[path] = self._commit(path, table)
                return table
            anew = self.open(path)
            if anew is None:
                table.update_incremental()  # raises what is wrong
            return anew or table

    def _commit(self, path: str, table: "DeltaTable") -> "_Commit | None":
        """The file of the last commit that was read of a table; None if there is none, or no directory."""
        if self._directory is None:
            return None
        try:
            state = (self._directory / path / "_delta_log" / f"{table.version():020}.json").stat()
        except OSError:
            return None
        return _Commit(state.st_ino, state.st_mtime_ns, state.st_size)

    def create(
        self,
        path: str,
        schema: Any,
        *,
        partitions: Iterable[str] = (),
        configuration: Mapping[str, str],
    ) -> "DeltaTable":
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        with talking():
            try:
                table = DeltaTable.create(
                    self._address(path),
                    schema,
                    partition_by=list(partitions),
                    configuration=dict(configuration),
                    storage_options=dict(self._options()),
                    raise_if_key_not_exists=False,
                )
                self._commits[path] = self._commit(path, table)
            except DeltaError:
                existing = self.open(path)
                if existing is None:
                    raise
                return existing
        if self._directory is not None:
            directory = self._directory / path
            self.sync(path, range(1))
            for parent in directory.parents:
                _sync_file(parent)
                if parent == self._directory:
                    break
        return table

    def commit(
        self,
        path: str,
        table: "DeltaTable",
        write: "Callable[[CommitProperties], Any]",
        transactions: Mapping[str, int] = NOTHING,
    ) -> Any:
        """Commit, and sync in a directory. Returns ``write``'s result. Raises Overtaken if ``table`` is outdated."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        before = table.version()
        # Any number would do: what counts is that the other commit names the same application.
        marked = [Transaction(name, version) for name, version in {CAS: before + 1, **transactions}.items()]
        with talking():
            try:
                result = write(CommitProperties(app_transactions=marked))
            except CommitFailedError as error:
                raise Overtaken from error
            table.update_incremental()
        self._commits[path] = self._commit(path, table)
        self.sync(path, range(before + 1, table.version() + 1))
        return result

    def set_properties(self, path: str, table: "DeltaTable", properties: Mapping[str, str]) -> None:
        """Commit properties of a table. Raises Overtaken."""
        self.commit(
            path,
            table,
            lambda commit: table.alter.set_table_properties(
                dict(properties), raise_if_not_exists=False, commit_properties=commit
            ),
        )

    def remove(self, path: str) -> None:
        """Delete all files of a table. Raises LockstepError if a link leads out of the root."""
        if self._directory is not None:
            directory = self._directory / path
            with talking():
                if not directory.parent.resolve().is_relative_to(self._directory.resolve()):
                    raise LockstepError(
                        f"the Delta table {path!r} isn't below the root of its sink: a link leads out of it",
                        hint="find out who made the link, and remove it; nothing was deleted",
                    )
                shutil.rmtree(directory, ignore_errors=False, onerror=_unless_gone)
            return
        from deltalake.fs import DeltaStorageHandler

        with talking():
            DeltaStorageHandler(self._root, dict(self._options())).delete_dir(path)

    def _address(self, path: str) -> str:
        return f"{self._root}/{path}"

    def sync(self, path: str, versions: range) -> None:
        """Sync the files of these versions to the disk, if there is one: deltalake leaves that to the kernel."""
        if self._directory is None:
            return
        directory = self._directory / path
        log = directory / "_delta_log"
        parents = {log}
        with talking():
            for version in versions:
                for file in log.glob(f"{version:020}*"):
                    if file.suffix == ".json":
                        for added in _added(file):
                            _sync_file(directory / added)
                            parents.add((directory / added).parent)
                    _sync_file(file)
            for parent in parents:
                _sync_file(parent)


def too_many(what: str) -> Unavailable:
    return Unavailable(f"others write to {what} all the time", retry_after_s=_RETRY_AFTER_S)


@contextmanager
def talking() -> Iterator[None]:
    """Raise the store's errors as Unavailable or LockstepError."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (LockstepError, Overtaken):
        raise
    except (DeltaError, OSError) as error:
        raise _translate(error) from error


def _translate(error: Exception) -> LockstepError:
    text = " ".join(_DECORATION.sub(" ", str(error)).split()) or type(error).__name__
    lower = text.lower()
    shown = _PARTITION_VALUE.sub("=...", text)[:300]
    for sign, hint in _REFUSED.items():
        if sign in lower:
            return StoreRefuses(f"the lake refuses: {sign}: {shown}", hint=hint)
    if any(sign in lower for sign in _PASSING):
        return Unavailable(f"the lake doesn't answer: {shown}", retry_after_s=_RETRY_AFTER_S)
    return LockstepError(
        f"the lake refuses: {shown}",
        hint="if the sink's files were removed or changed, rebuild it from the log: lockstep rebuild",
    )


def _added(log: Path) -> Iterator[str]:
    """The files that a commit has added, relative to the table."""
    for line in log.read_bytes().splitlines():
        if line.startswith(b'{"add"'):
            yield unquote(orjson.loads(line)["add"]["path"])


def _sync_file(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # a later commit has cleaned up
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unless_gone(_function: object, _path: object, failure: Any) -> None:
    error = failure[1]
    if not isinstance(error, FileNotFoundError):
        raise error
