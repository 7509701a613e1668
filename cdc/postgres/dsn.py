"""libpq's connection string in parts, and which of them are secrets."""

import re
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

_SECRETS: Final = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")

# Greedy: a password may have quotes itself.
_QUOTED: Final = re.compile(r'".*"', re.DOTALL)


def parse_dsn(dsn: str) -> dict[str, Any]:
    """The parts of a connection string by their names. Raises ValueError, with no value of the string in its text."""
    try:
        return dict(conninfo_to_dict(dsn))
    except psycopg.ProgrammingError as error:
        text = str(error).strip()
        if "password" in dsn or "://" in dsn:  # What libpq quotes may be a piece of a password.
            text = _QUOTED.sub("...", text)
        raise ValueError(f"is not a libpq connection string: {text}") from None


def holds_secret(parts: dict[str, Any]) -> bool:
    """Whether one of the parts is a secret."""
    return any(parts.get(name) is not None for name in _SECRETS)
