"""Waits until the catalogue shows what a transaction of the stream committed, before it is asked."""

import time
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from cdc.capture.confirmation import KeepAlive
from cdc.model.errors import Unavailable
from cdc.model.table import TableName
from cdc.postgres.slot import current_snapshot
from cdc.postgres.unended_transactions import told, unended_transactions
from cdc.protocol.visibility import SourceSnapshot

PATIENCE_S: Final = 5.0
_LOOK_S: Final = 0.005

# Sessions that wait for the transaction hold another lock mode on its xid. A prepared one has no process.
_IS_LOCKED_BY: Final = """
select exists (
    select from pg_locks own
    join pg_locks held on held.virtualtransaction = own.virtualtransaction and held.pid is not distinct from own.pid
    where own.locktype = 'transactionid' and own.transactionid::text::bigint = %s
      and own.mode = 'ExclusiveLock' and own.granted
      and held.locktype = 'relation' and held.relation = %s and held.mode = 'AccessExclusiveLock' and held.granted
      and held.database = (select oid from pg_database where datname = current_database())
)
"""


@dataclass(frozen=True, slots=True)
class VisibleCommits:
    """A commit is in the WAL before it is visible: by milliseconds on a busy server, and for as long as a synchronous
    standby is away. xids are the stream's, of 32 bits."""

    sql: psycopg.Connection[Any]
    keep_alive: KeepAlive

    def wait_for(self, xid: int, what: str) -> SourceSnapshot:
        """A snapshot that sees this transaction, which did ``what``. Raises Unavailable if it isn't visible after some
        seconds, and as psycopg."""
        deadline = time.monotonic() + PATIENCE_S
        while not (snapshot := current_snapshot(self.sql)).sees(xid):
            if time.monotonic() >= deadline:
                raise Unavailable(
                    f"{what} by a transaction that is committed and not visible yet:"
                    f" {told(unended_transactions(self.sql, [xid]))}"
                )
            self.keep_alive()
            time.sleep(_LOOK_S)
        return snapshot

    def wait_if_altered(self, xid: int, oid: int, name: TableName) -> SourceSnapshot:
        """A snapshot that sees what this transaction altered of the table of this oid, if it did. Altering, rewriting
        or creating a table locks it until others see the change. Without that lock, the catalogue says the
        same of it before and after the transaction. Raises as ``wait_for``."""
        snapshot = current_snapshot(self.sql)
        if snapshot.sees(xid):
            return snapshot
        (is_locked,) = self.sql.execute(_IS_LOCKED_BY, (xid, oid)).fetchall()[0]
        return self.wait_for(xid, created_or_altered(name)) if is_locked else snapshot


def created_or_altered(name: TableName) -> str:
    """What a transaction did to a table, in words."""
    return f"{name} was created or altered"
