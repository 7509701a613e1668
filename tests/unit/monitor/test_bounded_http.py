"""monitor.bounded_http: what a stranger who only connects, or sends by bytes, can keep from others."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from monitor.bounded_http import BoundedProtocol, served

REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Few(BoundedProtocol):
    connections_max = 5
    request_s = 3600.0


class Hasty(BoundedProtocol):
    request_s = 0.05


async def app(scope: Any, receive: Any, send: Any) -> None:
    more = scope["method"] == "POST"
    while more:
        more = (await receive())["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.contextmanager
def listening(protocol: type[BoundedProtocol]) -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as server, served(app, server, protocol):
        yield server.getsockname()


@contextlib.contextmanager
def connected(address: tuple[str, int], sent: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=300) as wire:
        wire.sendall(sent)
        yield wire


def is_cut(wire: socket.socket) -> bool:
    """Waits for it."""
    try:
        return wire.recv(1) == b""
    except ConnectionResetError:
        return True


def answers(wire: socket.socket) -> bool:
    wire.sendall(REQUEST)
    answer = b""
    while not answer.endswith(b"ok") and (more := wire.recv(100)):
        answer += more
    return answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n1"]
)
def test_whoever_asks_gets_an_answer_however_many_others_hold_connections(sent: bytes) -> None:
    with listening(Few) as address, contextlib.ExitStack() as others:
        idle = [others.enter_context(connected(address, sent)) for _ in range(40)]
        for _ in range(3):
            with connected(address) as wire:
                assert answers(wire)
        assert all(map(is_cut, idle[:30])), "those that came first have made room"


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n1"]
)
def test_a_request_that_does_not_come_is_given_up(sent: bytes) -> None:
    with listening(Hasty) as address, connected(address, sent) as wire:
        assert is_cut(wire)
