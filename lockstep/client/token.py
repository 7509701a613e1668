"""Tokens: an LSN of the source from after a commit, as text. Any connection to the same server gives one."""

from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from cdc.model.errors import LockstepError

_QUERY: Final = "select pg_current_wal_insert_lsn()::text"

_HINT: Final = "call it after the commit: before, the token would lie before the end of the transaction"


def commit_token(connection: Any) -> str:
    """A token that lies after everything that was committed before this call, over any connection.

    ``connection`` is a connection of psycopg or SQLAlchemy, or a session or an engine of SQLAlchemy, to the captured
    server. It is left as it was: a transaction that was begun to ask is rolled back.

    Raises LockstepError while a transaction is open, and what the driver raises if the server can't be asked or is a
    standby.
    """
    if isinstance(connection, psycopg.Connection):
        _check_idle(connection)
        token = _text(connection.execute(_QUERY).fetchone())
        if not connection.autocommit:
            connection.rollback()
        return token
    import sqlalchemy
    from sqlalchemy.orm import Session

    if isinstance(connection, Session):
        if connection.in_transaction():
            raise LockstepError("the session is in a transaction", hint=_HINT)
        connection = connection.get_bind()  # asked beside the session: a rollback would expire its objects
    if isinstance(connection, sqlalchemy.Engine):
        with connection.connect() as own:
            return _text(own.execute(sqlalchemy.text(_QUERY)).fetchone())
    if isinstance(connection, sqlalchemy.Connection):
        if connection.in_transaction():
            raise LockstepError("the connection is in a transaction", hint=_HINT)
        with connection.begin() as asking:
            token = _text(connection.execute(sqlalchemy.text(_QUERY)).fetchone())
            asking.rollback()
        return token
    raise TypeError(f"not a connection of psycopg or SQLAlchemy: {type(connection).__qualname__}")


async def commit_token_async(connection: Any) -> str:
    """The same for the asynchronous connections, sessions and engines of both. Raises as ``commit_token``."""
    if isinstance(connection, psycopg.AsyncConnection):
        _check_idle(connection)
        token = _text(await (await connection.execute(_QUERY)).fetchone())
        if not connection.autocommit:
            await connection.rollback()
        return token
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

    if isinstance(connection, AsyncSession):
        return await connection.run_sync(commit_token)
    if isinstance(connection, AsyncEngine):
        async with connection.connect() as own:
            return await own.run_sync(commit_token)
    if isinstance(connection, AsyncConnection):
        return await connection.run_sync(commit_token)
    raise TypeError(f"not an asynchronous connection of psycopg or SQLAlchemy: {type(connection).__qualname__}")


def _check_idle(connection: Any) -> None:
    if connection.info.transaction_status is not TransactionStatus.IDLE:
        raise LockstepError("the connection is in a transaction", hint=_HINT)


def _text(row: Any) -> str:
    return str(row[0])
