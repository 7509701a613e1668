"""An HTTP endpoint that accepts JSON documents by POST: its settings, and the sender. No error holds a header or the
address, which may be a secret itself."""

import contextlib
import http
import http.client
import io
import os
import socket
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from cdc.model.closing import Closing
from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.secret import read_secret
from cdc.settings import Settings

WEBHOOK_VARIABLE_END: Final = "_WEBHOOK_URL"
"""The ending of the names of environment variables that hold an address."""

TIMEOUT_S: Final = 10.0
"""For each of these: to connect, to send, and to receive the whole answer."""

_ANSWER_BYTES_MAX: Final = 64 * 1024
"""An answer's body means nothing to us. It is read up to this size, only to reuse the connection."""

_PHRASES: Final = {status.value: status.phrase for status in http.HTTPStatus}

_NOT_OF_THE_DOCUMENT: Final = frozenset({401, 407, 408, 425, 429})
"""Statuses from 400 to 499 about the login or the moment: any document would get them."""

_PERHAPS_OF_THE_DOCUMENT: Final = frozenset({402, 403, 404, 405, 410, 421, 423, 426, 451})
"""Statuses of a wrong address or of lost rights, which some endpoints give because of the document."""


class DocumentRefused(LockstepError):
    """The endpoint refuses this particular document, and may accept others. ``answer`` is its status in words."""

    def __init__(self, host: str | None, status: int) -> None:
        super().__init__(f"the webhook at {host} refused it with status {status}")
        self.answer = _answer(status)


class PerhapsRefused(Unavailable):
    """The endpoint refuses this document or all: sending another one shows which. ``answer`` as in DocumentRefused."""

    def __init__(self, host: str | None, status: int) -> None:
        super().__init__(f"the webhook at {host} answered with status {status}")
        self.answer = _answer(status)


def _answer(status: int) -> str:
    return f"{status} {_PHRASES.get(status, '')}".rstrip()


class WebhookSettings(Settings):
    """An HTTP endpoint that accepts a JSON document by POST."""

    url: str | None = Field(
        default=None,
        pattern="^https?://",
        description="its address; a secret address belongs into url_file or the environment",
    )
    url_file: Path | None = Field(default=None, description="file that holds the address")
    headers: dict[str, str] = Field(
        default={}, description="header -> environment variable that holds its value, such as a token"
    )

    def address(self, variable: str) -> SecretStr | None:
        """The address, from where it is set, else from this variable. Raises ConfigurationError for a bad file."""
        if self.url is not None and self.url_file is None:
            return SecretStr(self.url)
        return read_secret(variable=variable, file=self.url_file)


class _RawInTime(io.RawIOBase):
    """What a socket receives, up to a moment of the monotonic clock: the socket's own time-out covers only one read."""

    def __init__(self, connection: socket.socket, raw: io.RawIOBase, *, until_s: float) -> None:
        super().__init__()
        self._connection = connection
        self._raw = raw
        self._until_s = until_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        super().close()
        self._raw.close()


class _AnswerInTime(http.client.HTTPResponse):
    """An answer with one time-out for all of it. Raises TimeoutError after that."""

    def __init__(self, connection: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(connection, *arguments, **options)
        raw = self.fp.detach()  # a BufferedReader
        self.fp = io.BufferedReader(_RawInTime(connection, raw, until_s=time.monotonic() + TIMEOUT_S))


def _is_http(address: str) -> bool:
    """Whether a document can be sent there. Pure."""
    try:
        parts = urlsplit(address)
        has_host = parts.port != 0 and bool(parts.hostname)
    except ValueError:  # e.g. for an unpaired bracket or an invalid port
        return False
    # urlsplit skips some of these, and so would send to another address.
    return parts.scheme in ("http", "https") and has_host and address.isprintable() and " " not in address


class Webhook(Closing):
    """POSTs documents to an endpoint, one after the other. Any status below 300 is a receipt; redirects aren't
    followed.

    Only the status counts: an answer's body is read up to 64 KiB, and for ten seconds at most, so an endless one delays
    nobody for longer. ``setting`` names the place of its settings, for messages. ``variable`` is the environment
    variable that may hold the address. The connection stays open between documents, until ``close`` or an error.
    """

    def __init__(self, settings: WebhookSettings, *, setting: str, variable: str) -> None:
        self._settings = settings
        self._setting = setting
        self._variable = variable
        self._connection: http.client.HTTPConnection | None = None
        self._server: tuple[str, str, int | None] | None = None
        self._is_used = False
        """The other side may silently close a connection that was used before."""

    def address(self) -> SecretStr:
        """The address that it sends to. Raises ConfigurationError if none is set, its file can't be read, or it is
        invalid. Anything but ``https`` would be sent in plain text, including a token. So a mistyped scheme is invalid.
        """
        settings = self._settings
        address = settings.address(self._variable)
        if address is None:
            raise ConfigurationError(f"{self._setting} has no address", hint=f"set url, url_file or ${self._variable}")
        if not _is_http(address.get_secret_value()):
            where = f"${self._variable}" if settings.url is None else f"{self._setting}.url"
            raise ConfigurationError(
                f"the address of {self._setting} isn't one of HTTP",
                hint=f"mend {where if settings.url_file is None else settings.url_file}: it must begin with https:// or"
                " http://, go on with a host, and have no blank",
            )
        return address

    def headers(self) -> Mapping[str, str]:
        """The configured headers. Raises ConfigurationError if the environment lacks a value."""
        named = self._settings.headers
        missing = [variable for variable in named.values() if variable not in os.environ]
        if missing:
            raise ConfigurationError(
                f"{self._setting}.headers names {missing[0]}, which the environment lacks",
                hint=f"set ${missing[0]} for the process that sends, or remove the header",
            )
        return {header: os.environ[variable] for header, variable in named.items()}

    def post(self, document: bytes) -> None:
        """Return once it is received. Raises DocumentRefused if the endpoint refuses only this document, PerhapsRefused
        if only other documents can show that, Unavailable if it isn't received for another reason, and
        ConfigurationError for a wrong setting."""
        parts = urlsplit(self.address().get_secret_value())
        headers = {"Content-Type": "application/json", "User-Agent": "lockstep", **self.headers()}
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            status = self._status(parts.scheme, parts.hostname or "", parts.port, path, document, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            # The error's own text may hold a header that couldn't be sent.
            reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise Unavailable(f"the webhook at {parts.hostname} can't be reached: {reason}") from None
        if status in _PERHAPS_OF_THE_DOCUMENT:
            raise PerhapsRefused(parts.hostname, status)
        if 400 <= status < 500 and status not in _NOT_OF_THE_DOCUMENT:
            raise DocumentRefused(parts.hostname, status)
        if status >= 300:
            raise Unavailable(f"the webhook at {parts.hostname} answered with status {status}")

    def _status(
        self, scheme: str, host: str, port: int | None, path: str, document: bytes, headers: Mapping[str, str]
    ) -> int:
        if self._server != (scheme, host, port):
            self.close()
            self._server = scheme, host, port
        while True:
            connection, was_used = self._connection or self._connected(scheme, host, port), self._is_used
            self._connection = connection
            try:
                if connection.sock is not None:
                    connection.sock.settimeout(TIMEOUT_S)
                connection.request("POST", path, document, dict(headers))
                answer = connection.getresponse()
            except (ConnectionError, http.client.BadStatusLine):
                self.close()
                if was_used:  # it was closed since the last document
                    continue
                raise
            self._is_used = True
            # The status is the receipt, whatever follows.
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                answer.read(_ANSWER_BYTES_MAX)
            if not answer.isclosed():  # there is more, or it is late
                answer.close()
                self.close()
            return answer.status

    def _connected(self, scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        if scheme == "https":
            context = ssl.create_default_context()  # trusts the authorities of the system, or of $SSL_CERT_FILE
            connection = http.client.HTTPSConnection(
                host, port or http.client.HTTPS_PORT, timeout=TIMEOUT_S, context=context
            )
        else:
            # Without a port it would take the end of an IPv6 address, after its last colon, as one.
            connection = http.client.HTTPConnection(host, port or http.client.HTTP_PORT, timeout=TIMEOUT_S)
        connection.response_class = _AnswerInTime
        return connection

    def close(self) -> None:
        """End the connection. The next document opens another one."""
        connection, self._connection, self._is_used = self._connection, None, False
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()
