"""What the source says of the pipeline, over a connection that stays open."""

import collections
import contextlib
import math
import time
from typing import Any

import psycopg

from cdc.model.errors import LockstepError
from cdc.model.lsn import Lsn, parse_lsn
from cdc.postgres.connection import connect, connection_error
from cdc.postgres.dsn import parse_dsn
from cdc.postgres.settings import SourceSettings
from cdc.postgres.slot import (
    CAPTURE_SESSIONS,
    SLOT_SESSIONS,
    CaptureSession,
    emit_heartbeat,
    find_capture,
    system_identifier,
)
from cdc.protocol.control_records import CaptureState, ProgressRecord, SnapshotPhase
from cdc.stream.slot_watch import wal_rate
from monitor.lag import SourceFacts, elsewhere

APPLICATION = "lockstep lag"

_HEARTBEAT_S = 4.0
"""How often an idle source gets a heartbeat, so that a stage that hangs is noticed."""

_RATE_LOOKS = 60
"""Over how many reports the WAL's rate is measured: about a minute of ``lag --watch``."""

_SILENT_S = 25.0
"""After so long without a status update, capture's last report is void: it sends one every two seconds."""


class SourceLook:
    """Looks at a source repeatedly, until it is closed. Every method but ``close`` raises Unavailable."""

    def __init__(self, settings: SourceSettings, slot: str, *, application: str = APPLICATION) -> None:
        self._settings = settings
        self._application = application
        self._slot = slot
        self._connection: psycopg.Connection[Any] | None = None
        self._identity: tuple[str | None, str] = None, ""
        self._looks: collections.deque[tuple[float, Lsn]] = collections.deque(maxlen=_RATE_LOOKS)
        self._heartbeat_at = -math.inf

    @property
    def server(self) -> str:
        dsn = parse_dsn(self._settings.dsn)
        return f"the source at {dsn.get('host', 'its socket')}:{dsn.get('port', 5432)}"

    def begin(self) -> None:
        """Look for the first time, so that the first report has a rate too."""
        if not self._looks:
            self._look(self._wal_end())

    def heartbeat(self, last_commit_ms: int) -> None:
        """Commit a heartbeat on an idle source: without it, a stage that hangs would go unnoticed. Only while a capture
        reads the slot: otherwise nobody would see it, and the WAL would grow for nothing."""
        now = time.monotonic()
        is_fresh = time.time_ns() // 1_000_000 - last_commit_ms < _HEARTBEAT_S * 1000
        if now - self._heartbeat_at < _HEARTBEAT_S or is_fresh or self._connection is None:
            return
        (is_read,) = self._query(
            "select exists (select from pg_replication_slots where slot_name = %s and active)", self._slot
        )
        if is_read:
            self._heartbeat_at = now
            with contextlib.suppress(psycopg.Error, LockstepError):  # such as a read-only server
                emit_heartbeat(self._connection)

    def emit(self) -> Lsn:
        """Commit something, and return an LSN after it. Call another method first, which connects."""
        assert self._connection is not None
        try:
            return emit_heartbeat(self._connection)
        except psycopg.Error as error:
            raise connection_error(error) from error

    def position(self) -> tuple[Lsn, bool, str | None]:
        """Where the WAL ends, whether the slot is read, and its state in PostgreSQL's words."""
        wal_end, is_active, wal_status = self._query(
            "select pg_current_wal_insert_lsn()::text, s.active,"
            " case when s.slot_name is not null then coalesce(s.wal_status, 'reserved') end"
            " from (select 1) one left join pg_replication_slots s on s.slot_name = %s",
            self._slot,
        )
        return parse_lsn(wal_end), bool(is_active), wal_status

    def elsewhere(self, state: CaptureState | None) -> tuple[str, ...]:
        """How the source isn't the one published from, in phrases. Call another method first, which connects."""
        system_id, database = self._identity
        return () if state is None else elsewhere(state, system_id=system_id, database=database)

    def complete_lsn(self) -> tuple[Lsn | None, bool]:
        """The LSN up to which everything is in Kafka, as reported by capture; and whether the slot is gone or lost. The
        LSN is None if capture doesn't run, or gives no sign of life. The time of its last sign is by its machine's
        clock, since PostgreSQL doesn't store when a sign came."""
        complete, is_slot_lost = self._query(
            "select (select r.replay_lsn::text from pg_replication_slots s"
            " join pg_stat_replication r on r.pid = s.active_pid"
            " where s.slot_name = %s and r.reply_time > clock_timestamp() - %s::float8 * interval '1 s'),"
            " not exists (select from pg_replication_slots"
            " where slot_name = %s and coalesce(wal_status, '') <> 'lost')",
            self._slot,
            str(_SILENT_S),
            self._slot,
        )
        return (parse_lsn(complete) if complete else None), is_slot_lost

    def facts(
        self,
        newest: ProgressRecord | None,
        complete_lsn: Lsn | None,
        copying: CaptureState | None,
        state: CaptureState | None,
    ) -> SourceFacts:
        """``copying`` and ``state`` were read before: what they say of the slot is true by now."""
        row = self._query(
            "select pg_current_wal_insert_lsn()::text, s.active, r.write_lsn::text,"
            " pg_wal_lsn_diff(pg_current_wal_insert_lsn(), s.restart_lsn)::bigint,"
            " case when s.slot_name is not null then coalesce(s.wal_status, 'reserved') end, s.safe_wal_size,"
            " case when a.state = 'active' then coalesce(a.wait_event, '') else 'idle' end, r.reply_time::text,"
            f" {_blocker_of(CAPTURE_SESSIONS)}, {_blocker_of(SLOT_SESSIONS)}"
            " from (select 1) one left join pg_replication_slots s on s.slot_name = %s"
            " left join pg_stat_replication r on r.pid = s.active_pid"
            " left join pg_stat_activity a on a.pid = s.active_pid",
            *(3 * [self._slot]),
        )
        wal_end, active, received, retained, wal_status, safe_wal_size, walsender, reported_at, *blockers = row
        blocked_by, slot_waits_for = (blocker and f"pid {blocker}" for blocker in blockers)
        capture = self._capture()
        (first_s, first_end), (last_s, last_end) = self._looks[0], self._look(parse_lsn(wal_end))
        gaps = () if state is None else state.gaps
        return SourceFacts(
            last_end,
            parse_lsn(received) if received else None,
            newest.lsn if newest is not None and newest.lsn else None,
            newest.commit_time_ms if newest is not None and newest.lsn else None,
            bool(active),
            retained,
            wal_status,
            safe_wal_size,
            wal_rate(bytes_written=last_end - first_end, seconds=last_s - first_s),
            gaps[-1] if gaps else None,
            self.elsewhere(state),
            complete_lsn=complete_lsn,
            complete_ms=self._complete_as_of_ms(complete_lsn),
            copied_from_lsn=(
                copying.end_lsn if copying is not None and copying.phase is SnapshotPhase.COPYING else None
            ),
            walsender=walsender,
            blocked_by=blocked_by,
            slot_waits_for=slot_waits_for,
            is_captured=capture is not None,
            captured_silent_s=None if capture is None else capture.silent_s,
            reported_at=reported_at,
            commit_interval_ms=(newest.commit_interval_ms or None) if newest is not None else None,
        )

    def _complete_as_of_ms(self, complete_lsn: Lsn | None) -> int:
        """When the WAL was last seen to end no later than there, in milliseconds since 1970; 0 if never."""
        seen = [at for at, wal_end in self._looks if complete_lsn is not None and wal_end <= complete_lsn]
        if not seen:
            return 0
        return time.time_ns() // 1_000_000 - math.ceil((time.monotonic() - seen[-1]) * 1000)

    def _wal_end(self) -> Lsn:
        (wal_end,) = self._query("select pg_current_wal_insert_lsn()::text")
        return parse_lsn(wal_end)

    def _look(self, wal_end: Lsn) -> tuple[float, Lsn]:
        """Remember where the WAL ended, and when."""
        look = time.monotonic(), wal_end
        self._looks.append(look)
        return look

    def _capture(self) -> CaptureSession | None:
        assert self._connection is not None  # it has answered
        try:
            return find_capture(self._connection, self._slot)
        except psycopg.OperationalError as error:
            raise connection_error(error) from error

    def _query(self, sql: str, *parameters: str) -> tuple[Any, ...]:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = connect(self._settings, application=self._application)
                self._identity = system_identifier(self._connection), self._connection.info.dbname
            row = self._connection.execute(sql.encode(), parameters).fetchone()
        except psycopg.OperationalError as error:
            raise connection_error(error) from error
        assert row is not None
        return tuple(row)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _blocker_of(sessions: str) -> str:
    """SQL: who holds the lock that one of these sessions waits for. ``sessions`` is SQL for their processes."""
    return (
        "(select b.pid || ' (' || coalesce(b.application_name, '') || ')' from pg_stat_activity c"
        " cross join lateral unnest(pg_blocking_pids(c.pid)) as by (pid) join pg_stat_activity b on b.pid = by.pid"
        f" where c.pid in ({sessions}) and c.wait_event_type = 'Lock' limit 1)"
    )
