"""Secrets come from files or from the environment, never from the configuration, and print as ``***``."""

import errno
import os
from pathlib import Path

from pydantic import SecretStr

from cdc.model.errors import ConfigurationError


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
