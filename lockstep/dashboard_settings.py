"""``[dashboard]``: where the web page and its API listen."""

import ipaddress
from typing import Final

from pydantic import field_validator

from cdc.model.errors import ConfigurationError
from cdc.settings import Settings

TOKEN_VARIABLE: Final = "LOCKSTEP_DASHBOARD_TOKEN"  # noqa: S105  the name of a variable, not a token
"""The environment variable that holds the token of the page and the API."""

DEFAULT_LISTEN: Final = "127.0.0.1:8642"


class DashboardSettings(Settings):
    listen: str = DEFAULT_LISTEN

    @field_validator("listen")
    @classmethod
    def _address(cls, listen: str) -> str:
        host, colon, port = listen.rpartition(":")
        if not colon or not host.strip("[]") or not port.isdecimal() or int(port) > 65_535:
            raise ValueError("must be an address and a port, as in 127.0.0.1:8642 or [::1]:8642")
        return listen

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port; 0 means any free one."""
        return int(self.listen.rpartition(":")[2])

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def refuse_without_token(self, token: str | None) -> None:
        """Raise ConfigurationError if other machines could get in without a token."""
        if not self.is_loopback and not token:
            raise ConfigurationError(
                f"dashboard.listen is {self.listen}, which other machines reach, and there is no token",
                hint=f"set {TOKEN_VARIABLE}, or listen on 127.0.0.1",
            )
