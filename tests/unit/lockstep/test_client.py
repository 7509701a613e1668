"""The client's answers, by what a server answers it."""

import asyncio
import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from lockstep.client.client import Client
from lockstep.dashboard_settings import DashboardSettings


class Server:
    """An HTTP server that answers every request the same, and keeps what it was asked."""

    def __init__(self) -> None:
        server = self
        self.answer: tuple[int, bytes] = 200, b""
        self.asked: list[tuple[str, dict[str, str], Any]] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked.append((self.path, dict(self.headers), body))
                status, answer = server.answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    with contextlib.closing(Server()) as server:
        yield server


def _both(client: Client) -> list[Any]:
    """What comes of a wait and of one of asyncio."""
    results: list[Any] = []
    for wait in (
        lambda: client.wait("cache", "0/A", 5),
        lambda: asyncio.run(client.wait_async(["cache", "search"], "0/A", 5)),
    ):
        try:
            results.append(wait())
        except LockstepError as error:
            results.append(error)
    return results


def test_it_asks_for_what_it_is_to_wait_for_and_says_who_it_is(server: Server) -> None:
    server.answer = 200, b'{"reached": true, "lsn": "0/A", "late": {}}'
    assert _both(Client(f"{server.url}/below/", token="tell-nobody")) == [True, True]
    assert [path for path, _, _ in server.asked] == ["/below/api/wait"] * 2
    assert [headers["Authorization"] for _, headers, _ in server.asked] == ["Bearer tell-nobody"] * 2
    assert [body for _, _, body in server.asked] == [
        {"lsn": "0/A", "sinks": ["cache"], "timeout_s": 5},
        {"lsn": "0/A", "sinks": ["cache", "search"], "timeout_s": 5},
    ]


@pytest.mark.parametrize("status", [200, 504])
def test_only_a_server_that_says_so_ends_the_wait(server: Server, status: int) -> None:
    server.answer = status, b'{"reached": false, "late": {"cache": "why"}}'
    assert _both(Client(server.url)) == [False, False]


@pytest.mark.parametrize(
    "answer",
    [(200, b"{}"), (200, b"true"), (200, b"<html>"), (200, b'{"reached": 1}'), (401, b'{"message": "no token"}')],
)
def test_any_other_answer_is_an_error_and_never_taken_for_reached(server: Server, answer: tuple[int, bytes]) -> None:
    server.answer = answer
    errors = _both(Client(server.url, token="tell-nobody"))
    assert all(isinstance(error, LockstepError) for error in errors)
    assert all(f"status {answer[0]}" in str(error) and "tell-nobody" not in str(error) for error in errors)


def test_a_server_that_is_not_there_is_unavailable(server: Server) -> None:
    client = Client(server.url)
    server.answer = 200, b"{}"
    server._server.server_close()
    assert [type(error) for error in _both(client)] == [Unavailable, Unavailable]


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=rf"looks like http://{DashboardSettings().listen}"):
        Client("127.0.0.1:8642")
