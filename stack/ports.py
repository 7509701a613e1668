"""Free TCP ports on 127.0.0.1."""

import random
import socket
from collections.abc import Collection

from stack.errors import StackError

HOST = "127.0.0.1"

# Below the ports of outgoing connections: one of those could take a stopped server's port.
ORDINARY = range(20_000, 30_000)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: closed connections of the last server must not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def answers(port: int) -> bool:
    """Whether something listens there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def pick(kept: int | None = None, *, among: range = ORDINARY, taken: Collection[int] = ()) -> int:
    """The kept port if it is still free, else any free one of the range. Raises StackError when none is free.

    The choice is random, so that two stacks that start together rarely choose the same one.
    """
    if kept is not None and kept in among and kept not in taken and is_free(kept):
        return kept
    for port in random.sample(among, len(among)):
        if port not in taken and is_free(port):
            return port
    raise StackError(
        f"no free port from {among.start} to {among.stop - 1} on {HOST}",
        hint="stop what listens there: other stacks go down with `down` in their own directory",
    )
