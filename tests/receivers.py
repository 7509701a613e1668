"""An HTTP server to which a test's messages are posted."""

import contextlib
import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest


class Receiver:
    """An HTTP server that stores the documents sent to it, and answers with ``status``. It keeps connections open.

    ``connections`` counts them, and ``asked`` the documents that came. With ``endless``, an answer begins with the
    status and the first of the two, and repeats the second for ever. ``refuses`` returns the status with which a
    document is refused; None: it isn't.
    """

    def __init__(self, port: int = 0) -> None:
        receiver = self
        self.documents: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.status = 204
        self.refuses: Callable[[dict[str, Any]], int | None] = lambda _: None
        self.asked = 0
        self.endless: tuple[bytes, bytes] | None = None
        self.connections = 0
        self._open = set[socket.socket]()
        self.arrived = threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                receiver.connections += 1
                receiver._open.add(self.connection)

            def finish(self) -> None:
                receiver._open.discard(self.connection)
                super().finish()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.asked += 1
                document = json.loads(body)
                status = receiver.refuses(document) or receiver.status
                if status < 300:
                    receiver.documents.append(document)
                    receiver.headers.append(dict(self.headers))
                    receiver.arrived.set()
                self.send_response(status)
                if receiver.endless is not None:
                    self._go_on(*receiver.endless)
                    return
                self.send_header("Content-Length", "0")
                self.end_headers()

            def _go_on(self, first: bytes, again: bytes) -> None:
                self.close_connection = True
                self.flush_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(first)
                    while True:
                        self.wfile.write(again)
                        if len(again) < 1024:
                            time.sleep(0.02)

            def log_message(self, *_: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def reported(self) -> list[tuple[str, str]]:
        return [(document["kind"], document["name"]) for document in self.documents]

    def end_connections(self) -> None:
        """Close all open connections, as a server does with silent ones."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.end_connections()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with contextlib.closing(Receiver()) as receiver:
        yield receiver
