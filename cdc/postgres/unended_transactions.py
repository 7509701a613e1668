"""What delays a snapshot: transactions that have changed something, and haven't ended for everybody."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from cdc.model.printable import visible

_NAMED_MAX: Final = 3

# A transaction that COMMIT PREPARED is about to end has no xid in pg_stat_activity, and is still a prepared one.
_UNENDED = """
select p.prepared as since, quote_literal(p.gid) as gid, p.database::text as place, null::int as pid, false as waits
from pg_prepared_xacts p where %(xids)s::bigint[] is null or p.transaction::text::bigint = any(%(xids)s)
union all
select coalesce(a.xact_start, a.backend_start), null, a.application_name, a.pid,
    coalesce(a.wait_event = 'SyncRep', false)
from pg_stat_activity a
where a.backend_xid is not null and a.pid <> pg_backend_pid()
  and (%(xids)s::bigint[] is null or a.backend_xid::text::bigint = any(%(xids)s))
"""


@dataclass(frozen=True, slots=True)
class UnendedTransaction:
    """A prepared transaction with ``gid``, its quoted name, and its database in ``place``; or one of process ``pid``,
    with the application in ``place``. ``seconds`` is its age, None if our role may not see it. ``waits_for_standby``:
    it is committed, and a synchronous standby hasn't confirmed it yet."""

    seconds: float | None
    gid: str | None
    place: str
    pid: int | None
    waits_for_standby: bool

    @property
    def sentence(self) -> str:
        """What it is, and what ends it."""
        age = "" if self.seconds is None else f", {self.seconds:.0f} s old"
        if self.gid is not None:
            gid = visible(self.gid)
            return (
                f"a prepared transaction of database {visible(self.place)}{age}: `commit prepared {gid}` or"
                f" `rollback prepared {gid}` there ends it"
            )
        whose = f"process {self.pid} ({visible(self.place) or 'no name'})"
        if self.waits_for_standby:
            return f"{whose} has committed and waits for a standby: see synchronous_standby_names"
        return f"{whose} has an open transaction{age}: `select pg_terminate_backend({self.pid})` ends it"


def unended_transactions(
    connection: psycopg.Connection[Any], xids: Collection[int] | None = None
) -> list[UnendedTransaction]:
    """All of the server, or those with these 32-bit xids, oldest first. Raises psycopg.Error."""
    rows = connection.execute(
        f"select extract(epoch from clock_timestamp() - since)::float8, gid, place, pid, waits from ({_UNENDED}) u"
        " order by since nulls last",
        {"xids": None if xids is None else list(xids)},
    ).fetchall()
    return [UnendedTransaction(row[0], row[1], row[2] or "", row[3], row[4]) for row in rows]


def told(transactions: Sequence[UnendedTransaction]) -> str:
    """The oldest of these transactions in words, with what ends them."""
    named = "; ".join(transaction.sentence for transaction in transactions[:_NAMED_MAX])
    more = f"; and {len(transactions) - _NAMED_MAX} more" if len(transactions) > _NAMED_MAX else ""
    return f"{named or 'none are left'}{more}"
