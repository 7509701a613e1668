"""A secret that a command prints: how the command is run, and for how long what it has printed is used again."""

import base64
import binascii
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from pydantic import SecretStr

from cdc.model.errors import ConfigurationError, LockstepError, Unavailable

_Value = TypeVar("_Value")

_COMMAND_S: Final = 10.0
"""A command that prints a secret has this long. Whoever connects waits for it, and a stream may wait behind him."""

_LEFT_ALONE_S: Final = (10.0, 20.0, 40.0, 60.0)
"""After a command has taken too long it isn't run for so long: the first time, the second, and so on."""

_EARLY_S: Final = 60.0
_EARLY_SHARE: Final = 0.2
_EARLY_S_MIN: Final = 3.0
"""It is run again so long before the end of what it has printed, or for this share of its life if that is less.

Kafka's brokers refuse a login that follows another one within a second, and clients log in again before a token ends.
"""

_AGAIN_S: Final = 5.0
"""What a server has refused is asked for again so much later: server and command change at different moments."""


@dataclass(frozen=True, slots=True)
class Printed(Generic[_Value]):
    """What a command has printed, and when that ends, in seconds since 1970; None: nobody knows."""

    value: _Value
    ends_at_s: float | None


class _Hanging:
    """The commands of this process that took too long when they were run last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commands: dict[tuple[str, ...], tuple[int, float]] = {}

    def left_alone_s(self, command: Sequence[str]) -> float:
        """For how long the command isn't to be run; 0 where it is."""
        with self._lock:
            _, until_s = self._commands.get(tuple(command), (0, 0.0))
        return max(0.0, until_s - time.monotonic())

    def note(self, command: Sequence[str], *, hung: bool) -> None:
        with self._lock:
            times, _ = self._commands.pop(tuple(command), (0, 0.0))
            if hung:
                left_alone_s = _LEFT_ALONE_S[min(times, len(_LEFT_ALONE_S) - 1)]
                self._commands[tuple(command)] = (times + 1, time.monotonic() + left_alone_s)


_hanging: Final = _Hanging()


@dataclass(frozen=True, slots=True)
class _Kept:
    printed: Printed[Any]
    at_s: float
    renewed_at_s: float


class _KeptSecrets:
    """What commands have printed in this process and is still good. One command runs once at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[object, threading.Lock] = {}
        self._kept: dict[object, _Kept] = {}

    def running(self, key: object) -> threading.Lock:
        with self._lock:
            return self._running.setdefault(key, threading.Lock())

    def get(self, key: object) -> Printed[Any] | None:
        with self._lock:
            kept = self._kept.get(key)
        return kept.printed if kept is not None and time.time() < kept.renewed_at_s else None

    def keep(self, key: object, printed: Printed[Any], *, renewed_at_s: float) -> None:
        with self._lock:
            self._kept[key] = _Kept(printed, time.time(), renewed_at_s)

    def forget(self, key: object, *, older_than_s: float) -> None:
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and abs(time.time() - kept.at_s) >= older_than_s:
                del self._kept[key]


_kept: Final = _KeptSecrets()


class SecretCommand(Generic[_Value]):
    """A program with its arguments, run without a shell, and what is read from its standard output.

    What it prints is used again by all of this process until shortly before it ends, where it says when that is. Else
    each ``read`` runs the command.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        setting: str,
        parse: Callable[[str], Printed[_Value]],
    ) -> None:
        self.command = tuple(command)
        self.setting = setting
        self._parse = parse
        self._key = (self.command, parse)

    def read(self) -> Printed[_Value]:
        """Raises ConfigurationError when there is no such program, and Unavailable when it fails, prints what it
        shouldn't, or takes longer than ten seconds: a service that gives out secrets may be back later. One that took
        so long isn't run for ten seconds to a minute after that, and whoever asks meanwhile gets Unavailable at once.
        """
        with _kept.running(self._key):
            kept: Printed[_Value] | None = _kept.get(self._key)
            return self._run() if kept is None else kept

    def refused(self, *, older_than_s: float = 0.0) -> None:
        """A server doesn't take what was printed, so long ago: the next ``read`` runs the command."""
        _kept.forget(self._key, older_than_s=older_than_s)

    def _run(self) -> Printed[_Value]:
        hint = f"run the command of {self.setting} by hand, as the user that Lockstep runs as"
        output = _output(self.command, setting=self.setting)
        now_s = time.time()
        try:
            printed = self._parse(output.decode().rstrip("\r\n"))
        except UnicodeDecodeError:
            raise Unavailable(f"the command of {self.setting} printed what is no text in UTF-8", hint=hint) from None
        except ValueError as error:  # its sentence is ours, and has nothing of what was printed
            raise Unavailable(f"the command of {self.setting} printed {error}", hint=hint) from None
        if printed.ends_at_s is not None:
            left_s = printed.ends_at_s - now_s
            if left_s <= 0:
                raise Unavailable(
                    f"the command of {self.setting} printed what has expired {-left_s:.0f} s ago",
                    hint=f"compare the clocks, or {hint}",
                    retry_after_s=_AGAIN_S,
                )
            early_s = min(_EARLY_S, max(_EARLY_S_MIN, _EARLY_SHARE * left_s))
            _kept.keep(self._key, printed, renewed_at_s=printed.ends_at_s - early_s)
        return printed


def _output(command: Sequence[str], *, setting: str) -> bytes:
    """The command's standard output. What else it says is shown nowhere."""
    hint = "run the command by hand, as the user that Lockstep runs as"
    took_long = f"the command of {setting} took longer than {_COMMAND_S:.0f} s and was killed"
    left_alone_s = _hanging.left_alone_s(command)
    if left_alone_s:
        raise Unavailable(
            f"{took_long}; it is run again in {left_alone_s:.0f} s at the earliest",
            hint=hint,
            retry_after_s=left_alone_s,
        )
    try:
        # In a group of its own, so that what it has started ends with it.
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # the latter for a NUL in it
        reason = error.strerror if isinstance(error, OSError) else "an argument has the character NUL"
        raise ConfigurationError(f"the command of {setting} can't be run: {reason}", hint=hint) from None
    with process:
        try:
            printed, _ = process.communicate(timeout=_COMMAND_S)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                _hanging.note(command, hung=True)
                left_alone_s = _hanging.left_alone_s(command)
                raise Unavailable(took_long, hint=hint, retry_after_s=left_alone_s) from None
            raise
    _hanging.note(command, hung=False)
    if process.returncode != 0:
        raise Unavailable(f"the command of {setting} failed with exit code {process.returncode}", hint=hint)
    return printed


def password_command(command: Sequence[str], *, setting: str) -> SecretCommand[SecretStr]:
    """A command that prints a password or a token: as the only line, or as ``{"token": ..., "expires_at": ...}``.

    A JSON Web Token says by itself when it ends.
    """
    return SecretCommand(command, setting=setting, parse=_password)


def _password(text: str) -> Printed[SecretStr]:
    """Raises ValueError, in words that go on after "printed"."""
    document = json_object(text)
    if document is not None:
        token = document.get("token")
        if not isinstance(token, str) or not token:
            raise ValueError('JSON without a text "token"')
        return Printed(SecretStr(token), moment_s(document, "expires_at") or _claimed_end_s(token))
    if not text or not text.isprintable():
        raise ValueError("nothing" if not text else "more than one line of text")
    return Printed(SecretStr(text), _claimed_end_s(text))


def _claimed_end_s(token: str) -> float | None:
    """When a JSON Web Token ends, by its claim ``exp`` (RFC 7519); None: it doesn't say, or is none."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return None
    end = claims.get("exp") if isinstance(claims, dict) else None
    return float(end) if isinstance(end, int | float) and not isinstance(end, bool) else None


def json_object(text: str) -> Mapping[str, Any] | None:
    """The JSON object that a text is; None for any other text."""
    if not text.startswith("{"):
        return None
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def moment_s(document: Mapping[str, Any], name: str) -> float | None:
    """A moment of a JSON object, in seconds since 1970: a number of them, or a text by RFC 3339. None: it has none.

    Raises ValueError, in words that go on after "printed".
    """
    moment = document.get(name)
    if moment is None:
        return None
    if isinstance(moment, int | float) and not isinstance(moment, bool):
        return float(moment)
    try:
        parsed = datetime.fromisoformat(moment)
    except (TypeError, ValueError):
        parsed = None
    if parsed is None or parsed.tzinfo is None:
        raise ValueError(f'JSON whose "{name}" is neither seconds since 1970 nor a text as 2030-01-31T12:00:00Z')
    return parsed.timestamp()


_PASSWORD_REFUSED: Final = re.compile(r"\b(password|SASL|PAM|LDAP|RADIUS|BSD) authentication failed")
"""How PostgreSQL, and poolers before it, refuse a password. What GSSAPI or a peer is refused for is no password."""


def while_passwords_change(error: LockstepError, command: SecretCommand[SecretStr] | None) -> LockstepError:
    """What to raise for PostgreSQL's refusal of a login whose password this command has printed; None: there is none.

    A refused password may be taken later, since server and command change at different moments. What else was refused
    stays as it is.
    """
    if command is None or not _PASSWORD_REFUSED.search(error.message):
        return error
    return not_taken(command, error)


def not_taken(command: SecretCommand[Any], error: LockstepError) -> Unavailable:
    """What to raise where a server has refused what this command has printed, with the server's words. It is run
    again for the next login."""
    command.refused()
    return Unavailable(
        f"the password that {command.setting} prints isn't taken: {error.message}",
        hint=error.hint,
        retry_after_s=_AGAIN_S,
    )
