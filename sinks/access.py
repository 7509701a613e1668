"""How a sink gets into its server: secrets from the configuration or from files, and TLS."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, SecretStr, model_validator

from cdc.model.errors import LockstepError


class Tls(BaseModel):
    """TLS towards a server. The server's certificate is checked unless ``verify`` is switched off.

    ``ca_file`` holds the authorities to trust instead of the system's; ``certificate_file`` and ``key_file`` are what this
    client shows of itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    verify: bool = True


class Login(BaseModel):
    """User and password, the password itself or a file that holds it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    user: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = None

    @model_validator(mode="after")
    def _one_password(self) -> Self:
        if self.password is not None and self.password_file is not None:
            raise ValueError("password and password_file exclude each other")
        return self

    def read_password(self) -> str | None:
        """The password, read from its file at every call so that a rotated one is found. Raises LockstepError."""
        if self.password is not None:
            return self.password.get_secret_value()
        if self.password_file is None:
            return None
        try:
            return self.password_file.read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            raise LockstepError(
                f"password file {str(self.password_file)!r} can't be read: {error.strerror}",
                hint="check its path and permissions",
            ) from error
