"""A PostgreSQL of a test's own, which can be taken back to an earlier moment as by a snapshot of its volume."""

import shutil
import subprocess
from pathlib import Path

import psycopg

from stack.stack import Stack


class OwnServer:
    """A PostgreSQL that nobody else uses, whose files are kept and taken back."""

    def __init__(self, directory: Path) -> None:
        self._stack = Stack(directory, light=True, durable=False)
        self._kept = directory / "kept"
        self.dsn = self._stack.up(["postgres"]).source_dsn
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute("show data_directory").fetchone()
        assert row is not None
        self._files = Path(row[0])

    def keep(self) -> None:
        """Keep the files as they are now."""
        self._stack.stop("postgres")
        _copy(self._files, self._kept)
        self._stack.start("postgres")

    def take_back(self) -> None:
        """Begin again with the files that were kept."""
        self._stack.stop("postgres")
        shutil.rmtree(self._files)
        _copy(self._kept, self._files)
        self._stack.start("postgres")

    def remove(self) -> None:
        self._stack.remove()


def _copy(files: Path, to: Path) -> None:
    subprocess.run(["cp", "-a", str(files), str(to)], check=True)  # with their owner, which PostgreSQL insists on
