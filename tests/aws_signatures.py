"""Checks AWS signatures of version 4 as a server does: from what has arrived, and by code of its own.

By AWS' guide, with the values of its published test suite (``tests/unit/sinks/opensearch/test_sigv4.py``).
"""

import datetime
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_HEADER: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<id>[^/]+)/(?P<day>\d{8})/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request,"
    r" SignedHeaders=(?P<names>[^,]+), Signature=(?P<signature>[0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class Account:
    """Whom a server lets in."""

    key_id: str
    secret: str
    token: str | None = None


def fault_of(
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
    account: Account,
    *,
    scope: tuple[str, str],
    now: datetime.datetime,
) -> str | None:
    """What is wrong with a request's signature, None: nothing. ``scope`` is region and service, headers in any case."""
    given = {name.lower(): value for name, value in headers.items()}
    parts = _HEADER.fullmatch(given.get("authorization", ""))
    if parts is None:
        return "no signature"
    names = parts["names"].split(";")
    if "host" not in names or any(name.startswith("x-amz-") and name not in names for name in given):
        return "a header isn't signed that has to be"
    if parts["id"] != account.key_id or given.get("x-amz-security-token") != account.token:
        return "the security token included in the request is expired"
    if (parts["region"], parts["service"]) != scope or not given["x-amz-date"].startswith(parts["day"]):
        return "signed for something else"
    sent_at = datetime.datetime.strptime(given["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
    if abs(now - sent_at) > datetime.timedelta(minutes=5):
        return "signature expired"
    body_hash = hashlib.sha256(body).hexdigest()
    if given.get("x-amz-content-sha256", body_hash) != body_hash:
        return "another body than the signed one"
    path, _, query = target.partition("?")
    lines = [method, _encoded(path, slash=True), _sorted_query(query)]
    lines += [f"{name}:{re.sub(' +', ' ', given[name].strip())}" for name in names]
    request = "\n".join([*lines, "", ";".join(names), body_hash])
    text = (
        f"AWS4-HMAC-SHA256\n{given['x-amz-date']}\n{parts['day']}/{scope[0]}/{scope[1]}/aws4_request\n"
        + hashlib.sha256(request.encode()).hexdigest()
    )
    day = hmac.new(b"AWS4" + account.secret.encode(), parts["day"].encode(), hashlib.sha256).digest()
    region = hmac.new(day, scope[0].encode(), hashlib.sha256).digest()
    service = hmac.new(region, scope[1].encode(), hashlib.sha256).digest()
    key = hmac.new(service, b"aws4_request", hashlib.sha256).digest()
    if hmac.new(key, text.encode(), hashlib.sha256).hexdigest() != parts["signature"]:
        return "the request signature we calculated does not match the signature you provided"
    return None


def _encoded(text: str, *, slash: bool = False) -> str:
    kept = _PLAIN | {ord("/")} if slash else _PLAIN
    return "".join(chr(byte) if byte in kept else f"%{byte:02X}" for byte in text.encode())


def _decoded(text: str) -> str:
    return re.sub(rb"%([0-9A-Fa-f]{2})", lambda match: bytes([int(match[1], 16)]), text.encode()).decode()


def _sorted_query(query: str) -> str:
    pairs = [part.partition("=")[::2] for part in query.split("&") if part]
    encoded = sorted((_encoded(_decoded(name)), _encoded(_decoded(value))) for name, value in pairs)
    return "&".join(f"{name}={value}" for name, value in encoded)
