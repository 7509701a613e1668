"""Access to the server: the token, the page's cookie, the names the server accepts, and every answer's headers.

A browser asks for the token itself (HTTP Basic, any user name), and sends it with the page's streams too. The cookie is
new at each start, and browsers send it only from pages of this server.
"""

import asyncio
import base64
import binascii
import hmac
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from lockstep.dashboard_settings import TOKEN_VARIABLE

logger = logging.getLogger("lockstep.dashboard")

GUESS_S: Final = 1.0
"""How long the answer to a wrong token takes. Not longer, since it holds a connection."""

BODY_MAX: Final = 16 * 1024
"""The greatest length of a request's body, in bytes."""

PROBES: Final = frozenset({"/healthz", "/readyz"})
"""Programs that start and stop processes ask these without a token. They hold no names."""

_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})

_BASIC: Final = b'Basic realm="Lockstep", charset="UTF-8"'
_BY_PROXIES: Final = frozenset({"forwarded", "via", "x-real-ip"})
_SET_TOKEN: Final = f"set {TOKEN_VARIABLE} where the server runs"

_HEADERS: Final = (
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


@dataclass(frozen=True, slots=True)
class Refused:
    status: int
    message: str


@dataclass(frozen=True, slots=True)
class Access:
    """Decides by a request's headers alone. ``token`` is None if the server listens on loopback and has none."""

    token: str | None
    host: str = "127.0.0.1"
    page: str | None = None
    """The address of a page beside the dashboard's own. Paths below it are for clients that have loaded a page."""
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refused | None:
        """Why the request isn't answered; None if it is. ``headers`` are by names in lower case."""
        if path in PROBES:
            return None
        if self.token is None:
            # Nothing else keeps others out, such as a name that is bound anew, or a proxy for another machine.
            if _host_name(headers.get("host", "")) not in {*_LOCAL_NAMES, self.host}:
                return Refused(403, "The server doesn't go by that name: ask it as localhost.")
            if any(name in _BY_PROXIES or name.startswith("x-forwarded-") for name in headers):
                return Refused(403, f"A proxy has passed this on, and there is no token: {_SET_TOKEN}.")
        is_known = self._has_token(headers) or self._has_session(headers)
        if self.token is not None and not is_known:
            return Refused(401, f"This needs the token that {TOKEN_VARIABLE} holds where the server runs.")
        if path.startswith("/api/") and headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            # A page of another server can't read the answer, but the work is done: `lockstep doctor` runs.
            return Refused(403, "The request comes from a page of another server.")
        if self._needs_session(path) and not is_known:
            return Refused(401, "The page hasn't been loaded since the server started: load it again.")
        if "transfer-encoding" in headers:  # in chunks, whose end nobody knows
            return Refused(411, "The request doesn't say how long it is.")
        if method not in ("GET", "HEAD"):
            origin = headers.get("origin")
            if origin is not None and urlsplit(origin).netloc != headers.get("host"):
                return Refused(403, "The request comes from a page of another server.")
            length = headers.get("content-length", "")
            if not length.isdecimal():
                return Refused(411, "The request doesn't say how long it is.")
            if int(length) > BODY_MAX:
                return Refused(413, f"The request is longer than {BODY_MAX} bytes.")
        return None

    def is_guess(self, headers: Mapping[str, str]) -> bool:
        return self.token is not None and bool(headers.get("authorization")) and not self._has_token(headers)

    def gives_session(self, method: str, path: str) -> bool:
        """Whether the answer sets the session. A page that comes back after a restart gets it with its stream."""
        return method == "GET" and path in ("/", "/api/events", self.page)

    def _needs_session(self, path: str) -> bool:
        below = () if self.page is None else (f"{self.page}/",)
        return path.startswith(("/api/key", "/views/", *below))

    def _has_token(self, headers: Mapping[str, str]) -> bool:
        if self.token is None:
            return False
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        given = ""
        if scheme.lower() == "bearer":
            given = credentials.strip()
        elif scheme.lower() == "basic":
            given = _password(credentials)
        return hmac.compare_digest(given.encode(), self.token.encode())

    def _has_session(self, headers: Mapping[str, str]) -> bool:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie_name(headers.get("host", "")))
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self.session.encode())

    @staticmethod
    def cookie_name(host: str) -> str:
        """Cookies ignore ports: without the port, two servers on one machine would overwrite each other's."""
        port = host.rpartition(":")[2]
        return f"lockstep_session_{port}" if port.isdecimal() else "lockstep_session"

    def cookie(self, host: str) -> str:
        """Makes a browser send the session with every request of this server's pages."""
        return f"{self.cookie_name(host)}={self.session}; HttpOnly; SameSite=Strict; Path=/"


class Guard:
    """ASGI: refuses what ``Access`` refuses, before anything is read, and adds the headers to every answer."""

    def __init__(self, app: Any, access: Access) -> None:
        self._app = app
        self._access = access
        self._guesses = 0  # wrong tokens since the start

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        method, path = scope["method"], scope["path"]
        gives_session = self._access.gives_session(method, path)
        added = list(_HEADERS)
        if path.startswith(("/api/", "/views/")):
            added.append((b"cache-control", b"no-store"))

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                if gives_session and message["status"] == 200:
                    added.append((b"set-cookie", self._access.cookie(headers.get("host", "")).encode("latin-1")))
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        refused = self._access.refusal(method, path, headers)
        if refused is None:
            await self._app(scope, receive, send_guarded)
            return
        if refused.status == 401 and self._access.is_guess(headers):
            await self._delay_guess()
        body = orjson.dumps({"message": refused.message})
        answer = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if refused.status == 401 and self._access.token is not None:
            answer.append((b"www-authenticate", _BASIC))
        await send_guarded({"type": "http.response.start", "status": refused.status, "headers": answer})
        await send_guarded({"type": "http.response.body", "body": body})

    async def _delay_guess(self) -> None:
        """Log the number of wrong tokens each time it has doubled, and delay the answer."""
        self._guesses += 1
        if self._guesses & (self._guesses - 1) == 0:
            times = "once" if self._guesses == 1 else f"{self._guesses} times"
            logger.warning("a wrong token was given %s since the server started", times)
        await asyncio.sleep(GUESS_S)


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _password(credentials: str) -> str:
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""
