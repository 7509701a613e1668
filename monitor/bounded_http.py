"""HTTP of our processes: uvicorn's, with limits on connections and on the time that a request may take to arrive.
uvicorn itself waits for a request without end. With too many connections it refuses new ones, which are those that
would have asked something."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

CONNECTIONS_MAX: Final = 400
"""Connections of one listener. Each costs a descriptor, and a process often has no more than 1,024."""

REQUEST_S: Final = 10.0
"""How long a request may take to arrive, from the connection's begin or from the answer before it."""

_HEAD_MAX: Final = 32 * 1024
"""The most bytes of a request's line and headers."""


class BoundedProtocol(H11Protocol):
    """A connection that is cut off if its request doesn't arrive, or if others need its place meanwhile."""

    connections_max = CONNECTIONS_MAX
    request_s = REQUEST_S
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > self.connections_max:
            # Cut the connection that has waited longest without a request, else this one: the others are being
            # answered.
            idle = [each for each in self.connections if isinstance(each, BoundedProtocol) and each._deadline]
            longest = min(idle, key=lambda each: each._deadline.when() if each._deadline else 0.0, default=self)
            longest._cut()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        """Start or stop the clock for the request's arrival."""
        if self.transport.is_closing() or self.conn.their_state in {h11.IDLE, h11.SEND_BODY}:
            self._deadline = self._deadline or self.loop.call_later(self.request_s, self._cut)
        else:
            self._unwatch()

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut(self) -> None:
        """Also cuts off an answer that nobody reads."""
        self._unwatch()
        # so that a connection that comes before the loop runs again finds the place free
        self.connections.discard(self)
        self.transport.abort()


def settings(app: Callable[..., Any], protocol: type[BoundedProtocol] = BoundedProtocol) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=_HEAD_MAX,
    )


@contextlib.contextmanager
def served(app: Callable[..., Any], listening: socket.socket, protocol: type[BoundedProtocol]) -> Iterator[None]:
    """Serve on this socket in a thread until the block ends. Costs nothing while nobody asks."""
    config, state = settings(app, protocol), ServerState()
    config.load()
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(loop.create_server(lambda: protocol(config, state, {}, loop), sock=listening))
    thread = threading.Thread(target=loop.run_forever, name="http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(_end(server, state))
        loop.close()


async def _end(server: asyncio.Server, state: ServerState) -> None:
    server.close()
    for each in list(state.connections):
        each.transport.abort()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # lets the loop close the aborted connections
