"""cdc.postgres.connection: which failed connections can succeed later."""

import psycopg
import pytest

from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.postgres.connection import connect, connection_error
from cdc.postgres.settings import SourceSettings


@pytest.mark.parametrize(
    "mistyped",
    [
        "port=54x32",
        "port=99999",
        "port=1 sslmode=verfy-full",
        "port=1 channel_binding=always",
        "port=1 target_session_attrs=primry",
        "port=1 ssl_min_protocol_version=1.2",
        "port=1 keepalives=yes",
        "port=1 connect_timeout=10s",
        "port=1,2",
        "service=nowhere",
    ],
)
def test_a_value_that_libpq_does_not_know_is_a_wrong_configuration(mistyped: str) -> None:
    source = SourceSettings(dsn=f"host=127.0.0.1 {mistyped}", tables=("public.t",))
    with pytest.raises(ConfigurationError, match=r"source\.dsn"):
        connect(source, application="test")


def test_nobody_who_listens_is_a_matter_of_time() -> None:
    with pytest.raises(Unavailable):
        connect(SourceSettings(dsn="host=127.0.0.1 port=1", tables=("public.t",)), application="test")


@pytest.mark.parametrize(
    "text",
    [
        "SSL error: certificate verify failed",
        'server certificate for "other" does not match host name "db"',
        "server does not support SSL, but SSL was required",
        'FATAL:  unrecognized configuration parameter "serch_path"',
        'FATAL:  invalid value for parameter "work_mem": "many"',
        'FATAL:  password authentication failed for user "b"',
        'FATAL:  Peer authentication failed for user "b"',
        'FATAL:  GSSAPI authentication failed for user "b"',
    ],
)
def test_what_the_operator_has_to_mend_is_not_tried_again(text: str) -> None:
    error = connection_error(psycopg.OperationalError(f'connection to server at "db", port 5432 failed: {text}'))
    assert isinstance(error, LockstepError)
    assert not isinstance(error, Unavailable)


def test_a_table_that_is_dropped_under_a_question_is_no_reason_to_stop() -> None:
    error = connection_error(psycopg.errors.InternalError_("could not open relation with OID 16384"))
    assert isinstance(error, Unavailable)


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.InternalError_("invalid memory alloc request size 1258291203"),
        psycopg.errors.DataCorrupted("invalid page in block 7 of relation base/5/16384"),
        psycopg.errors.ProgramLimitExceeded("string buffer exceeds maximum allowed length (1073741823 bytes)"),
        psycopg.errors.UndefinedObject('publication "lockstep_shop" does not exist'),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_there_at_the_next_try_as_well_is_not_tried_again(error: psycopg.Error) -> None:
    assert not isinstance(connection_error(error), Unavailable)


def test_what_postgresql_says_of_a_value_is_not_shown() -> None:
    error = connection_error(psycopg.errors.InvalidTextRepresentation('invalid input for type integer: "secret"'))
    assert not isinstance(error, Unavailable)
    assert "InvalidTextRepresentation, SQLSTATE 22P02" in error.message
    assert "secret" not in str(error)
