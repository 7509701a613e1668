"""How a client of Kafka's logs in with what a command prints: a password, or a token of OAUTHBEARER.

The command is a setting of ours among librdkafka's, so that it travels with them to whoever makes a client.
"""

import json
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError
from pydantic import SecretStr

from cdc.model.errors import LockstepError
from cdc.printed_secret import SecretCommand, password_command

_Client = TypeVar("_Client")

_COMMAND: Final = "lockstep.password.command"

_TOKEN_S: Final = 300.0
"""For how long a token is taken for good that doesn't say so, and of which no setting says so either."""

_AGAIN_S: Final = 5.0
"""What a command has printed is older when a refusal makes it run again: brokers refuse several attempts a second."""

_REFUSED: Final = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)

Token = tuple[str, float, str, dict[str, str]]
"""Token, end in seconds since 1970, principal, extensions: what librdkafka asks for."""


def command_settings(command: SecretCommand[SecretStr]) -> dict[str, str | int]:
    """The settings that ``PrintedLogin.of`` reads."""
    return {_COMMAND: json.dumps({"command": command.command, "setting": command.setting})}


def referable(kind: Callable[[dict[str, Any]], _Client]) -> Callable[[dict[str, Any]], _Client]:
    """A kind of clients that can be referred to weakly: the library's own can't all be.

    A client that its own login refers to would end only when somebody looks for what nobody refers to any more.
    """
    return type(kind.__name__, (kind,), {}) if isinstance(kind, type) else kind


class PrintedLogin:
    """The login of one client."""

    def __init__(self, settings: Mapping[str, Any], command: SecretCommand[SecretStr]) -> None:
        self._is_token = settings.get("sasl.mechanism") == "OAUTHBEARER"
        self._user = str(settings.get("sasl.username") or "")
        self._command = command
        self._client: Callable[[], Any] = lambda: None
        self._heard_at_s = time.monotonic()
        self._failed: LockstepError | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "PrintedLogin | None":
        """None where the settings have no command."""
        text = settings.get(_COMMAND)
        if text is None:
            return None
        given = json.loads(text)
        return cls(settings, password_command(given["command"], setting=given["setting"]))

    def settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The client's settings with what the command prints. Raises as ``SecretCommand.read``."""
        given = {name: value for name, value in settings.items() if name != _COMMAND}
        heard = given.get("error_cb")
        given["error_cb"] = lambda error: self._hear(error, heard)
        printed = self._command.read()  # an error of it is the caller's, and not one that a client only waits for
        if not self._is_token:
            return given | {"sasl.password": printed.value.get_secret_value()}
        given.pop("sasl.username", None)
        return given | {"oauth_cb": self._token}

    def log_in_with(self, client: Any) -> None:
        """The client whose login it is, of a kind that ``referable`` has made."""
        self._client = weakref.ref(client)

    def _token(self, _config: object) -> Token:
        """What librdkafka asks for when four fifths of a token's life are over. It asks again when this raises."""
        try:
            printed = self._command.read()
        except LockstepError as error:
            self._failed = error  # the client only says that something was raised
            raise
        ends_at_s = printed.ends_at_s or time.time() + _TOKEN_S
        return printed.value.get_secret_value(), ends_at_s, self._user, {}

    def _hear(self, error: KafkaError, heard: Callable[[KafkaError], object] | None) -> None:
        """A broker has refused the login, or something else has happened."""
        now_s = time.monotonic()
        if error.code() in _REFUSED:
            self._command.refused(older_than_s=_AGAIN_S)
            if now_s - self._heard_at_s >= _AGAIN_S:
                self._heard_at_s = now_s
                self._renew()
            failed, self._failed = self._failed, None
            if failed is not None:
                error = KafkaError(error.code(), f"{error.str()}: {failed.message}")
        if heard is not None:
            heard(error)

    def _renew(self) -> None:
        """A token is asked for by the client itself, before it ends. Another client begins with the new one."""
        client = self._client()
        if client is None or self._is_token:
            return
        try:
            client.set_sasl_credentials(self._user, self._command.read().value.get_secret_value())
        except LockstepError as error:
            self._failed = error
