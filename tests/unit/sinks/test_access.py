"""sinks.access"""

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from cdc.model.errors import StoreRefuses
from sinks.access import Login, certificate_refused, untrusted


def test_a_password_is_never_shown() -> None:
    login = Login(user="u", password=SecretStr("secret-word"))
    assert "secret-word" not in repr(login)
    assert "secret-word" not in login.model_dump_json()
    assert login.read_password() == "secret-word"


def test_a_password_file_is_read_at_every_use(tmp_path: Path) -> None:
    file = tmp_path / "password"
    login = Login(password_file=file)
    file.write_text("one\n")
    assert login.read_password() == "one"
    file.write_text("two")
    assert login.read_password() == "two"


def test_a_password_and_a_file_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="exclude each other"):
        Login(password=SecretStr("x"), password_file=Path("y"))


def test_who_does_not_get_into_a_server_blames_no_table(tmp_path: Path) -> None:
    refused = OSError("sslv3 alert bad certificate")
    assert isinstance(untrusted("the server", OSError("hostname mismatch")), StoreRefuses)
    assert isinstance(certificate_refused("the server", refused), StoreRefuses)
    with pytest.raises(StoreRefuses):
        Login(password_file=tmp_path / "nowhere").read_password()
