"""A TCP proxy before one server, which can be slow or refuse every HTTP request."""

import socket
import threading
import time
from contextlib import suppress
from typing import Self


class FaultyProxy:
    """Passes bytes on. A change of behaviour cuts the open connections."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._delay_s = 0.0
        self._status: int | None = None
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def be_slow(self, delay_s: float) -> None:
        """From now on, every piece of an answer takes this long."""
        self._become(delay_s=delay_s, status=None)

    def refuse(self, status: int) -> None:
        self._become(delay_s=0.0, status=status)

    def be_well(self) -> None:
        self._become(delay_s=0.0, status=None)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.be_well()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _become(self, *, delay_s: float, status: int | None) -> None:
        with self._lock:
            self._delay_s, self._status = delay_s, status
            cut, self._open = self._open, []
        for connection in cut:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._attend, args=(client,), daemon=True).start()

    def _attend(self, client: socket.socket) -> None:
        with self._lock:
            delay_s, status = self._delay_s, self._status
            self._open.append(client)
        if status is not None:
            self._answer(client, status)
            return
        try:
            server = socket.create_connection(self._target, timeout=5)
        except OSError:
            client.close()  # like a port without a server, only later
            return
        server.settimeout(None)
        with self._lock:
            self._open.append(server)
        threading.Thread(target=_pass_on, args=(server, client, delay_s), daemon=True).start()
        _pass_on(client, server, 0.0)

    def _answer(self, client: socket.socket, status: int) -> None:
        with suppress(OSError):
            unread = b""
            while True:
                while b"\r\n\r\n" not in unread:
                    unread += _more(client)
                head, _, unread = unread.partition(b"\r\n\r\n")
                while len(unread) < _body_bytes(head):
                    unread += _more(client)
                unread = unread[_body_bytes(head) :]
                client.sendall(f"HTTP/1.1 {status} Refused\r\ncontent-length: 0\r\n\r\n".encode())


def _body_bytes(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


def _more(source: socket.socket) -> bytes:
    data = source.recv(65536)
    if not data:
        raise OSError("the client has left")
    return data


def _pass_on(source: socket.socket, target: socket.socket, delay_s: float) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            time.sleep(delay_s)
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
