"""A PostgreSQL of a test's own, which can go back to an earlier moment, as by a snapshot of its volume."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import psycopg
import pytest

from stack.stack import Stack
from tests.databases import Database, until
from tests.services import temporary_directory


class OwnServer:
    """A PostgreSQL that nobody else uses, whose files are saved and put back."""

    def __init__(self, directory: Path) -> None:
        self._stack = Stack(directory, light=True, durable=False)
        self._directory = directory
        self.dsn = self._stack.up(["postgres"]).source_dsn
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute("show data_directory").fetchone()
        assert row is not None
        self._files = Path(row[0])

    @cached_property
    def database(self) -> Database:
        return Database(self.dsn)

    def stop(self) -> None:
        self._stack.stop("postgres")

    def start(self) -> None:
        self._stack.start("postgres")
        if "database" in self.__dict__:
            self.database.reconnect()

    @contextmanager
    def stopped(self) -> Iterator[Path]:
        """Stops it; yields its files."""
        self.stop()
        yield self._files
        self.start()

    def keep(self, moment: str = "kept") -> None:
        with self.stopped() as files:
            _copy(files, self._directory / moment)

    def take_back(self, moment: str = "kept", *, as_standby: bool = False) -> None:
        """Begin again with the saved files; ``as_standby`` of no primary, so that it can be promoted."""
        with self.stopped() as files:
            shutil.rmtree(files)
            _copy(self._directory / moment, files)
            if as_standby:
                (files / "standby.signal").touch(mode=0o666)

    def promote(self) -> None:
        self.database.execute("select pg_promote()")
        until(lambda: not self.database.value("select pg_is_in_recovery()"))

    def remove(self) -> None:
        if "database" in self.__dict__:
            self.database.connection.close()
        self._stack.remove()


def _copy(files: Path, to: Path) -> None:
    subprocess.run(["cp", "-a", str(files), str(to)], check=True)  # with their owner, which PostgreSQL insists on


@pytest.fixture
def own() -> Iterator[OwnServer]:
    with temporary_directory() as directory:
        server = OwnServer(directory)
        try:
            yield server
        finally:
            server.remove()
