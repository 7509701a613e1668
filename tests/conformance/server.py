"""One PostgreSQL of a chosen major version, for as long as a block runs."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from stack import process as processes
from stack.postgres import SOURCE_SETTINGS, Postgres

_SETTINGS = {
    **SOURCE_SETTINGS,
    # Each run leaves its slot behind; all of them go with the server.
    "max_replication_slots": "100",
    "max_wal_senders": "100",
    "max_prepared_transactions": "20",
    # The smallest there is: transactions of a few hundred rows are decoded from disk.
    "logical_decoding_work_mem": "64kB",
}
# Older servers keep the state of an origin, once used, in the room of replication slots.
_ORIGINS = {"max_active_replication_origins": "100"}
_ORIGINS_SINCE = 18
_NO_SETTINGS: Mapping[str, str] = {}
_READY_S = 60.0
_GRACE_S = 20.0


@contextmanager
def source_server(major: int, directory: Path, *, settings: Mapping[str, str] = _NO_SETTINGS) -> Iterator[str]:
    """Start it with an empty cluster; the connection string is that of its superuser."""
    settings = {
        **_SETTINGS,
        **(_ORIGINS if major >= _ORIGINS_SINCE else {}),
        **settings,
    }
    server = Postgres(
        f"source{major}", database="app", settings=settings, passfiles=directory, durable=False, major=major
    )
    ports = server.ports({}, ())
    process, tail = processes.spawn(server.prepare(ports, directory))
    assert process is not None, tail.last(20)
    try:
        deadline = time.monotonic() + _READY_S
        while not server.is_ready(ports, tail):
            assert processes.is_alive(process), tail.last(20)
            assert time.monotonic() < deadline, tail.last(20)
            time.sleep(0.05)
        yield server.address(ports)
    finally:
        processes.end(process, stop_signal=server.stop_signal, grace_seconds=_GRACE_S)
