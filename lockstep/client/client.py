"""Waits through a server, or by asking the stores. Neither ever returns True early."""

import asyncio
import contextlib
import http.client
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import orjson

from cdc.model.closing import Closing
from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.model.lsn import parse_lsn
from lockstep.dashboard_settings import DEFAULT_LISTEN
from monitor.waits import Waits

_PATH: Final = "/api/wait"
_GRACE_S: Final = 10.0
"""How much longer than the wait an answer may take."""


class Client(Closing):
    """Waits for the sinks of one pipeline. A program needs only one; threads and tasks may share it."""

    def __init__(self, url: str, *, token: str | None = None, ca_file: Path | None = None) -> None:
        """``url`` is where ``lockstep dashboard`` listens, ``token`` what it asks for. ``ca_file`` has the authorities
        to trust for https instead of the system's. Raises ConfigurationError for an invalid address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"the address of the server looks like http://{DEFAULT_LISTEN}")
        self._host, self._path = parts.hostname, parts.path.rstrip("/") + _PATH
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
        self._headers = {"Content-Type": "application/json", "Connection": "close"}
        self._headers |= {} if token is None else {"Authorization": f"Bearer {token}"}
        self._waits: Waits | None = None

    @classmethod
    def direct(cls, config: Path) -> Self:
        """A client that asks the stores, the source and Kafka itself, by the settings of a ``lockstep.toml``. Raises
        ConfigurationError as the command does."""
        from lockstep.config import load

        loaded = load(config)
        client = cls("http://localhost")
        client._waits = Waits(loaded.as_pipeline(), loaded.sinks)
        return client

    def wait(self, sinks: str | Sequence[str], token: str, timeout_s: float = 10.0) -> bool:
        """Wait until readers of one or several sinks see everything up to the token; False at the time-out. Raises
        LockstepError if waiting can't help, and Unavailable if the server can't be reached."""
        names = [sinks] if isinstance(sinks, str) else list(sinks)
        if self._waits is not None:
            return self._waits.wait(parse_lsn(token), names, timeout_s=timeout_s).is_reached
        try:
            with contextlib.closing(self._connection(timeout_s + _GRACE_S)) as connection:
                connection.request("POST", self._path, _body(names, token, timeout_s), self._headers)
                response = connection.getresponse()
                return self._is_reached(response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    async def wait_async(self, sinks: str | Sequence[str], token: str, timeout_s: float = 10.0) -> bool:
        """The same for asyncio, without holding a thread. Raises as ``wait``."""
        names = [sinks] if isinstance(sinks, str) else list(sinks)
        if self._waits is not None:
            return (await self._waits.wait_async(parse_lsn(token), names, timeout_s=timeout_s)).is_reached
        try:
            status, body = await asyncio.wait_for(
                self._post(_body(names, token, timeout_s)), timeout=timeout_s + _GRACE_S
            )
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
            raise self._unreachable(error) from error
        return self._is_reached(status, body)

    def close(self) -> None:
        """Close what is open. A client of a server has nothing open."""
        if self._waits is not None:
            self._waits.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer. Raises OSError, IncompleteReadError, and ValueError for what is no HTTP."""
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        try:
            host = f"[{self._host}]" if ":" in self._host else self._host
            headers = {"Host": f"{host}:{self._port}", **self._headers, "Content-Length": str(len(body))}
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            writer.write(f"POST {self._path} HTTP/1.1\r\n{head}\r\n".encode() + body)
            await writer.drain()
            status_line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            answered = {
                name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            if answered.get("transfer-encoding", "identity").lower() != "identity":
                raise ValueError("an answer in chunks")
            length = answered.get("content-length")
            answer = await (reader.read() if length is None else reader.readexactly(int(length)))
            return int(status_line.split()[1]), answer
        finally:
            writer.close()

    def _is_reached(self, status: int, body: bytes) -> bool:
        try:
            document: Any = orjson.loads(body)
        except orjson.JSONDecodeError:
            document = None
        if isinstance(document, Mapping) and isinstance(document.get("reached"), bool):
            return bool(document["reached"]) and status == 200
        detail = document.get("message") if isinstance(document, Mapping) else None
        said = f": {detail}" if isinstance(detail, str) else ""
        raise LockstepError(f"the server at {self._host}:{self._port} answered with status {status}{said}")

    def _unreachable(self, error: BaseException) -> Unavailable:
        return Unavailable(f"the server at {self._host}:{self._port} can't be reached: {type(error).__name__}")


def _body(sinks: Sequence[str], token: str, timeout_s: float) -> bytes:
    return orjson.dumps({"lsn": token, "sinks": sinks, "timeout_s": timeout_s})
