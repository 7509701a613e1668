"""Transactions on a DuckDB file, which one process holds at a time: it is attached only during a transaction.

DuckDB itself stays running, with only that file: starting it takes ten times as long as attaching one.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cdc.model.errors import ConfigurationError, Unavailable
from sinks.warehouse.duckdb.errors import translated
from sinks.warehouse.duckdb.file import DuckDbFile
from sinks.warehouse.duckdb.tables import GIVEN
from sinks.warehouse.settings import WarehouseSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import Connection, CursorResult, Engine

_TURNS: Final[dict[Path, threading.Lock]] = {}
"""Takes turns among the threads of this process, which the file's lock doesn't separate."""


class DuckDbConnection:
    """Attaches the file for each transaction; retries for ``lock_timeout_s``. ``views`` is the schema of the views."""

    def __init__(self, settings: WarehouseSettings, *, views: str, generation: int) -> None:
        self._path = settings.file
        self._settings = settings
        self._bound = {"view_schema": views, "generation": generation}
        self._turn = _TURNS.setdefault(self._path, threading.Lock())
        self._file = DuckDbFile(self._path)
        self._connection: Connection | None = None

    @contextmanager
    def transaction(self) -> "Iterator[Connection]":
        """Attach the file for a transaction. Raises Unavailable when others hold it for too long."""
        deadline = time.monotonic() + self._settings.lock_timeout_s
        if not self._turn.acquire(timeout=self._settings.lock_timeout_s):
            raise Unavailable(f"another thread of this process is busy with {str(self._path)!r}", retry_after_s=1.0)
        try:
            with self._translated(), ExitStack() as after_detaching:
                if self._connection is None:
                    self._connection = _engine(self._settings).connect()
                try:
                    self._file.attach(self._execute, deadline, after_detaching)
                    with self._connection.begin():
                        yield self._connection
                    self._file.detach(self._execute)
                except BaseException:
                    self.close()  # this closes the file too, whatever went wrong
                    raise
        finally:
            self._turn.release()

    def looking(self) -> "AbstractContextManager[Connection]":
        return self.transaction()

    @property
    def path(self) -> Path:
        return self._path

    @property
    def connected(self) -> "Connection":
        assert self._connection is not None, "only inside a transaction"
        return self._connection

    @property
    def driver(self) -> Any:
        """The same connection as DuckDB's own, which exchanges Arrow data. Completes what was requested before."""
        driver: Any = self.connected.connection.driver_connection
        driver.complete()
        return driver

    def execute(self, query: str, **values: object) -> "CursorResult[Any]":
        from sqlalchemy import text

        return self.connected.execute(text(query), {**self._bound, **values})

    def execute_each(self, query: str, rows: Sequence[Mapping[str, object]]) -> None:
        for values in rows:
            self.execute(query, **values)

    def run(self, statement: str) -> "CursorResult[Any]":
        return self.connected.exec_driver_sql(statement, execution_options={"no_parameters": True})

    def run_all(self, statements: Sequence[str]) -> None:
        for statement in statements:
            self.run(statement)

    def locking(self, words: str) -> str:
        """Nothing: a transaction has the whole file to itself."""
        return ""

    def timeline(self) -> str:
        """A file has only one."""
        return ""

    def blocked_by(self) -> str | None:
        """No transaction waits: one process at a time has the file."""
        return None

    def has_relation(self, schema: str, relation: str) -> bool:
        return bool(
            self.execute(
                "select count(*) from information_schema.tables where table_catalog = current_database() "
                "and lower(table_schema) = lower(:schema) and lower(table_name) = lower(:relation)",
                schema=schema,
                relation=relation,
            ).scalar()
        )

    def has_schema(self, schema: str) -> bool:
        return bool(
            self.execute(
                "select count(*) from information_schema.schemata where catalog_name = current_database() "
                "and lower(schema_name) = lower(:schema)",
                schema=schema,
            ).scalar()
        )

    def disconnect(self) -> None:
        """Nothing of a transaction lasts beyond it."""

    def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()
            connection.engine.dispose()

    def _execute(self, statement: str) -> None:
        self.driver.execute(statement).fetchall()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        import duckdb
        from sqlalchemy.exc import DBAPIError

        try:
            yield
        except (DBAPIError, duckdb.Error) as error:
            raise translated(error, self._path) from error


@contextmanager
def registered(connection: DuckDbConnection, data: "pa.Table") -> Iterator[None]:
    """Make these rows available to statements as ``GIVEN``."""
    connection.driver.register(GIVEN, data)
    yield
    connection.driver.unregister(GIVEN)  # after an error, it goes with the connection


def _engine(settings: WarehouseSettings) -> "Engine":
    from sqlalchemy import create_engine, make_url
    from sqlalchemy.pool import NullPool

    url = make_url(settings.url.get_secret_value()).set(database=":memory:")
    try:
        # hide_parameters: an error's text must not hold values.
        return create_engine(url, poolclass=NullPool, hide_parameters=True)
    except ImportError as error:
        raise ConfigurationError(
            f"a warehouse in a DuckDB file needs the packages duckdb and duckdb-engine: {error}",
            hint="install Lockstep with the packages that its lock file names",
        ) from error
