"""AWS' signature of a request, version 4, as Amazon OpenSearch asks for it (pure), and the keys that it is made with.

By "AWS Signature Version 4 for API requests" in AWS' Identity and Access Management guide.
"""

import hashlib
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from cdc.model.errors import LockstepError
from cdc.printed_secret import Printed, SecretCommand, json_object, moment_s

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_UNRESERVED: Final = "-_.~"
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """What a request is signed with. ``session_token`` is of keys that end."""

    id: str
    secret: SecretStr
    session_token: SecretStr | None = None


class SigV4(BaseModel):
    """Requests are signed for Amazon OpenSearch Service in a region of AWS'.

    The keys are what ``credentials_command`` prints, as a ``credential_process`` of AWS' own configuration does. Else
    they are in the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN where there is one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    region: str = Field(pattern=r"^[a-z0-9-]+$")
    credentials_command: tuple[str, ...] | None = Field(None, min_length=1)

    @property
    def command(self) -> SecretCommand[AwsKeys] | None:
        """What prints the keys."""
        if self.credentials_command is None:
            return None
        return SecretCommand(
            self.credentials_command, setting="sigv4.credentials_command of this sink", parse=printed_keys
        )

    def read_keys(self, environment: Mapping[str, str] = os.environ) -> AwsKeys:
        """The keys as they are now. Raises LockstepError where there are none, and as ``SecretCommand.read``."""
        if (command := self.command) is not None:
            return command.read().value
        key_id, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
        if not key_id or not secret:
            raise LockstepError(
                "sigv4 of this sink has no keys: neither a command nor the environment gives them",
                hint="set sigv4.credentials_command of this sink, or $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY;"
                " then run `lockstep doctor`",
            )
        token = environment.get("AWS_SESSION_TOKEN")
        return AwsKeys(key_id, SecretStr(secret), SecretStr(token) if token else None)


def printed_keys(text: str) -> Printed[AwsKeys]:
    """The keys in what a ``credential_process`` prints. Raises ValueError, in words that go on after "printed"."""
    document = json_object(text) or {}
    if document.get("Version") != 1:
        raise ValueError('what isn\'t the JSON of a credential_process with "Version": 1')
    key_id, secret, token = (document.get(name) for name in ("AccessKeyId", "SecretAccessKey", "SessionToken"))
    if not (isinstance(key_id, str) and key_id and isinstance(secret, str) and secret):
        raise ValueError('JSON without "AccessKeyId" and "SecretAccessKey"')
    keys = AwsKeys(key_id, SecretStr(secret), SecretStr(token) if isinstance(token, str) and token else None)
    return Printed(keys, moment_s(document, "Expiration"))


def signed_headers(
    method: str, url: str, body: bytes, *, keys: AwsKeys, region: str, service: str, at: datetime
) -> dict[str, str]:
    """The headers that a request needs besides those that it has. ``at`` is now, in UTC."""
    parts = urlsplit(url)
    port = "" if parts.port in (None, _PORTS.get(parts.scheme)) else f":{parts.port}"
    host = parts.netloc.rpartition("@")[2].rpartition(":")[0] if parts.port is not None else parts.netloc
    signed = {
        "host": f"{host}{port}",
        "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
        "x-amz-date": at.strftime("%Y%m%dT%H%M%SZ"),
    }
    if keys.session_token is not None:
        signed["x-amz-security-token"] = keys.session_token.get_secret_value()
    signed["authorization"] = authorization(
        method,
        parts.path,
        parts.query,
        signed,
        signed["x-amz-content-sha256"],
        keys=keys,
        region=region,
        service=service,
    )
    return {name: value for name, value in signed.items() if name != "host"}  # which the client adds by itself


def authorization(
    method: str,
    path: str,
    query: str,
    signed: Mapping[str, str],
    body_hash: str,
    *,
    keys: AwsKeys,
    region: str,
    service: str,
) -> str:
    """The header of this name. ``path`` and ``query`` are as they are sent, ``signed`` the headers that are signed.

    The names of headers are in lower case, and ``x-amz-date`` is among them.
    """
    names = ";".join(sorted(signed))
    canonical = "\n".join(
        [
            method,
            quote(path or "/", safe=f"/{_UNRESERVED}"),  # once more, which every service but S3 wants
            _canonical_query(query),
            *(f"{name}:{' '.join(signed[name].split())}" for name in sorted(signed)),
            "",
            names,
            body_hash,
        ]
    )
    moment = signed["x-amz-date"]
    scope = f"{moment[:8]}/{region}/{service}/aws4_request"
    to_sign = "\n".join([_ALGORITHM, moment, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{keys.secret.get_secret_value()}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    return f"{_ALGORITHM} Credential={keys.id}/{scope}, SignedHeaders={names}, Signature={signature}"


def _canonical_query(query: str) -> str:
    pairs = parse_qsl(query, keep_blank_values=True)
    return "&".join(
        f"{name}={value}"
        for name, value in sorted(
            (quote(name, safe=_UNRESERVED), quote(value, safe=_UNRESERVED)) for name, value in pairs
        )
    )
