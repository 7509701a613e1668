"""A server of the page that answers with the documents of ``example``: for states that real servers are rarely in."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.browser import example

STATIC = Path(__file__).parents[2] / "lockstep" / "dashboard" / "static"

_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class FakeApi:
    """What it answers can be changed while a page looks at it."""

    def __init__(self) -> None:
        """All is well. While it isn't ``is_sampled``, the same sample is sent again."""
        self.state: Callable[[], example.Document] = example.state
        self.documents = example.documents()
        self.tail_trouble: str | None = None
        self.tail_refusal: str | None = None
        self.address = ""
        self.is_sampled = True
        self.is_open = threading.Event()
        self.is_open.set()
        self.changed = threading.Condition()

    def show(self, state: Callable[[], example.Document]) -> None:
        """Send another state to every page, at once."""
        with self.changed:
            self.state = state
            self.changed.notify_all()

    def lose(self) -> None:
        """End every stream, and open none until ``find``."""
        self.is_open.clear()
        with self.changed:
            self.changed.notify_all()

    def find(self) -> None:
        """Take streams again."""
        self.is_open.set()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, api: FakeApi, *args: Any) -> None:
        self._api = api
        super().__init__(*args)

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/api/events":
            self._stream()
        elif path == "/api/tail":
            self._tail()
        elif path.startswith("/api/"):
            name = path.removeprefix("/api/")
            self._json(200, self._api.documents["sink" if name.startswith("sinks/") else name])
        else:
            file = STATIC / "index.html" if path == "/" else STATIC / path.removeprefix("/static/")
            if not file.is_file():
                self._send(404, "text/plain", b"no such file")
                return
            self._send(200, _KINDS.get(file.suffix, "application/octet-stream"), file.read_bytes())

    def _stream(self) -> None:
        if not self._api.is_open.is_set():
            self._send(503, "text/plain", b"")
            return
        self._begin_events()
        looks = 0
        try:
            while self._api.is_open.is_set():
                looks += self._api.is_sampled
                document = self._api.state()
                self._event("state", document | {"sampled_ms": document["sampled_ms"] + 1000 * looks})
                with self._api.changed:
                    self._api.changed.wait(1)
        except OSError:
            pass  # the page has gone

    def _tail(self) -> None:
        if self._api.tail_refusal is not None:
            self._json(503, {"message": self._api.tail_refusal})
            return
        self._begin_events()
        self._event("event", example.tail_event())
        if self._api.tail_trouble is not None:
            self._event("trouble", {"message": self._api.tail_trouble})

    def _begin_events(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.close_connection = True

    def _event(self, name: str, document: Any) -> None:
        self.wfile.write(f"event: {name}\ndata: {json.dumps(document)}\n\n".encode())

    def _json(self, code: int, document: Any) -> None:
        self._send(code, "application/json", json.dumps(document).encode())

    def _send(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", "default-src 'self'")
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def fake_api() -> Iterator[FakeApi]:
    """Serve until the end of the block."""
    api = FakeApi()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, api))
    server.daemon_threads = True
    thread = threading.Thread(target=partial(server.serve_forever, 0.05))
    thread.start()
    api.address = f"http://127.0.0.1:{server.server_port}/"
    try:
        yield api
    finally:
        api.lose()
        server.shutdown()
        server.server_close()
        thread.join()
