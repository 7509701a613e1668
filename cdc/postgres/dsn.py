"""The parts of libpq's connection string, and which of them are secrets."""

import re
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

_SECRETS: Final = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")

FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "sslcrldir", "sslkeylogfile", "passfile")
"""The parts that are paths."""

# Greedy: a password may have quotes itself.
_QUOTED: Final = re.compile(r'".*"', re.DOTALL)


def parse_dsn(dsn: str) -> dict[str, Any]:
    """The parts of a connection string, by name. Raises ValueError without any value of the string in its text."""
    try:
        return dict(conninfo_to_dict(dsn))
    except psycopg.ProgrammingError as error:
        text = str(error).strip()
        if "password" in dsn or "://" in dsn:  # libpq may quote a piece of a password
            text = _QUOTED.sub("...", text)
        raise ValueError(f"is not a libpq connection string: {text}") from None


def holds_secret(parts: dict[str, Any]) -> bool:
    return any(parts.get(name) is not None for name in _SECRETS)


def file_below(directory: Path, name: str, value: str) -> str:
    """The value of one of ``FILES``, relative to the directory unless it is absolute or no path. Values that are no
    paths: libpq's word for the system's authorities, a key in an engine, and empty for no file."""
    is_word = not value or (name == "sslrootcert" and value == "system") or (name == "sslkey" and ":" in value)
    return value if is_word else str(directory / value)


def files_below(directory: Path, dsn: str) -> str:
    """A connection string whose files are relative to the directory; unchanged if that makes no difference. Raises
    ValueError as ``parse_dsn``."""
    parts = parse_dsn(dsn)
    below = {name: file_below(directory, name, parts[name]) for name in FILES if parts.get(name) is not None}
    return dsn if below.items() <= parts.items() else make_conninfo("", **parts | below)
