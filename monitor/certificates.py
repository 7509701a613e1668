"""When certificates expire: those in files, and those that servers present. Only their validity is read."""

import re
import socket
import ssl
from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE: Final = 0x30
_UTC_TIME: Final = 0x17
_VERSION: Final = 0xA0
_POSTGRES_WANTS_TLS: Final = bytes((0, 0, 0, 8, 4, 210, 22, 47))
_TIMEOUT_S: Final = 5.0


class Validity(NamedTuple):
    """When a certificate is valid, in milliseconds since 1970. The end comes first: ``min`` finds the first to end."""

    until_ms: int
    from_ms: int


def file_validity(path: Path) -> Validity:
    """The validity of the certificate in a PEM file that expires first. Raises OSError, and ValueError for a
    certificate that can't be read, or if there is none: the file may be being written."""
    return min(map(validity, (b64decode(body) for body in _PEM.findall(path.read_bytes()))))


def server_validity(host: str, port: int, *, is_postgres: bool = False) -> Validity | None:
    """The validity of the certificate that a server presents; None if it doesn't speak TLS. Checks and sends nothing.
    Raises OSError if the server can't be reached, and ValueError for a certificate that can't be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # only the date is read here; whoever sends something checks the rest
    with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
        if is_postgres:
            connection.sendall(_POSTGRES_WANTS_TLS)
            if connection.recv(1) != b"S":
                return None
        with context.wrap_socket(connection, server_hostname=host) as encrypted:
            certificate = encrypted.getpeercert(binary_form=True)
    return None if certificate is None else validity(certificate)


def validity(certificate: bytes) -> Validity:
    """The validity of a DER certificate. Raises ValueError for other bytes."""
    try:
        ((_, outer),) = list(_elements(certificate))
        _, to_sign = next(_elements(outer))
        fields = [field for field in _elements(to_sign) if field[0] != _VERSION]
        tag, moments = fields[3]  # after serial number, signature algorithm and issuer
        if tag != _SEQUENCE:
            raise ValueError("no validity")  # noqa: TRY301
        from_ms, until_ms = (_milliseconds(kind, text.decode("ascii")) for kind, text in _elements(moments))
    except (ValueError, IndexError, StopIteration) as error:
        raise ValueError(f"not a certificate: {type(error).__name__}") from None
    return Validity(until_ms, from_ms)


def _milliseconds(kind: int, text: str) -> int:
    if kind == _UTC_TIME:
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp() * 1000)


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of consecutive elements. Raises IndexError or ValueError if the bytes end too soon."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        if at + length > len(der):
            raise ValueError("cut off")
        yield tag, der[at : at + length]
        at += length
