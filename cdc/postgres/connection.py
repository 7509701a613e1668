"""Connections to the source database, with the session settings that make a value's text the same everywhere."""

import re
from typing import Any, Final, cast

import psycopg
from psycopg.conninfo import make_conninfo

from cdc.event_format.column_types import SESSION_SETTINGS
from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.postgres.dsn import parse_dsn
from cdc.postgres.settings import SourceSettings

_CONNECT_TIMEOUT_S = 10

PINNED_SETTINGS = SESSION_SETTINGS | {
    # Makes a policy that would hide rows from us an error. Hidden rows would be taken for deleted.
    "row_security": "off",
    # Limits of a role or a database are for people's queries. Copies have no time limit.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}

_NO_TRANSACTION_TIMEOUT = (170000, "set transaction_timeout = 0")
"""The same, but older servers don't know the setting and would refuse the connection."""

_KEEPALIVES = {
    # Notices a vanished host within a minute. The system's default is two hours.
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 4,
    "tcp_user_timeout": 60_000,
}

# Classes of SQLSTATE in which the same call can succeed later: connection, too many connections, shutting down.
_TRANSIENT_CLASSES = ("08", "53", "57")

_INTERNAL_CLASS = "XX"
"""Also raised for a table that is dropped meanwhile: "could not open relation with OID 16384"."""

_STAYING_INTERNAL = ("XX001", "XX002")
"""Damaged data or index, which is permanent. So is a value too large for PostgreSQL, without its own SQLSTATE."""
_TOO_LARGE = "invalid memory alloc request size"

_VALUE_CLASSES = ("22", "23")
"""Data exceptions and violated constraints."""

_LOCK_NOT_AVAILABLE = "55P03"

LOCK_TIMEOUT_MS: Final = 2000

LOCK_TIMEOUT: Final = f"set lock_timeout = {LOCK_TIMEOUT_MS}"
"""For connections whose queries would wait for a table's lock while nobody reads the stream."""

_UNTRUSTED: Final = ("certificate verify failed", "does not match host name")
"""libpq's errors about a server's certificate. Nothing was sent to the server then."""

_OURS_REFUSED: Final = (
    "requires a valid client certificate",
    "alert certificate required",
    "alert unknown ca",
    "alert bad certificate",
    "alert certificate expired",
    "alert certificate revoked",
)
"""Errors about our certificate, or its absence."""

_REFUSED_FOR_GOOD = (
    *_OURS_REFUSED,
    *_UNTRUSTED,
    "authentication failed",
    "no password",
    "pg_hba.conf",
    "does not exist",
    "is not permitted to log in",
    "permission denied",
    "unsupported startup parameter",
    "unrecognized configuration parameter",
    "invalid value for parameter",
    "does not support SSL",
)

# libpq's errors about a connection string or a PG... variable, before it contacts any server.
_WRONG_PARAMETER: Final = re.compile(
    r'invalid "?\w+"? value\b|invalid port number|could not match \d+ |definition of service ".*" not found'
)


def conninfo(source: SourceSettings, *, application: str) -> str:
    """libpq's connection string, password included: never print it. Our session settings override the DSN's. Raises as
    ``SourceSettings.password``."""
    given = parse_dsn(source.dsn)
    pinned = " ".join(f"-c {name}={value}" for name, value in PINNED_SETTINGS.items() if name != "client_encoding")
    password = source.password()
    options = f"{given.get('options', '')} {pinned}".strip()
    given |= {
        "options": options,
        "client_encoding": SESSION_SETTINGS["client_encoding"],
        "application_name": application,
    }
    given = {"connect_timeout": _CONNECT_TIMEOUT_S, **_KEEPALIVES, **given}
    if password is not None:
        given["password"] = password.get_secret_value()
    return make_conninfo("", **given)


def connect(source: SourceSettings, *, application: str, replication: bool = False) -> psycopg.Connection[Any]:
    """An autocommit connection. Raises Unavailable if the server can't be reached, LockstepError if it refuses us, and
    ConfigurationError if the connection string has a value that can't work. Also raises as ``SourceSettings.password``.
    """
    try:
        parameters = {"replication": "database"} if replication else {}
        connection: psycopg.Connection[Any] = psycopg.connect(
            conninfo(source, application=application), autocommit=True, **cast("Any", parameters)
        )
    except psycopg.ProgrammingError as error:  # psycopg itself rejected a value
        raise _wrong_parameter(str(error).strip()) from error
    except psycopg.OperationalError as error:
        raise connection_error(error) from error
    since, statement = _NO_TRANSACTION_TIMEOUT
    if connection.info.server_version >= since:
        try:
            connection.execute(statement)
        except psycopg.OperationalError as error:
            connection.close()
            raise connection_error(error) from error
    return connection


def connection_error(error: psycopg.Error) -> LockstepError:
    """psycopg's error as one of ours: Unavailable if a retry may succeed, otherwise one for the operator."""
    text = str(error).strip().replace("\t", " ")  # libpq begins its further lines with one
    state = error.sqlstate or ""
    if state == _LOCK_NOT_AVAILABLE:
        return Unavailable("a table is locked, by an ALTER TABLE that isn't committed for instance", retry_after_s=1.0)
    if state.startswith(_INTERNAL_CLASS) and state not in _STAYING_INTERNAL and _TOO_LARGE not in text:
        return Unavailable(
            f"PostgreSQL can't answer, perhaps since a table is being dropped: {text}", retry_after_s=1.0
        )
    if state.startswith(_VALUE_CLASSES):
        text = f"{type(error).__name__}, SQLSTATE {state}"  # its text may hold a row's value
    if not state and _WRONG_PARAMETER.search(text):
        return _wrong_parameter(text)
    # libpq has no SQLSTATE for a server that refuses the connection in its own words.
    refused_for_good = any(words in text for words in _REFUSED_FOR_GOOD)
    if state.startswith(_TRANSIENT_CLASSES) or (not state and not refused_for_good):
        return Unavailable(f"PostgreSQL is not available: {text}", retry_after_s=1.0)
    if not state and any(words in text for words in _UNTRUSTED):
        return LockstepError(
            f"PostgreSQL's certificate isn't trusted: {text}",
            hint="its authority isn't known here, or it is of another name, or has expired: let sslrootcert= in"
            " source.dsn name the authority's certificate, or have the server's renewed; then run `lockstep doctor`",
        )
    if not state and any(words in text for words in _OURS_REFUSED):
        return LockstepError(
            f"PostgreSQL refuses the certificate that is shown, or that none is: {text}",
            hint="let sslcert= and sslkey= in source.dsn name a certificate that the server's authority has signed;"
            " then run `lockstep doctor`",
        )
    return LockstepError(
        f"PostgreSQL refused: {text}", hint="`lockstep doctor` shows what is missing and the SQL for it"
    )


def _wrong_parameter(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"PostgreSQL can't be connected to: {text}", hint="correct source.dsn, or the PG... variable that sets it"
    )
