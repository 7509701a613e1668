"""How each request logs in where that changes: by what a command prints, or by a signature of its own."""

from datetime import UTC, datetime
from typing import Protocol

import urllib3

from cdc.model.errors import LockstepError
from cdc.printed_secret import not_taken
from sinks.access import Login
from sinks.opensearch.sigv4 import AwsKeys, SigV4, signed_headers


class RequestLogin(Protocol):
    """Adds headers to requests. Safe to use from several threads."""

    def read(self) -> None:
        """Look what the secret is now, before a request. Raises LockstepError when there is none."""

    def __call__(self, method: str, url: str, body: bytes | None, /) -> dict[str, str]:
        """The headers of a request."""

    def is_refused(self, status: int) -> bool:
        """Whether an answer says that another secret may be taken. It is read anew then."""

    def refusal(self, refused: LockstepError, words: str, /) -> LockstepError:
        """What to raise where the secret that was read anew isn't taken either; ``words`` are the server's."""


class PrintedLogin:
    """A user with the password that a command prints; without a user a bearer's token."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._headers: dict[str, str] = {}

    def read(self) -> None:
        secret = self._login.read_password() or ""
        if self._login.user is None:
            self._headers = {"authorization": f"Bearer {secret}"}
        else:
            self._headers = urllib3.make_headers(basic_auth=f"{self._login.user}:{secret}")

    def __call__(self, _method: str, _url: str, _body: bytes | None) -> dict[str, str]:
        return self._headers

    def is_refused(self, status: int) -> bool:
        command = self._login.command
        if status != 401 or command is None:
            return False
        command.refused()
        return True

    def refusal(self, refused: LockstepError, _words: str) -> LockstepError:
        command = self._login.command
        return refused if command is None else not_taken(command, refused)


class Signing:
    """A signature for each request."""

    def __init__(self, settings: SigV4) -> None:
        self._settings = settings
        self._keys: AwsKeys | None = None

    def read(self) -> None:
        self._keys = self._settings.read_keys()

    def __call__(self, method: str, url: str, body: bytes | None) -> dict[str, str]:
        assert self._keys is not None, "they are read before the request"
        return signed_headers(
            method,
            url,
            body or b"",
            keys=self._keys,
            region=self._settings.region,
            service=self._settings.service,
            at=datetime.now(UTC),
        )

    def is_refused(self, status: int) -> bool:
        command = self._settings.command
        if status not in (401, 403) or command is None:
            return False
        command.refused()
        return True

    def refusal(self, refused: LockstepError, words: str) -> LockstepError:
        command = self._settings.command
        if command is not None and "expired" in words:
            return not_taken(command, refused)
        return LockstepError(
            refused.message,
            hint="check region, service and keys of sigv4 of this sink, this machine's clock, and what the keys may do;"
            " then run `lockstep doctor`",
        )


def request_login(login: Login, sigv4: SigV4 | None) -> RequestLogin | None:
    """None where a client has the same login all its life."""
    if sigv4 is not None:
        return Signing(sigv4)
    return None if login.command is None else PrintedLogin(login)
