"""One connection to a SQL warehouse: transactions, statements, and the database's errors as Lockstep's."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cdc.event_format.column_types import SESSION_SETTINGS
from cdc.model.errors import ConfigurationError, Unavailable
from cdc.model.table import quote_identifier
from sinks.warehouse.names import qualified
from sinks.warehouse.postgres.errors import translated
from sinks.warehouse.settings import WarehouseSettings

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, CursorResult, Engine

_IDLE: Final = 0
"""libpq's PQTRANS_IDLE: the connection is in no transaction."""

_STATEMENTS: Final = 100  # per request: for thousands of statements, round trips take longer than the statements

# Settings that a role, a database or the server may have, and our sessions must not have.
_SESSION: Final = (
    # Such limits are meant for people's queries: a merge that exceeds one would be repeated for ever.
    "select set_config('statement_timeout', '0', false)",
    "select set_config('transaction_timeout', '0', false) where current_setting('server_version_num')::int >= 170000",
    "select set_config('idle_session_timeout', '0', false) where current_setting('server_version_num')::int >= 140000",
    # Statements must see what others have committed: tasks of one batch write to the same bookkeeping.
    "select set_config('default_transaction_isolation', 'read committed', false)",
    # Acknowledged writes must survive a crash. A stricter level than 'on' stays.
    "select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'",
)


class WarehouseConnection:
    """Connects at the first transaction, and again after a lost connection.

    ``views`` is the schema of a sink's views. ``forget`` is called when a connection ends: its temporary tables are
    gone.
    """

    def __init__(
        self, settings: WarehouseSettings, *, views: str, generation: int, forget: Callable[[], object]
    ) -> None:
        self._settings = settings
        self._forget = forget
        self._bound = {"view_schema": views, "generation": generation}
        self.lock_timeout_ms = lock_timeout_ms(settings)
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._is_in_step = False

    @contextmanager
    def transaction(self) -> "Iterator[Connection]":
        if self._is_in_step:
            # A failure undoes only this transaction. The step ends then, and translates its errors.
            with self.connected.begin_nested():
                yield self.connected
            return
        with self.translated():
            if self._connection is None:
                self._connection = self.open()
            with self._connection.begin():
                yield self._connection

    @contextmanager
    def step(self) -> Iterator[None]:
        """Joins all transactions inside it into one, which is committed as a whole or not at all."""
        with self.transaction():
            self._is_in_step = True
            try:
                yield
            finally:
                self._is_in_step = False

    @contextmanager
    def looking(self) -> Iterator[None]:
        if self._is_in_step:
            yield
            return
        with self.translated():
            if self._connection is None:
                self._connection = self.open()
            driver: Any = self._connection.connection.driver_connection
            # Otherwise the driver begins and ends a transaction: three round trips instead of one.
            driver.autocommit = True
            try:
                with self._connection.begin():
                    yield
            finally:
                if driver.info.transaction_status == _IDLE:
                    driver.autocommit = False
                else:  # broken, or inside a transaction
                    self.disconnect()

    @property
    def connected(self) -> "Connection":
        assert self._connection is not None, "only inside a transaction"
        return self._connection

    def execute(self, query: str, **values: object) -> "CursorResult[Any]":
        from sqlalchemy import text

        return self.connected.execute(text(query), {**self._bound, **values})

    def run(self, statement: str) -> "CursorResult[Any]":
        return self.connected.exec_driver_sql(statement, execution_options={"no_parameters": True})

    def execute_each(self, query: str, rows: Sequence[Mapping[str, object]]) -> None:
        """In a pipeline."""
        from sqlalchemy import text

        if rows:
            self.connected.execute(text(query), [{**self._bound, **values} for values in rows])

    def run_all(self, statements: Sequence[str]) -> None:
        for start in range(0, len(statements), _STATEMENTS):
            self.run(";\n".join(statements[start : start + _STATEMENTS]))

    def locking(self, words: str) -> str:
        return words

    def has_relation(self, schema: str, relation: str) -> bool:
        return bool(self.execute("select to_regclass(:name) is not null", name=qualified(schema, relation)).scalar())

    def has_schema(self, schema: str) -> bool:
        return bool(self.execute("select to_regnamespace(:name) is not null", name=quote_identifier(schema)).scalar())

    def timeline(self) -> str:
        # Only a server that accepts writes has a position.
        query = (
            "select case when pg_is_in_recovery() then '' "
            "else substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) end"
        )
        return str(self.execute(query).scalar())

    def blocked_by(self) -> str | None:
        # Sinks of one role in one database look alike here. A sink may see another's lock, but then it isn't stalled.
        query = (
            "select b.pid || ' (' || coalesce(nullif(b.application_name, ''), 'no name') || ')' from pg_stat_activity a"
            " cross join lateral unnest(pg_blocking_pids(a.pid)) as by (pid) join pg_stat_activity b on b.pid = by.pid"
            " where a.datname = current_database() and a.application_name = :application and a.wait_event_type = 'Lock'"
            " and b.application_name <> :application limit 1"
        )
        with self.looking():
            blocker = self.execute(query, application=_APPLICATION).scalar()
        return None if blocker is None else f"pid {blocker}"

    def copy(self, into: str, blocks: Iterator[bytes]) -> int:
        """Returns the total size of the blocks in bytes."""
        driver: Any = self.connected.connection.driver_connection
        size = 0
        with driver.cursor() as cursor, cursor.copy(into) as copy:
            for block in blocks:
                copy.write(block)
                size += len(block)
        return size

    def disconnect(self) -> None:
        self._forget()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        self.disconnect()
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def open(self) -> "Connection":
        """Another connection, which the caller closes."""
        if self._engine is None:
            self._engine = _engine(self._settings)
        return self._engine.connect()

    def driver_errors(self) -> tuple[type[Exception], ...]:
        """SQLAlchemy wraps the errors of what it executes. COPY bypasses it and raises the driver's own errors."""
        from sqlalchemy.exc import DBAPIError

        return (DBAPIError,) if self._engine is None else (DBAPIError, self._engine.dialect.loaded_dbapi.Error)

    @contextmanager
    def translated(self) -> Iterator[None]:
        if self._engine is None:
            self._engine = _engine(self._settings)
        try:
            yield
        except self.driver_errors() as error:
            ours = translated(error)
            if isinstance(ours, Unavailable):
                self.disconnect()
            raise ours from error


_APPLICATION: Final = "lockstep"


def lock_timeout_ms(settings: WarehouseSettings) -> int:
    return max(1, int(settings.lock_timeout_s * 1000))


def lines_of(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of COPY's output without their newlines, wherever its blocks end."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + bytes(block)).split(b"\n")
        yield from lines


def _refuse_pooler(connection: Any, cursor: Any) -> None:
    """Raise ConfigurationError if another process answers than the one that was connected to.

    A pooler gives the next transaction to another connection of its own. The session's settings, temporary tables and
    locks stay on the former connection, and no error says so.
    """
    cursor.execute("select pg_backend_pid()")
    (answering,) = cursor.fetchone()
    if answering != connection.info.backend_pid:
        raise ConfigurationError(
            f"a pooler is between this sink and the warehouse at {connection.info.host}:{connection.info.port}, and a"
            " session's settings, temporary tables and locks don't pass it",
            hint="let url of this sink be the address of PostgreSQL itself; then run `lockstep doctor`",
        )


def libpq_parts(settings: WarehouseSettings) -> dict[str, Any]:
    """libpq's connection parameters, including the password; empty for a DuckDB file. Raises ConfigurationError."""
    if settings.is_file:
        return {}
    url = _address(settings)
    _, given = url.get_dialect()().create_connect_args(url)
    return {**given, **_connect_arguments(settings)}


def _address(settings: WarehouseSettings) -> "URL":
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(settings.url.get_secret_value())
    except (ArgumentError, ValueError) as error:  # the latter for a port that is no number
        raise ConfigurationError(
            "the warehouse's address isn't an SQLAlchemy URL", hint="postgresql+psycopg://user@host:5432/database"
        ) from error
    if url.drivername not in ("postgresql", "postgresql+psycopg"):
        raise ConfigurationError(
            f"no warehouse sink for {url.drivername!r}",
            hint="use an address that begins with postgresql+psycopg://",
        )
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    return url if settings.login.user is None else url.set(username=settings.login.user)


def _connect_arguments(settings: WarehouseSettings) -> dict[str, Any]:
    connect: dict[str, Any] = {
        "connect_timeout": 10,
        "application_name": _APPLICATION,
        # A vanished machine is noticed within a minute. A server that hangs isn't: its machine still answers.
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,
    }
    if settings.tls is not None:
        tls = settings.tls
        connect["sslmode"] = "verify-full"
        connect["sslrootcert"] = "system" if tls.ca_file is None else str(tls.ca_file)
        if tls.certificate_file is not None:
            connect["sslcert"] = str(tls.certificate_file)
        if tls.key_file is not None:
            connect["sslkey"] = str(tls.key_file)
    return connect


def _engine(settings: WarehouseSettings) -> "Engine":
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import NullPool

    # hide_parameters: an error's text must not hold values.
    engine = create_engine(
        _address(settings), poolclass=NullPool, connect_args=_connect_arguments(settings), hide_parameters=True
    )
    session = {
        **SESSION_SETTINGS,
        "idle_in_transaction_session_timeout": "60s",
        "lock_timeout": str(lock_timeout_ms(settings)),
    }

    def pin(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            _refuse_pooler(connection, cursor)
            for name, value in session.items():
                cursor.execute("select set_config(%s, %s, false)", (name, value))
            for statement in _SESSION:
                cursor.execute(statement)
        connection.commit()

    def log_in(_dialect: object, _record: object, _arguments: object, parameters: dict[str, Any]) -> None:
        password = settings.login.read_password()
        if password is not None:
            parameters["password"] = password

    event.listen(engine, "do_connect", log_in)
    event.listen(engine, "connect", pin)
    return engine
