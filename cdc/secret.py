"""Secrets come from files or from the environment, never from the configuration, and print as ``***``."""

import os
from pathlib import Path

from pydantic import SecretStr

from cdc.model.errors import ConfigurationError


def read_secret(*, variable: str, file: Path | None) -> SecretStr | None:
    """A secret from its file when there is one, else from the environment, else None.

    Raises ConfigurationError when the file can't be read.
    """
    if file is not None:
        try:
            return SecretStr(file.read_text().strip())
        except OSError as error:
            raise ConfigurationError(
                f"the secret file {file} can't be read: {error.strerror}", hint="check the path and its permissions"
            ) from error
    value = os.environ.get(variable)
    return SecretStr(value) if value else None
