"""One connection to the source, for reads by COPY and for points of its stream."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import sql

from cdc.postgres.connection import LOCK_TIMEOUT, connect, connection_error
from cdc.postgres.settings import SourceSettings
from cdc.postgres.slot import emit_heartbeat
from cdc.protocol.copy_text import split_row
from cdc.protocol.pgoutput import Fields
from lockstep.verify.waiting import SyncPoint, Waiting

APPLICATION: Final = "lockstep verify"


class SourceConnection:
    """Connects when first used, and again after a lost connection. Every method raises Unavailable if the source
    doesn't answer, and LockstepError if a stop is asked for."""

    def __init__(self, source: SourceSettings, *, epoch: int, waiting: Waiting) -> None:
        self._source = source
        self._epoch = epoch
        self._waiting = waiting
        self._connection: psycopg.Connection[Any] | None = None

    @contextmanager
    def opened(self) -> Iterator[psycopg.Connection[Any]]:
        self._waiting.check()
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._source, application=APPLICATION)
            self._connection.execute(LOCK_TIMEOUT)
        try:
            yield self._connection
        except psycopg.OperationalError as error:
            raise connection_error(error) from error

    def sync_point(self) -> SyncPoint:
        with self.opened() as connection:
            return SyncPoint(lsn=emit_heartbeat(connection), epoch=self._epoch)

    def copy(self, query: str) -> Iterator[Fields]:
        statement = f"copy ({query}\n) to stdout".encode()
        with self.opened() as connection, connection.cursor() as cursor, cursor.copy(statement) as copy:
            for line in copy:
                yield split_row(bytes(line)[:-1])

    def literal(self, value: str | Sequence[str]) -> str:
        """A text, or an array of texts, as SQL."""
        return sql.Literal(value if isinstance(value, str) else list(value)).as_string(self._connection)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
