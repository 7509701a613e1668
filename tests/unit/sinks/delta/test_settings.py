"""sinks.delta.settings"""

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from sinks.delta.settings import DeltaSettings

LOGIN = {"user": "key-id", "password": SecretStr("secret-word")}


@pytest.mark.parametrize(
    ("root", "options"),
    [
        ("s3://b/l", {"aws_access_key_id": "key-id", "aws_secret_access_key": "secret-word"}),
        ("abfss://c@a/l", {"azure_storage_account_name": "key-id", "azure_storage_account_key": "secret-word"}),
        ("gs://b/l", {"google_service_account_key": "secret-word"}),
    ],
)
def test_a_login_is_what_the_store_calls_it(root: str, options: dict[str, str]) -> None:
    settings = DeltaSettings.model_validate({"root": root, "login": LOGIN, "storage_options": {"timeout": "5s"}})
    assert settings.options() == {"timeout": "5s", **options}
    assert "secret-word" not in repr(settings)


def test_a_password_file_is_read_each_time(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    settings = DeltaSettings.model_validate({"root": "s3://b/l", "login": {"password_file": secret}})
    for text in ("old", "new"):
        secret.write_text(f"{text}\n")
        assert settings.options() == {"aws_secret_access_key": text}


@pytest.mark.parametrize(
    "option", ["aws_secret_access_key", "AWS_SESSION_TOKEN", "azure_storage_sas_key", "google_service_account_key"]
)
def test_a_secret_among_the_options_is_refused_without_telling_it(option: str) -> None:
    with pytest.raises(ValidationError, match=f"{option}: secrets don't belong in here") as failure:
        DeltaSettings.model_validate({"root": "s3://b/l", "storage_options": {option: "hidden-word"}})
    (problem,) = failure.value.errors(include_url=False, include_input=False)
    assert "hidden-word" not in str(problem)


def test_the_place_of_a_secret_may_be_among_the_options() -> None:
    options = {"aws_web_identity_token_file": "/run/token"}
    assert DeltaSettings.model_validate({"root": "s3://b/l", "storage_options": options}).options() == options


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"root": "lake"}, "neither an absolute path nor an address"),
        ({"root": "s4://bucket/lake"}, "no address of a store"),
        ({"root": "memory:///lake"}, "no address of a store"),
        ({"root": "s3:///lake"}, "no address of a store"),
        ({"root": "/lake", "login": LOGIN}, "login is for object stores"),
        ({"root": "/lake", "retention_hours": 0}, "greater than 0"),
        ({"root": "/lake", "partition_by": {"orders": ["a"]}}, "not a table name"),
    ],
)
def test_settings_that_do_not_fit_are_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        DeltaSettings.model_validate(values)
