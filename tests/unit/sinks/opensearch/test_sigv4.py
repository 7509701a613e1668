"""sinks.opensearch.sigv4, by values of the test suite that AWS has published."""

import datetime
import json
import re
from pathlib import Path
from typing import Final

import pytest
from pydantic import SecretStr, ValidationError

from cdc.model.errors import LockstepError, Unavailable
from sinks.access import Login
from sinks.opensearch.settings import OpenSearchSettings
from sinks.opensearch.sigv4 import AwsKeys, SigV4, authorization, printed_keys, signed_headers
from tests.aws_signatures import Account, fault_of

_SECRET: Final = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
_KEYS: Final = AwsKeys("AKIDEXAMPLE", SecretStr(_SECRET))
_EMPTY: Final = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_ALPHABET: Final = "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NOW: Final = datetime.datetime(2015, 8, 30, 12, 36, tzinfo=datetime.UTC)
_TOKEN: Final = (
    "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuw"
    "thAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHN"
    "VXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxB"
    "A=="
)

# Name in the suite, method, target, further headers, signature.
_SUITE: Final = {
    "get-vanilla-query-order-key-case": (
        "GET",
        "/?Param2=value2&Param1=value1",
        {},
        "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
    ),
    "get-vanilla-query-order-value": (
        "GET",
        "/?Param1=value2&Param1=value1",
        {},
        "5772eed61e12b33fae39ee5e7012498b51d56abc0abb7c60486157bd471c4694",
    ),
    "get-vanilla-query-unreserved": (
        "GET",
        f"/?{_ALPHABET}={_ALPHABET}",
        {},
        "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197",
    ),
    "post-vanilla-query": (
        "POST",
        "/?Param1=value1",
        {},
        "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11",
    ),
    "get-utf8": ("GET", "/\u1234", {}, "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"),
    "get-header-value-trim": (
        "GET",
        "/",
        {"my-header1": " value1", "my-header2": ' "a   b   c"'},
        "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
    ),
    "post-sts-header-before": (
        "POST",
        "/",
        {"x-amz-security-token": _TOKEN},
        "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead",
    ),
}


@pytest.mark.parametrize("name", _SUITE)
def test_a_signature_is_that_of_awss_own_suite(name: str) -> None:
    method, target, further, signature = _SUITE[name]
    headers = {"host": "example.amazonaws.com", "x-amz-date": "20150830T123600Z", **further}
    path, _, query = target.partition("?")
    made = authorization(method, path, query, headers, _EMPTY, keys=_KEYS, region="us-east-1", service="service")
    expected = (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request,"
        f" SignedHeaders={';'.join(sorted(headers))}, Signature={signature}"
    )
    assert made == expected
    account = Account("AKIDEXAMPLE", _SECRET, further.get("x-amz-security-token"))

    def fault(target: str, body: bytes = b"") -> str | None:
        """The servers' side of the tests, which is code of its own."""
        given = {**headers, "Authorization": expected}
        return fault_of(method, target, given, body, account, scope=("us-east-1", "service"), now=_NOW)

    assert fault(target) is None
    assert "does not match" in (fault(f"{target}x") or "")
    assert "does not match" in (fault(target, b"x") or "")


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://search.example/a,b/_doc/1%2F2?q=a%20b&pretty=", "search.example"),
        ("https://search.example:443/", "search.example"),
        ("https://search.example:9200/%C3%A4*", "search.example:9200"),
        ("http://[::1]:9200/_bulk", "[::1]:9200"),
        ("http://[::1]/_bulk", "[::1]"),
    ],
)
@pytest.mark.parametrize("token", [None, "a session's"])
def test_a_request_is_signed_as_it_is_sent(url: str, host: str, token: str | None) -> None:
    keys = AwsKeys("id", SecretStr("s"), SecretStr(token) if token else None)
    body = b'{"index": {}}\n'
    headers = signed_headers("POST", url, body, keys=keys, region="eu-central-1", service="es", at=_NOW)
    target = re.sub(r"^https?://[^/]+", "", url)
    sent = {**headers, "Host": host, "content-type": "application/json"}

    def fault(**changed: str) -> str | None:
        account = Account("id", "s", token)
        return fault_of("POST", target, sent | changed, body, account, scope=("eu-central-1", "es"), now=_NOW)

    assert fault() is None
    assert "does not match" in (fault(Host="another") or "")


def test_what_a_credential_process_prints_is_read() -> None:
    text = json.dumps(
        {
            "Version": 1,
            "AccessKeyId": "id",
            "SecretAccessKey": "s",
            "SessionToken": "t",
            "Expiration": "2100-01-01T00:00:00Z",
        }
    )
    printed = printed_keys(text)
    assert printed.value == AwsKeys("id", SecretStr("s"), SecretStr("t"))
    assert printed.ends_at_s == 4102444800
    assert printed_keys('{"Version": 1, "AccessKeyId": "id", "SecretAccessKey": "s"}').ends_at_s is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("s3cret", "what isn't the JSON of a credential_process"),
        ('{"Version": 2, "AccessKeyId": "s3cret"}', "what isn't the JSON of a credential_process"),
        ('{"Version": 1, "AccessKeyId": "s3cret"}', 'JSON without "AccessKeyId" and "SecretAccessKey"'),
    ],
)
def test_a_command_that_prints_something_else_is_told_without_it(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "printed").write_text(text)
    settings = SigV4(region="eu-central-1", credentials_command=("cat", str(tmp_path / "printed")))
    with pytest.raises(Unavailable, match=told) as caught:
        settings.read_keys()
    assert "s3cret" not in str(caught.value)
    assert caught.value.message.startswith("the command of sigv4.credentials_command of this sink printed")


def test_without_a_command_the_keys_are_in_the_environment() -> None:
    settings = SigV4(region="eu-central-1")
    given = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "s"}
    assert settings.read_keys(given) == AwsKeys("id", SecretStr("s"))
    assert settings.read_keys({**given, "AWS_SESSION_TOKEN": "t"}).session_token == SecretStr("t")
    with pytest.raises(LockstepError, match="has no keys") as caught:
        settings.read_keys({"AWS_ACCESS_KEY_ID": "id"})
    assert "credentials_command" in (caught.value.hint or "")


def test_no_key_is_shown() -> None:
    keys = AwsKeys("id", SecretStr("s3cret"), SecretStr("s3cret"))
    assert "s3cret" not in f"{keys} {keys!r}"


def test_signatures_and_a_login_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="sigv4 and login exclude each other"):
        OpenSearchSettings(login=Login(user="u"), sigv4=SigV4(region="eu-central-1"))


@pytest.mark.parametrize("region", ["", "eu central", "a/b"])
def test_a_region_is_one(region: str) -> None:
    with pytest.raises(ValidationError, match="region"):
        SigV4(region=region)
