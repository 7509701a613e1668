"""How a sink logs in to its server: secrets from the configuration or from files, and TLS."""

from pathlib import Path
from typing import Final, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import SecretStr, model_validator

from cdc.model.errors import LockstepError, StoreRefuses, Unavailable
from cdc.secret import read_secret_file
from cdc.settings import Settings

# OpenSSL's words when the other side wants a certificate of ours, or another one. Its words about theirs hold no alert.
_OURS_REFUSED: Final = (
    "alert certificate required",
    "alert unknown ca",
    "alert bad certificate",
    "alert certificate unknown",
    "alert certificate expired",
    "alert certificate revoked",
    "alert handshake failure",
)
# With TLS 1.3 the server may just hang up, and this is the only sign.
_HUNG_UP: Final = "eof occurred in violation of protocol"


# OpenSSL's words about a server's certificate -> what they mean.
_UNTRUSTED: Final = {
    "has expired": "it has expired",
    "not yet valid": "it isn't valid yet",
    "hostname mismatch": "it is of another name",
    "ip address mismatch": "it is of another name",
    "does not match host name": "it is of another name",
}


def untrusted(server: str, error: BaseException) -> StoreRefuses:
    """The error for a server's certificate that the client doesn't accept. Nothing was sent to the server."""
    words = str(error).lower()
    why = next((why for sign, why in _UNTRUSTED.items() if sign in words), None)
    return StoreRefuses(
        f"the certificate of {server} isn't trusted"
        + (f": {why}" if why else ": it is from an authority that isn't known here, of another name, or has expired"),
        hint="set tls.ca_file of this sink to the authority's certificate, or have the server's renewed with the name"
        " in the sink's address; then run `lockstep doctor`",
    )


def certificate_refused(server: str, error: BaseException) -> LockstepError | None:
    """The error when a server refuses our certificate, or wants one; None if something else happened."""
    words = str(error).lower()
    hint = (
        "set tls.certificate_file and tls.key_file of this sink to a certificate that the server's authority has signed"
    )
    if any(alert in words for alert in _OURS_REFUSED):
        return StoreRefuses(f"{server} refuses the certificate of this sink, or that it shows none", hint=hint)
    if _HUNG_UP in words:
        return Unavailable(
            f"{server} ended the connection at its TLS handshake: it does so when it asks for a certificate"
            " (tls.certificate_file of this sink)",
            hint=hint,
            retry_after_s=1.0,
        )
    return None


def split_address(url: str, *, looks_like: str) -> SplitResult:
    """The parts of a server's address. Raises ValueError, without the address in it, for a wrong or missing host or
    port.

    Client libraries notice that only when they connect, each with an exception of its own.
    """
    try:
        parts = urlsplit(url)
        is_address = bool(parts.hostname) and parts.port != 0 and not any(map(str.isspace, url))
    except ValueError:
        is_address = False
    if not is_address:
        raise ValueError(f"an address looks like {looks_like}")
    return parts


_THIS_HOST: Final = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})  # noqa: S104  nothing listens here


def same_host(host: str) -> str:
    """One spelling of a host's name: case, brackets, a final dot and names of this machine make no difference."""
    name = host.strip("[]").rstrip(".").lower()
    return "localhost" if name in _THIS_HOST else name


def same_server(parts: SplitResult, *, default_port: int) -> str:
    """Host and port of an address that ``split_address`` returned, in one spelling."""
    return f"{same_host(parts.hostname or '')}:{parts.port or default_port}"


class Login(Settings):
    """User and password. The password is given itself, or as a file that holds it."""

    user: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = None

    @model_validator(mode="after")
    def _one_password(self) -> Self:
        if self.password is not None and self.password_file is not None:
            raise ValueError("password and password_file exclude each other")
        return self

    def read_password(self) -> str | None:
        """The password as it is now. Raises StoreRefuses when its file can't be read."""
        if self.password is not None:
            return self.password.get_secret_value()
        if self.password_file is None:
            return None
        try:
            return read_secret_file(self.password_file).rstrip("\r\n")
        except OSError as error:
            raise StoreRefuses(
                f"password file {str(self.password_file)!r} can't be read: {error.strerror}",
                hint="check its path and permissions",
            ) from error
