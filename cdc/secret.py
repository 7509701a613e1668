"""Secrets come from files, commands or the environment, never from the configuration, and print as ``***``."""

import errno
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from pydantic import SecretStr

from cdc.model.errors import ConfigurationError, LockstepError, Unavailable

_SECRET_NAME: Final = re.compile(
    r"secret|password|token|private|connection_string|sas(_|$)|(^|[_-])sig(nature)?$|^http_auth$|scram_(client|server)_key"
    r"|(account|customer)[._]key(?![._]id)|(access|master)_key(?!_id)",
    re.IGNORECASE,
)
# A file or a path that holds one, Kubernetes' own by their names, and how one is made or sent.
_NO_SECRET_NAME: Final = re.compile(
    r"(file|path|secretbitlength|token\.mechanism)$|^spark\.kubernetes\.\w+\.secret(s|keyref)\.", re.IGNORECASE
)
_SCHEME: Final = re.compile(r"(?<![\w+.-])[a-z][\w+.-]*://", re.IGNORECASE)
# As loose as the loosest of those who read addresses: a password may have any character that it shouldn't have.
_USER_AND_PASSWORD: Final = re.compile(r"[^:/]*:.+@", re.DOTALL)


def is_secret_name(name: str) -> bool:
    """Whether what a setting of this name holds is a secret, by the names that stores, Spark and libpq have."""
    return _SECRET_NAME.search(name) is not None and _NO_SECRET_NAME.search(name) is None


def address_holds_secret(text: str) -> bool:
    """Whether an address, or one of several in a text, has a password: before its ``@`` or among its parameters.

    An ``@`` further behind a ``:`` counts as well, since it can't be told from that of a password.
    """
    begins = [0, *(match.start() for match in _SCHEME.finditer(text))]
    if any(_USER_AND_PASSWORD.match(_SCHEME.sub("", text[begin:], count=1)) for begin in begins):
        return True
    return any(is_secret_name(name) for name, _ in parse_qsl(text.partition("?")[2]))


def read_secret_file(file: Path) -> str:
    """What a file holds. Raises OSError, for what is no text as well, and shows none of it."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "it isn't text in UTF-8") from None


def read_secret(*, variable: str, file: Path | None) -> SecretStr | None:
    """A secret from its file when there is one, else from the environment, else None.

    Raises ConfigurationError when the file can't be read.
    """
    if file is not None:
        try:
            return SecretStr(read_secret_file(file).strip())
        except OSError as error:
            raise ConfigurationError(
                f"the secret file {file} can't be read: {error.strerror}", hint="check the path and its permissions"
            ) from error
    value = os.environ.get(variable)
    return SecretStr(value) if value else None


_COMMAND_S: Final = 10.0
"""A command that prints a secret has this long. Whoever connects waits for it, and a stream may wait behind him."""

_LEFT_ALONE_S: Final = (10.0, 20.0, 40.0, 60.0)
"""After a command has taken too long it isn't run for so long: the first time, the second, and so on."""


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


def secret_from_command(command: Sequence[str], *, setting: str) -> SecretStr:
    """The only line that a command prints, which is run without a shell. What else it says is shown nowhere.

    Raises ConfigurationError when there is no such program, and Unavailable when it fails, prints no line or several,
    or takes longer than ten seconds: a service that gives out secrets may be back later. One that took so long isn't
    run for ten seconds to a minute after that, and whoever asks meanwhile gets Unavailable at once.
    """
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
    try:
        secret = printed.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise Unavailable(f"the command of {setting} printed what is no text in UTF-8", hint=hint) from None
    if not secret or not secret.isprintable():
        what = "nothing" if not secret else "more than one line of text"
        raise Unavailable(f"the command of {setting} printed {what}", hint=hint)
    return SecretStr(secret)


_PASSWORD_REFUSED: Final = re.compile(r"\b(password|SASL|PAM|LDAP|RADIUS|BSD) authentication failed")
"""How PostgreSQL, and poolers before it, refuse a password. What GSSAPI or a peer is refused for is no password."""


def while_passwords_change(error: LockstepError, command: Sequence[str] | None, *, setting: str) -> LockstepError:
    """What to raise for PostgreSQL's refusal of a login whose password this command has printed; None: there is none.

    A refused password may be taken later, since server and command change at different moments. What else was refused
    stays as it is.
    """
    if command is None or not _PASSWORD_REFUSED.search(error.message):
        return error
    return Unavailable(
        f"the password that {setting} prints isn't taken: {error.message}", hint=error.hint, retry_after_s=5.0
    )
