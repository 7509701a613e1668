"""How each request logs in where that changes: by what a command prints, or by a signature of its own."""

import re
from datetime import UTC, datetime
from typing import Final, Generic, Protocol, TypeVar

import urllib3

from cdc.model.errors import LockstepError, StoreRefuses
from cdc.printed_secret import Printed, SecretCommand, not_taken
from sinks.access import Login
from sinks.opensearch.sigv4 import AwsKeys, SigV4, signed_headers

_Value = TypeVar("_Value")


_KEYS_ENDED: Final = re.compile(r"security token\b.{0,100}\bexpired|\bExpiredToken", re.IGNORECASE | re.DOTALL)
"""How AWS says that keys have ended. An expired signature is another thing: the clock is wrong that it was made by."""


class RequestLogin(Protocol):
    """Adds headers to requests. Safe to use from several threads."""

    def read(self) -> None:
        """Look what the secret is now, before a request. Raises LockstepError when there is none."""

    def __call__(self, method: str, url: str, body: bytes | None, /) -> dict[str, str]:
        """The headers of a request."""

    def is_refused(self, status: int, *, was_let_in: bool) -> bool:
        """Whether an answer says that another secret may be taken. It is read anew then.

        ``was_let_in``: OpenSearch itself has answered, and nothing before it.
        """

    def refusal(self, refused: LockstepError, words: str, /) -> LockstepError:
        """What to raise where the secret that was read anew isn't taken either; ``words`` are the server's.

        It is of the whole store.
        """


class _Kept(Generic[_Value]):
    """What a command has printed, for as long as it may be good: until it ends, or is refused where it has no end."""

    def __init__(self, command: SecretCommand[_Value]) -> None:
        self.command = command
        self._printed: Printed[_Value] | None = None
        self._is_refused = False

    @property
    def value(self) -> _Value:
        assert self._printed is not None, "it is read before the request"
        return self._printed.value

    def read(self) -> None:
        """Raises as ``SecretCommand.read``."""
        if self._printed is None or self._is_refused or self._printed.ends_at_s is not None:
            self._is_refused = False
            self._printed = self.command.read()

    def forget(self) -> None:
        self.command.refused()
        self._is_refused = True  # what there is stays: another thread may be about to send it


class PrintedLogin:
    """A user with the password that a command prints; without a user a bearer's token."""

    def __init__(self, login: Login) -> None:
        assert login.command is not None, "else it stays the same"
        self._user = login.user
        self._password = _Kept(login.command)

    def read(self) -> None:
        self._password.read()

    def __call__(self, _method: str, _url: str, _body: bytes | None) -> dict[str, str]:
        secret = self._password.value.get_secret_value()
        if self._user is None:
            return {"authorization": f"Bearer {secret}"}
        return urllib3.make_headers(basic_auth=f"{self._user}:{secret}")

    def is_refused(self, status: int, *, was_let_in: bool) -> bool:  # its own plugin asks who it is
        if status != 401:
            return False
        self._password.forget()
        return True

    def refusal(self, refused: LockstepError, _words: str) -> LockstepError:
        return not_taken(self._password.command, refused)


class Signing:
    """A signature for each request."""

    def __init__(self, settings: SigV4) -> None:
        self._settings = settings
        self._printed = None if settings.command is None else _Kept(settings.command)
        self._keys: AwsKeys | None = None

    def read(self) -> None:
        if self._printed is None:
            self._keys = self._settings.read_keys()
        else:
            self._printed.read()
            self._keys = self._printed.value

    def __call__(self, method: str, url: str, body: bytes | None, /) -> dict[str, str]:
        assert self._keys is not None, "they are read before the request"
        return signed_headers(
            method,
            url,
            body or b"",
            keys=self._keys,
            region=self._settings.region,
            service="es",
            at=datetime.now(UTC),
        )

    def is_refused(self, status: int, *, was_let_in: bool) -> bool:
        # Whoever checks signatures stands before OpenSearch. What that refuses has other reasons, as a full disk.
        if status not in (401, 403) or was_let_in:
            return False
        if self._printed is not None:
            self._printed.forget()
        return True

    def refusal(self, refused: LockstepError, words: str, /) -> LockstepError:
        if self._printed is not None and _KEYS_ENDED.search(words):
            return not_taken(self._printed.command, refused)
        return StoreRefuses(
            refused.message,
            hint="check region, service and keys of sigv4 of this sink, this machine's clock, and what the keys may do;"
            " then run `lockstep doctor`",
        )


def request_login(login: Login, sigv4: SigV4 | None) -> RequestLogin | None:
    """None where a client has the same login all its life."""
    if sigv4 is not None:
        return Signing(sigv4)
    return None if login.command is None else PrintedLogin(login)
