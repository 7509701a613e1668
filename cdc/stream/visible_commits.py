"""The catalogue isn't asked about a transaction of the stream before it shows what that one committed."""

import time
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from cdc.capture.confirmation import KeepAlive
from cdc.model.errors import Unavailable
from cdc.model.table import TableName
from cdc.postgres.slot import current_snapshot
from cdc.postgres.unended_transactions import told, unended_transactions
from cdc.protocol.visibility import UnfinishedTransactions

PATIENCE_S: Final = 5.0
_LOOK_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class VisibleCommits:
    """``unfinished`` knows which transaction of the stream is being read."""

    sql: psycopg.Connection[Any]
    unfinished: UnfinishedTransactions
    keep_alive: KeepAlive

    def wait_for_newest(self, name: TableName) -> None:
        """Wait until statements see the transaction that is being read, in which the stream describes ``name``.

        A commit is in the WAL before it is visible. That takes some milliseconds on a busy server, and as long as a
        synchronous standby is away. Raises Unavailable after some seconds, and as psycopg.
        """
        xid = self.unfinished.newest
        deadline = time.monotonic() + PATIENCE_S
        while not current_snapshot(self.sql).sees(xid):
            if time.monotonic() >= deadline:
                raise Unavailable(
                    f"{name} was created or altered by a transaction that is committed and that nobody sees so far:"
                    f" {told(unended_transactions(self.sql, [xid]))}"
                )
            self.keep_alive()
            time.sleep(_LOOK_S)
