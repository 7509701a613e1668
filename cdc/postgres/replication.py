"""A replication connection: identify, create slots, stream. One thread; never waits longer than requested. Uses psycopg
3's ``pq``, since libpq then returns every frame unchanged and confirms nothing by itself."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import psycopg
from psycopg import pq

from cdc.model.closing import Closing
from cdc.model.errors import LockstepError, Unavailable
from cdc.model.lsn import Lsn, format_lsn, parse_lsn
from cdc.model.table import quote_identifier
from cdc.postgres.connection import connect, connection_error
from cdc.postgres.settings import SourceSettings
from cdc.postgres.versions import FAILOVER_SLOTS
from cdc.protocol.walsender import Frame
from cdc.readiness import wait_ready

APPLICATION = "lockstep capture"

_POLL_S = 0.1

_FAILOVER_SLOT = "(SNAPSHOT 'export', FAILOVER true)"

_STREAM_HINTS: Final = {
    "22": "is the database's encoding SQL_ASCII? Text of a row that was written isn't valid UTF-8, so it can't be"
    " decoded. Nothing was skipped. Correct the row; then `lockstep recover` copies the tables again, without the"
    " changes in between",
    "42704": "was the publication dropped? Create it again (`lockstep doctor` has the SQL). PostgreSQL 17 and earlier"
    " can't decode what was committed without it: if capture stops here again, run `lockstep recover`",
    "54": "a row that was written is larger than the 1 GB that PostgreSQL can decode. Nothing was skipped. Correct the"
    " row; then `lockstep recover` copies the tables again, without the changes in between",
}
"""Hints for permanent errors, by the beginning of their SQLSTATE."""


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """Which WAL this is: a restored or other server has another ``system_id``, a promoted one another ``timeline``.
    ``left_at`` is where the server left each earlier timeline, as far as it says."""

    system_id: str
    timeline: int
    wal_end: Lsn
    database: str
    left_at: Mapping[int, Lsn] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """``consistent_point`` is where the stream starts; the snapshot shows exactly what committed before it.
    ``snapshot_name`` can be imported while the connection that created the slot runs no other command."""

    consistent_point: Lsn
    snapshot_name: str


def parse_timeline_history(text: str) -> dict[int, Lsn]:
    """A timeline's history file -> each earlier timeline, and where it was left. Lines are the timeline, the LSN and a
    reason, separated by tabs. Other lines, such as comments, are skipped."""
    left_at = {}
    for line in text.splitlines():
        fields = line.split()
        with contextlib.suppress(ValueError, IndexError):
            left_at[int(fields[0])] = parse_lsn(fields[1])
    return left_at


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class ReplicationConnection(Closing):
    """Speaks the streaming replication protocol. Raises as ``connect``. Methods raise Unavailable if the connection is
    lost."""

    def __init__(self, source: SourceSettings) -> None:
        self._connection = connect(source, application=APPLICATION, replication=True)
        self._pgconn = self._connection.pgconn
        self._pgconn.nonblocking = 1

    def identify_system(self) -> SystemIdentity:
        """Which WAL this server has. Raises LockstepError if PostgreSQL refuses to say."""
        system_id, timeline, wal_end, database = self._row("IDENTIFY_SYSTEM")
        return SystemIdentity(system_id, int(timeline), parse_lsn(wal_end), database, self._left_at(int(timeline)))

    def _left_at(self, timeline: int) -> dict[int, Lsn]:
        if timeline == 1:
            return {}
        result = self._command(f"TIMELINE_HISTORY {timeline}", None)
        if result.status != pq.ExecStatus.TUPLES_OK:
            return {}  # its file may be gone by now
        return parse_timeline_history((result.get_value(0, 1) or b"").decode(errors="replace"))

    def create_slot(
        self, name: str, *, temporary: bool, while_waiting: Callable[[float], None] | None = None
    ) -> CreatedSlot:
        """Create a pgoutput slot and export its snapshot. If PostgreSQL can (17 and later), standbys that synchronize
        slots get a permanent slot, too. PostgreSQL first waits for every transaction that is writing; ``while_waiting``
        gets the seconds so far. Raises LockstepError if PostgreSQL refuses the slot."""
        _, consistent_point, snapshot_name, _ = self._row(
            f"CREATE_REPLICATION_SLOT {quote_identifier(name)} {'TEMPORARY ' if temporary else ''}LOGICAL pgoutput"
            f" {'EXPORT_SNAPSHOT' if temporary or not self._has_failover_slots() else _FAILOVER_SLOT}",
            while_waiting,
        )
        return CreatedSlot(parse_lsn(consistent_point), snapshot_name)

    def _has_failover_slots(self) -> bool:
        return self._connection.info.server_version >= FAILOVER_SLOTS

    def start(self, slot: str, *, publication: str, at: Lsn, only_local: bool = False) -> None:
        """Begin to stream: from ``at``, or from the confirmed position if that is later. ``only_local`` leaves out what
        was replicated into this server from another (PostgreSQL 16 and later). Raises LockstepError if the server
        doesn't start to stream."""
        options = f"publication_names {_literal(quote_identifier(publication))}, messages 'true', proto_version '1'"
        if only_local:
            options += ", origin 'none'"
        result = self._command(
            f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {format_lsn(at)} ({options})", None
        )
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise LockstepError(f"streaming from slot {slot} didn't start: {result.error_message.decode().strip()}")

    def receive(self) -> Frame | None:
        """The next frame that has arrived, or None if the socket is dry. Never waits. Raises Unavailable if the
        connection is lost or the server ends the stream."""
        try:
            size, frame = self._pgconn.get_copy_data(1)
            if size == 0:
                self._pgconn.consume_input()
                size, frame = self._pgconn.get_copy_data(1)
        except psycopg.OperationalError as error:
            raise connection_error(error) from error
        if size > 0:
            return frame
        if size < 0:
            raise self._ended()
        return None

    def wait(self, seconds: float) -> None:
        """Return when something arrived, or after ``seconds``."""
        wait_ready(self._pgconn.socket, seconds)

    def send(self, frame: bytes) -> None:
        """Send a frame to the server. Raises Unavailable if the connection is lost."""
        try:
            self._pgconn.put_copy_data(frame)
            self._pgconn.flush()
        except psycopg.OperationalError as error:
            raise connection_error(error) from error

    def cancel(self) -> None:
        """End the running command. May be called from another thread."""
        with contextlib.suppress(psycopg.Error):
            self._connection.cancel()

    def close(self) -> None:
        self._connection.close()

    def _ended(self) -> LockstepError:
        """The error that ended the stream: transient, or one that the next start would meet at the same place."""
        what = "PostgreSQL ended the replication stream"
        result = self._pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
            return Unavailable(f"{what}: no reason given", retry_after_s=1.0)
        error = connection_error(psycopg.errors.error_from_result(result))
        if isinstance(error, Unavailable):
            return Unavailable(f"{what}: {error.message}", retry_after_s=1.0)
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        hint = next((hint for sign, hint in _STREAM_HINTS.items() if state.startswith(sign)), error.hint)
        return LockstepError(f"{what}: {error.message}", hint=hint)

    def _row(self, command: str, while_waiting: Callable[[float], None] | None = None) -> tuple[str, ...]:
        result = self._command(command, while_waiting)
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise LockstepError(
                f"{command.split(' ', 1)[0]} failed: {result.error_message.decode(errors='replace').strip()}",
                hint="`lockstep doctor` shows what is missing and the SQL for it",
            )
        return tuple((result.get_value(0, column) or b"").decode() for column in range(result.nfields))

    def _command(self, command: str, while_waiting: Callable[[float], None] | None) -> "pq.abc.PGresult":
        """Send a command and wait for its first result without blocking in libpq, so that waiting can be reported."""
        started = time.monotonic()
        try:
            self._pgconn.send_query(command.encode())
            self._pgconn.flush()
            while self._pgconn.is_busy():
                wait_ready(self._pgconn.socket, _POLL_S)
                self._pgconn.consume_input()
                if while_waiting is not None:
                    while_waiting(time.monotonic() - started)
            result = self._pgconn.get_result()
        except psycopg.OperationalError as error:
            raise connection_error(error) from error
        if result is None:
            raise Unavailable("PostgreSQL gave no result")
        if result.status not in (pq.ExecStatus.COPY_BOTH, pq.ExecStatus.COPY_OUT):
            while self._pgconn.get_result() is not None:
                pass
        return result


class SlotRefused(LockstepError):
    """PostgreSQL refused the slot or its connection; usually all are in use."""


class ComingSlot(Closing):
    """A temporary slot that its own thread is creating, since PostgreSQL may take its time. Its snapshot can be
    imported until ``close``. Raises SlotRefused."""

    def __init__(self, source: SourceSettings, name: str) -> None:
        try:
            self._connection = ReplicationConnection(source)
        except LockstepError as error:
            raise SlotRefused(error.message, hint=error.hint) from error
        self._slot: CreatedSlot | None = None
        self._error: Exception | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._create, args=(name,), name=f"slot-{name}", daemon=True)
        self._thread.start()

    def _create(self, name: str) -> None:
        try:
            self._slot = self._connection.create_slot(name, temporary=True, while_waiting=self._check)
        except Exception as error:
            self._error = error

    def _check(self, _seconds: float) -> None:
        if self._closed.is_set():
            raise Unavailable("the wait for the slot was given up")

    def is_ready(self) -> bool:
        """Whether ``created`` returns or raises at once."""
        return not self._thread.is_alive()

    def wait(self, seconds: float, while_waiting: Callable[[], None]) -> bool:
        """Wait at most so long; returns whether it is ready."""
        deadline = time.monotonic() + seconds
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(0.02)
            while_waiting()
        return self.is_ready()

    def created(self) -> CreatedSlot:
        """The slot. Raises SlotRefused, and what else its creation raised."""
        self._thread.join()
        if self._error is not None:
            if isinstance(self._error, LockstepError) and not isinstance(self._error, Unavailable):
                raise SlotRefused(self._error.message, hint=self._error.hint) from self._error
            raise self._error
        assert self._slot is not None
        return self._slot

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._connection.cancel()  # else the server keeps waiting, and occupies the name
        self._thread.join()
        self._connection.close()
