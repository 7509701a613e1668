"""Waiting for a socket."""

import select
from typing import Protocol


class _HasDescriptor(Protocol):
    def fileno(self) -> int: ...


def wait_ready(socket: int | _HasDescriptor, seconds: float, *, writing: bool = False) -> bool:
    """Whether there is something to read within this time; or, with ``writing``, room to write.

    The end of a connection is something to read. ``select.select`` fails at descriptors of 1,024 and more.
    """
    poll = select.poll()
    poll.register(socket, select.POLLIN | (select.POLLOUT if writing else 0))
    return bool(poll.poll(1000 * seconds))
