"""A DuckDB file, attached to a DuckDB that has only that file.

**Attached as it is.** DuckDB 2.0 reads a file's headers before it has the file's lock, and trusts them afterwards. So
it can attach the state before another process's last transaction, and overwrite that transaction. This module reads the
headers before and after attaching. If they differ, it attaches again. See ``docs/duckdb-stale-headers.md``.
"""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from sinks.warehouse.duckdb.errors import is_held, translated

_FILE: Final = "lockstep_file"
"""The name of the attached file. Its own name could be that of one of its schemas."""

_HEADERS_BYTES: Final = 3 * 4096
"""The size of the headers at the file's start. A checkpoint writes one of them, which is valid from then on."""

_FIRST_WAIT_S: Final = 0.01
_WAIT_S_MAX: Final = 0.05


Execute = Callable[[str], object]


class DuckDbFile:
    """``execute`` runs statements in a DuckDB that has no other file attached."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def attach(self, execute: Execute, deadline: float, detached: ExitStack) -> None:
        """Attach the file. Creates it if it doesn't exist.

        Closing any descriptor of a file releases the process's lock on it. So ours is closed by ``detached``, once the
        file is detached. Raises LockstepError for a file that can't be opened.
        """
        wait_s = _FIRST_WAIT_S
        while True:
            descriptor = self._opened(execute)
            try:
                before = _headers(descriptor)
                if self._is_attached(execute, self._path, deadline - wait_s):
                    if _headers(descriptor) == before:
                        detached.callback(os.close, descriptor)
                        return
                    self.detach(execute)
            except BaseException as error:
                detached.callback(os.close, descriptor)
                if isinstance(error, OSError):
                    raise translated(error, self._path) from error
                raise
            os.close(descriptor)
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _WAIT_S_MAX)

    def _opened(self, execute: Execute) -> int:
        try:
            if not self._path.exists():
                self._create(execute)
            return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise translated(error, self._path) from error

    def _create(self, execute: Execute) -> None:
        """Create the file in one step, unless another process does: DuckDB would overwrite what that one has done."""
        with TemporaryDirectory(prefix=f".{self._path.name}.", dir=self._path.parent) as directory:
            new = Path(directory, self._path.name)
            self._is_attached(execute, new, deadline=0.0)
            self.detach(execute)
            with suppress(FileExistsError):
                os.link(new, self._path)

    def _is_attached(self, execute: Execute, path: Path, deadline: float) -> bool:
        """Whether the file could be attached. False while others hold it; after the deadline, raises DuckDB's error."""
        quoted = str(path).replace("'", "''")
        try:
            execute(f"attach '{quoted}' as {_FILE}; use {_FILE}")
        except Exception as error:
            if not is_held(error) or time.monotonic() > deadline:
                raise
            return False
        return True

    def detach(self, execute: Execute) -> None:
        execute(f"use memory; detach {_FILE}")


def _headers(descriptor: int) -> bytes:
    return os.pread(descriptor, _HEADERS_BYTES, 0)
