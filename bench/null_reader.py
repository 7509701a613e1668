"""A reader of a replication slot that discards everything: what PostgreSQL itself can send, and how soon.

It is the bound of any capture. It reads with libpq as capture does, and sleeps when the socket is empty. A reader that
wakes up for every message costs the server three times as much.
"""

import threading
import time
from dataclasses import dataclass
from typing import Any, cast

import psycopg

from cdc.protocol.pgoutput import Begin, Commit, Insert, decode
from cdc.protocol.walsender import KEEPALIVE, WAL_DATA_OFFSET, XLOG_DATA, parse_keepalive, status_update
from cdc.readiness import wait_ready

_NAP_S = 0.0002
_POLL_S = 0.1
_INSERT = ord("I")


class _Stream:
    """A slot's frames. Nothing is ever confirmed, so the slot stays where it is."""

    def __init__(self, dsn: str, *, slot: str, publication: str) -> None:
        parameters = {"replication": "database"}
        self._connection: psycopg.Connection[Any] = psycopg.connect(dsn, autocommit=True, **cast("Any", parameters))
        self.pgconn = self._connection.pgconn
        self.pgconn.send_query(
            f"START_REPLICATION SLOT {slot} LOGICAL 0/0"
            f" (proto_version '1', publication_names '{publication}', messages 'true')".encode()
        )
        self.pgconn.flush()
        while self.pgconn.is_busy():
            wait_ready(self.pgconn.socket, _POLL_S)
            self.pgconn.consume_input()
        self.pgconn.get_result()

    def keep_alive(self, frame: bytes) -> None:
        """Answer a keepalive that asks for it: the server drops a silent reader after a minute."""
        if parse_keepalive(frame).reply_requested:
            self.pgconn.put_copy_data(
                status_update(
                    received=cast("Any", 0),
                    confirmed=cast("Any", 0),
                    applied=cast("Any", 0),
                    unix_time_us=time.time_ns() // 1000,
                )
            )
            self.pgconn.flush()

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True, slots=True)
class Drained:
    """How long the rows took: from the connection's start, and from the first row on."""

    rows: int
    bytes: int
    seconds: float
    seconds_from_first: float
    cpu_s: float


def drain(dsn: str, *, slot: str, publication: str, rows: int) -> Drained:
    """Read ``rows`` inserted rows from the slot. Raises psycopg.OperationalError when the stream ends before."""
    cpu_before = time.process_time()
    started = time.perf_counter()
    stream = _Stream(dsn, slot=slot, publication=publication)
    try:
        receive, consume = stream.pgconn.get_copy_data, stream.pgconn.consume_input
        count = size = 0
        first = started
        while count < rows:
            length, frame = receive(1)
            if length > 0:
                kind = frame[0]
                if kind == XLOG_DATA:
                    size += length
                    if frame[WAL_DATA_OFFSET] == _INSERT:
                        if not count:
                            first = time.perf_counter()
                        count += 1
                elif kind == KEEPALIVE:
                    stream.keep_alive(bytes(frame))
            elif length < 0:
                raise psycopg.OperationalError("PostgreSQL ended the stream")
            else:
                time.sleep(_NAP_S)
                consume()
        ended = time.perf_counter()
    finally:
        stream.close()
    return Drained(rows, size, ended - started, ended - first, time.process_time() - cpu_before)


class CommitWatcher(threading.Thread):
    """Records when the Commit of each row's transaction arrives: ``seen`` maps the row's id to that time."""

    def __init__(self, dsn: str, *, slot: str, publication: str) -> None:
        super().__init__(name="null reader", daemon=True)
        self.seen: dict[int, float] = {}
        self._stream = _Stream(dsn, slot=slot, publication=publication)
        self._finished = threading.Event()

    def run(self) -> None:
        pgconn = self._stream.pgconn
        ids: list[int] = []
        while not self._finished.is_set():
            length, frame = pgconn.get_copy_data(1)
            if length < 0:
                return
            if length == 0:
                wait_ready(pgconn.socket, _POLL_S)
                pgconn.consume_input()
            elif frame[0] == KEEPALIVE:
                self._stream.keep_alive(bytes(frame))
            else:
                self._message(bytes(frame), ids)

    def _message(self, frame: bytes, ids: list[int]) -> None:
        message = decode(frame, WAL_DATA_OFFSET)
        if isinstance(message, Begin):
            ids.clear()
        elif isinstance(message, Insert):
            assert isinstance(message.new[0], bytes)
            ids.append(int(message.new[0]))
        elif isinstance(message, Commit):
            now = time.time()
            for row in ids:
                self.seen[row] = now

    def finish(self) -> None:
        self._finished.set()
        self.join(10)
        self._stream.close()
