"""cdc.kafka.printed_login: passwords and tokens that a command prints."""

import base64
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from cdc.kafka import printed_login
from cdc.kafka.client import new_client
from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import ConfigurationError, Unavailable
from cdc.secret import is_secret_name

_REFUSED = KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error")


class Client:
    """What a client is given."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.credentials = list[tuple[str, str]]()

    def set_sasl_credentials(self, user: str, password: str) -> None:
        self.credentials.append((user, password))

    def token(self) -> Any:
        return self.settings["oauth_cb"](None)


def kafka(file: Path, mechanism: str = "OAUTHBEARER", **more: Any) -> KafkaSettings:
    program = "import sys; t = open(sys.argv[1]).read(); print(t); sys.exit(not t)"
    return KafkaSettings(
        bootstrap_servers="127.0.0.1:1",
        security_protocol="sasl_ssl",
        sasl_mechanism=mechanism,
        username="lockstep",
        password_command=(sys.executable, "-S", "-c", program, str(file)),
        **more,
    )


def _lasting(secret: str) -> str:
    """What a command prints of a secret that it knows the end of."""
    return json.dumps({"token": secret, "expires_at": int(time.time()) + 1000})


def made(settings: KafkaSettings, **more: Any) -> Client:
    return new_client(Client, {**settings.client(), **more})


def test_a_token_says_when_it_ends(tmp_path: Path) -> None:
    file, ends = tmp_path / "token", int(time.time()) + 1000
    file.write_text(json.dumps({"token": "t", "expires_at": ends}))
    assert made(kafka(file)).token() == ("t", ends, "lockstep", {})
    claims = base64.urlsafe_b64encode(json.dumps({"sub": "someone", "exp": ends}).encode()).decode().rstrip("=")
    file.write_text(f"e30.{claims}.")
    assert made(kafka(file)).token()[1] == ends


def test_a_token_that_says_nothing_has_five_minutes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for token in ("t", "a.b.c", f"a.{base64.urlsafe_b64encode(b'[1]').decode()}.c"):
        file.write_text(token)
        assert 290 < made(kafka(file)).token()[1] - time.time() <= 300


def test_a_command_that_fails_is_told_before_there_is_a_client(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("")
    for mechanism in ("OAUTHBEARER", "PLAIN"):
        with pytest.raises(Unavailable, match=r"kafka\.password_command failed with exit code 1"):
            made(kafka(tmp_path / "token", mechanism))
    with pytest.raises(ConfigurationError, match=r"kafka\.password_command can't be run"):
        made(kafka(tmp_path).model_copy(update={"password_command": ("/nowhere",)}))


def test_why_there_is_no_new_token_is_told_to_whoever_hears_the_clients_errors(tmp_path: Path) -> None:
    heard = list[KafkaError]()
    (tmp_path / "token").write_text("t")
    client = made(kafka(tmp_path / "token"), error_cb=heard.append)
    (tmp_path / "token").write_text("")
    with pytest.raises(Unavailable):
        client.token()
    client.settings["error_cb"](KafkaError(KafkaError._AUTHENTICATION, "OAuth callback raised exception"))
    assert heard[0].code() == KafkaError._AUTHENTICATION
    assert heard[0].str().endswith("raised exception: the command of kafka.password_command failed with exit code 1")


def test_a_refused_password_is_asked_for_again_by_the_client_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printed_login, "_AGAIN_S", 0.0)
    heard = list[KafkaError]()
    (tmp_path / "word").write_text(_lasting("first"))
    client = made(kafka(tmp_path / "word", "SCRAM-SHA-512"), error_cb=heard.append)
    assert (client.settings["sasl.username"], client.settings["sasl.password"]) == ("lockstep", "first")
    (tmp_path / "word").write_text(_lasting("second"))
    client.settings["error_cb"](KafkaError(KafkaError._TRANSPORT, "gone"))
    assert client.credentials == []
    client.settings["error_cb"](_REFUSED)
    assert client.credentials == [("lockstep", "second")]
    assert [error.code() for error in heard] == [KafkaError._TRANSPORT, KafkaError._AUTHENTICATION]


def test_a_broker_that_refuses_each_attempt_doesnt_make_the_command_run_each_time(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("first")
    client = made(kafka(tmp_path / "word", "PLAIN"))
    for _ in range(10):
        client.settings["error_cb"](_REFUSED)
    assert client.credentials == []


def test_the_next_client_has_another_token_than_the_refused_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However soon clients are given up, one after the other."""
    settings = kafka(tmp_path / "token")
    (tmp_path / "token").write_text(_lasting("first"))
    refused = made(settings)
    (tmp_path / "token").write_text(_lasting("second"))
    refused.settings["error_cb"](_REFUSED)
    assert made(settings).token()[0] == "first", "it may be taken in a moment"
    monkeypatch.setattr(printed_login, "_AGAIN_S", 0.0)
    refused.settings["error_cb"](_REFUSED)
    assert made(settings).token()[0] == "second"


def test_the_clients_of_the_library_can_be_made_with_it(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("first")
    assert isinstance(new_client(Producer, kafka(tmp_path / "word", "PLAIN").client()), Producer)


def test_a_task_on_another_machine_gets_the_command_and_not_what_it_printed(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("geheim")
    client = kafka(tmp_path / "word").client()
    assert "geheim" not in json.dumps(client)
    assert any(str(tmp_path) in str(value) and is_secret_name(name) for name, value in client.items())
