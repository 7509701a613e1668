"""Secrets come from files or the environment, never from the configuration. They print as ``***``."""

import errno
import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from pydantic import SecretStr

from cdc.model.errors import ConfigurationError

_SECRET_NAME: Final = re.compile(
    r"secret|password|token|private|connection_string|sas(_|$)|(^|[_-])sig(nature)?$|^http_auth$|scram_(client|server)_key"
    r"|(account|customer)[._]key(?![._]id)|(access|master)_key(?!_id)",
    re.IGNORECASE,
)
# A file or a path that holds a secret, Kubernetes' settings by name, and how a secret is made or sent.
_NO_SECRET_NAME: Final = re.compile(
    r"(file|path|secretbitlength|token\.mechanism)$|^spark\.kubernetes\.\w+\.secret(s|keyref)\.", re.IGNORECASE
)
_SCHEME: Final = re.compile(r"(?<![\w+.-])[a-z][\w+.-]*://", re.IGNORECASE)
# As loose as the loosest reader of addresses: a password may have any character, even forbidden ones.
_USER_AND_PASSWORD: Final = re.compile(r"[^:/]*:.+@", re.DOTALL)


def is_secret_name(name: str) -> bool:
    """Whether a setting of this name holds a secret, by the names that stores, Spark and libpq use."""
    return _SECRET_NAME.search(name) is not None and _NO_SECRET_NAME.search(name) is None


def address_holds_secret(text: str) -> bool:
    """Whether an address, or one of several in a text, has a password: before its ``@`` or among its parameters. An
    ``@`` anywhere after a ``:`` counts, since it may be that of a password."""
    begins = [0, *(match.start() for match in _SCHEME.finditer(text))]
    if any(_USER_AND_PASSWORD.match(_SCHEME.sub("", text[begin:], count=1)) for begin in begins):
        return True
    return any(is_secret_name(name) for name, _ in parse_qsl(text.partition("?")[2]))


def read_secret_file(file: Path) -> str:
    """A file's content. Raises OSError, also if it isn't text, without showing any of it."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "it isn't text in UTF-8") from None


def read_secret(*, variable: str, file: Path | None) -> SecretStr | None:
    """A secret from its file if there is one, else from the environment, else None. Raises ConfigurationError if the
    file can't be read."""
    if file is not None:
        try:
            return SecretStr(read_secret_file(file).strip())
        except OSError as error:
            raise ConfigurationError(
                f"the secret file {file} can't be read: {error.strerror}", hint="check the path and its permissions"
            ) from error
    value = os.environ.get(variable)
    return SecretStr(value) if value else None
