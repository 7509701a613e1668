"""Waiting for sockets."""

import select
from collections.abc import Iterable
from typing import Protocol


class _HasDescriptor(Protocol):
    def fileno(self) -> int: ...


def wait_ready(socket: int | _HasDescriptor, seconds: float, *, writing: bool = False) -> bool:
    """Whether there is something to read within this time, or with ``writing``, room to write. The end of a connection
    counts as something to read. ``select.select`` would fail at descriptors of 1,024 and more."""
    poll = select.poll()
    poll.register(socket, select.POLLIN | (select.POLLOUT if writing else 0))
    return bool(poll.poll(1000 * seconds))


def wait_any_ready(sockets: Iterable[_HasDescriptor], seconds: float) -> list[int]:
    """The descriptors that have something to read within this time."""
    poll = select.poll()
    for socket in sockets:
        poll.register(socket.fileno(), select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(1000 * max(0.0, seconds))]
