"""Small TCP and HTTP proxies between a client and a server, like poolers, load balancers and TLS terminators."""

import http.client
import selectors
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import urlsplit

Address = tuple[str, int]

Answer = tuple[int, str, bytes]
"""Status, content type and body."""

JSON: Final = "application/json"


@contextmanager
def proxy(targets: Sequence[Address], greeting: Callable[[bytes], bytes] = lambda message: message) -> Iterator[int]:
    """Listen on a port of its own; connections go to the targets in turn. Yields the port. ``greeting`` may change each
    server message up to the first ReadyForQuery; later bytes pass unchanged."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_sockets: list[socket.socket] = [listener]

    def serve() -> None:
        for turn in range(1_000_000):
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(targets[turn % len(targets)])
            open_sockets.extend((client, server))
            threading.Thread(target=_pass_on, args=(client, server), daemon=True).start()
            threading.Thread(target=_greet, args=(server, client, greeting), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        for connection in open_sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _greet(server: socket.socket, client: socket.socket, greeting: Callable[[bytes], bytes]) -> None:
    """Pass whole messages through ``greeting`` until the server is ready. The client must not ask for TLS."""
    with suppress(OSError, EOFError):
        kind = b""
        while kind != b"Z":
            head = _exactly(server, 5)
            kind = head[:1]
            client.sendall(greeting(head + _exactly(server, struct.unpack("!I", head[1:])[0] - 4)))
        _pass_on(server, client)


def _exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = source.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def other_process(message: bytes) -> bytes:
    """A pooler's greeting: the process that it names isn't one of the server's."""
    return message[:5] + struct.pack("!I", 1) + message[9:] if message.startswith(b"K") else message


@contextmanager
def tls_proxy(target: Address, context: ssl.SSLContext, *, speaks_postgres: bool = False) -> Iterator[int]:
    """Listen with TLS on a port of its own, and pass on to the target without. Yields the port. ``speaks_postgres``: a
    client asks for TLS before it uses it."""
    listener = socket.create_server(("127.0.0.1", 0))
    plain: list[socket.socket] = []

    def serve(client: socket.socket) -> None:
        with suppress(OSError, EOFError), client:
            if speaks_postgres:
                _exactly(client, 8)
                client.sendall(b"S")
            with context.wrap_socket(client, server_side=True) as secret, socket.create_connection(target) as server:
                plain.append(server)
                _pass_both_ways(secret, server)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        # Each thread closes its sockets once they have ended.
        for one in (listener, *plain):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        listener.close()


def _pass_both_ways(secret: ssl.SSLSocket, server: socket.socket) -> None:
    """Until either of them ends."""
    # ``select.select`` would fail at descriptors of 1,024 and more.
    with selectors.PollSelector() as both:
        both.register(secret, selectors.EVENT_READ, server)
        both.register(server, selectors.EVENT_READ, secret)
        while True:
            # Bytes that are already decrypted don't make the socket readable.
            ways = [(secret, server)] if secret.pending() else [(key.fileobj, key.data) for key, _ in both.select()]
            for source, target in ways:
                data = source.recv(65536)
                if not data:
                    return
                target.sendall(data)


@contextmanager
def before(
    url: str,
    change: Callable[[BaseHTTPRequestHandler, bytes, Callable[[bytes], Answer]], Answer | None],
    tls: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """A reverse proxy. ``change`` gets request, body and a function that sends it on; None cuts the connection."""
    target = urlsplit(url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            answer = change(self, body, self._sent_on)
            if answer is None:
                self.close_connection = True
                return
            status, kind, content = answer
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def _sent_on(self, body: bytes) -> Answer:
            connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=30)
            kind = self.headers.get("content-type") or JSON
            connection.request(self.command, self.path, body or None, {"content-type": kind})
            got = connection.getresponse()
            answer = got.status, got.headers.get("content-type") or JSON, got.read()
            connection.close()
            return answer

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def do_PUT(self) -> None:
            self._serve()

        def do_DELETE(self) -> None:
            self._serve()

        def do_HEAD(self) -> None:
            self._serve()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
