"""sinks.opensearch.request_login: what is made of refusals."""

from pathlib import Path
from typing import Final

import pytest

from cdc.model.errors import StoreRefuses, Unavailable
from sinks.opensearch.answers import failure
from sinks.opensearch.request_login import Signing
from sinks.opensearch.sigv4 import SigV4

_KEYS: Final = '{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "s"}'


def signing(directory: Path) -> tuple[Signing, Path]:
    """With a file that has a line for each time that the keys' command has run."""
    runs = directory / "runs"
    login = Signing(SigV4(region="eu", credentials_command=("sh", "-c", f"echo >> \"$0\"; echo '{_KEYS}'", str(runs))))
    login.read()
    return login, runs


@pytest.mark.parametrize("status", [401, 403])
def test_what_isnt_let_in_has_the_keys_asked_for_once_more(tmp_path: Path, status: int) -> None:
    login, runs = signing(tmp_path)
    assert login.is_refused(status, was_let_in=False)
    login.read()
    assert runs.read_text() == "\n\n"


@pytest.mark.parametrize(("status", "was_let_in"), [(403, True), (429, False), (500, False)])
def test_any_other_refusal_is_not_the_keys(tmp_path: Path, status: int, was_let_in: bool) -> None:
    login, runs = signing(tmp_path)
    assert not login.is_refused(status, was_let_in=was_let_in)
    login.read()
    assert runs.read_text() == "\n"


@pytest.mark.parametrize(
    "words",
    [
        "{'message': 'The security token included in the request is expired'}",
        "{'__type': 'ExpiredTokenException', 'message': 'The token has ended'}",
    ],
)
def test_keys_that_have_expired_are_waited_for(tmp_path: Path, words: str) -> None:
    login, _ = signing(tmp_path)
    assert isinstance(login.refusal(failure(403, "not in OpenSearch's own words"), words), Unavailable)


@pytest.mark.parametrize(
    "words",
    [
        "{'message': 'Signature expired: 20261126T074514Z is now earlier than 20261126T075556Z (20261126T080056Z - 5'}",
        "{'message': 'The security token included in the request is invalid.'}",
        "{'message': 'The request signature we calculated does not match the signature you provided.'}",
    ],
)
def test_a_wrong_clock_or_key_stops_and_no_table_is_to_blame(tmp_path: Path, words: str) -> None:
    login, _ = signing(tmp_path)
    told = login.refusal(failure(403, "not in OpenSearch's own words"), words)
    assert isinstance(told, StoreRefuses)
    assert "this machine's clock" in (told.hint or "")


def test_keys_of_the_environment_are_told_of_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "A")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    login = Signing(SigV4(region="eu"))
    login.read()
    assert login.is_refused(403, was_let_in=False)
    assert isinstance(login.refusal(failure(403, "not in OpenSearch's own words"), "{}"), StoreRefuses)
