"""cdc.webhook, against a real server."""

import contextlib
import itertools
import json
import socket
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.model.errors import ConfigurationError, Unavailable
from cdc.webhook import DocumentRefused, PerhapsRefused, Webhook, WebhookSettings
from tests.receivers import Receiver

VARIABLE = "LOCKSTEP_TEST_WEBHOOK_URL"


def webhook(**settings: object) -> Webhook:
    return Webhook(WebhookSettings.model_validate(settings), setting="alerts.webhook", variable=VARIABLE)


def test_documents_share_a_connection_and_one_that_was_closed_meanwhile_loses_none(receiver: Receiver) -> None:
    with webhook(url=f"http://127.0.0.1:{receiver.port}/hook") as sender:
        for number in range(3):
            sender.post(json.dumps({"number": number}).encode())
        assert receiver.connections == 1
        receiver.end_connections()
        sender.post(b'{"number": 3}')
    assert [document["number"] for document in receiver.documents] == [0, 1, 2, 3]
    assert receiver.connections == 2


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://[::1]/hook", ("::1", 80)),
        ("https://[fd00::7]/hook", ("fd00::7", 443)),
        ("http://[fd00::7]:8080/hook", ("fd00::7", 8080)),
        ("https://hooks.example/hook", ("hooks.example", 443)),
    ],
)
def test_an_address_may_be_a_number_of_either_protocol(
    monkeypatch: pytest.MonkeyPatch, url: str, address: tuple[str, int]
) -> None:
    asked = []

    def refuse(where: tuple[str, int], *_: object) -> None:
        asked.append(where)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    with webhook(url=url) as sender, pytest.raises(Unavailable):
        sender.post(b"{}")
    assert asked == [address]


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (b"Content-Type: text/event-stream\r\n\r\n", b": ping\n"),
        (b"Content-Length: 1000000000\r\n\r\n", b"x"),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"\r\n", b"x" * 64 * 1024),
        (b"Content-Length: 1000000000\r\n\r\n", b"x" * 64 * 1024),
    ],
)
def test_an_answer_without_an_end_keeps_nobody(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, first: bytes, again: bytes
) -> None:
    """The status is the receipt. What is long is cut, whatever time is left; what is slow has one time-out for all."""
    if len(again) < 1024:
        # Each look at the clock takes a second: only how often it is read decides, and not how busy the machine is.
        monkeypatch.setattr("cdc.webhook.time", SimpleNamespace(monotonic=itertools.count().__next__))
    else:
        monkeypatch.setattr("cdc.webhook.TIMEOUT_S", 1e6)
    receiver.status, receiver.endless = 200, (first, again)
    with webhook(url=f"http://127.0.0.1:{receiver.port}/hook") as sender:
        sender.post(b'{"number": 0}')
        sender.post(b'{"number": 1}')
        receiver.endless = None
        sender.post(b'{"number": 2}')
    assert [document["number"] for document in receiver.documents] == [0, 1, 2]
    assert receiver.connections == 3


def test_headers_without_an_end_are_no_receipt(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.webhook.TIMEOUT_S", 0.2)
    receiver.endless = (b"A", b"a")
    with (
        webhook(url=f"http://127.0.0.1:{receiver.port}/hook") as sender,
        pytest.raises(Unavailable, match="can't be reached: TimeoutError"),
    ):
        sender.post(b"{}")


def test_a_slow_answer_takes_no_time_from_the_next_one(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    connect = HTTPConnection.connect
    monkeypatch.setattr(HTTPConnection, "connect", lambda self: opened.append(self) or connect(self))
    with webhook(url=f"http://127.0.0.1:{receiver.port}/hook") as sender:
        sender.post(b"{}")
        opened[0].sock.settimeout(1e-9)  # as what was left of an earlier answer's time
        sender.post(b"{}")
    assert (len(receiver.documents), receiver.connections) == (2, 1)


@pytest.mark.parametrize("status", [301, 401, 403, 404, 407, 408, 410, 425, 429, 500, 503])
def test_any_other_status_than_a_receipt_says_that_it_is_not_received(receiver: Receiver, status: int) -> None:
    receiver.status = status
    with (
        webhook(url=f"http://127.0.0.1:{receiver.port}/hook") as sender,
        pytest.raises(Unavailable, match=f"the webhook at 127.0.0.1 answered with status {status}"),
    ):
        sender.post(b"{}")


@pytest.mark.parametrize("status", [401, 402, 403, 404, 405, 407, 408, 410, 421, 423, 425, 426, 429, 451, 503])
def test_what_any_document_may_get_is_told_from_what_only_the_next_document_can_tell(
    receiver: Receiver, status: int
) -> None:
    receiver.status = status
    with webhook(url=f"http://127.0.0.1:{receiver.port}/hook") as sender, pytest.raises(Unavailable) as error:
        sender.post(b"{}")
    assert isinstance(error.value, PerhapsRefused) is (status not in (401, 407, 408, 425, 429, 503))


@pytest.mark.parametrize(("status", "answer"), [(400, "400 Bad Request"), (413, "413 "), (422, "422 "), (499, "499")])
def test_a_document_may_be_refused_for_what_it_is_and_the_next_one_taken(
    receiver: Receiver, status: int, answer: str
) -> None:
    receiver.refuses = lambda document: status if document else None
    with webhook(url=f"http://127.0.0.1:{receiver.port}/hook") as sender:
        with pytest.raises(DocumentRefused) as refused:
            sender.post(b'{"secret": 1}')
        sender.post(b"{}")
    assert refused.value.answer.startswith(answer)
    assert "secret" not in refused.value.message
    assert not isinstance(refused.value, Unavailable), "another try doesn't help"
    assert receiver.connections == 1


def test_an_address_from_a_file_that_changes_is_gone_to_at_once(receiver: Receiver, tmp_path: Path) -> None:
    file = tmp_path / "hook"
    file.write_text(f"http://127.0.0.1:{receiver.port}/a")
    with contextlib.closing(Receiver()) as other, webhook(url_file=str(file)) as sender:
        sender.post(b"{}")
        file.write_text(f"http://127.0.0.1:{other.port}/b")
        sender.post(b"{}")
        assert (len(receiver.documents), len(other.documents)) == (1, 1)


def test_what_lacks_is_named_with_what_to_set() -> None:
    with pytest.raises(ConfigurationError, match=r"alerts\.webhook has no address") as error:
        webhook().post(b"{}")
    assert VARIABLE in (error.value.hint or "")
    with pytest.raises(ConfigurationError, match=r"alerts\.webhook\.headers names NO_SUCH") as error:
        webhook(url="http://127.0.0.1:1/", headers={"Authorization": "NO_SUCH"}).post(b"{}")
    assert "$NO_SUCH" in (error.value.hint or "")


def test_an_address_may_come_from_the_environment(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{receiver.port}/secret")
    with webhook() as sender:
        sender.post(b"{}")
    assert len(receiver.documents) == 1


@pytest.mark.parametrize(
    "address",
    [
        "htps://hooks.example.com/secret",
        "hooks.example.com/secret",
        "ftp://hooks.example.com/secret",
        "https:///secret",
        "https://:443/secret",
        "https://[::1/secret",
        "https://hooks.example.com:port/secret",
        "https://hooks.example.com:70000/secret",
        "https://hooks.example.com/a secret",
        "https://hooks\u200b.example.com/secret\n",
    ],
)
def test_an_address_that_is_none_is_refused_and_not_shown(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hook"
    file.write_text(address)
    monkeypatch.setenv(VARIABLE, address)
    for sender, where in ((webhook(url_file=str(file)), str(file)), (webhook(), f"${VARIABLE}")):
        with pytest.raises(ConfigurationError, match=r"the address of alerts\.webhook") as error:
            sender.address()
        with pytest.raises(ConfigurationError):
            sender.post(b"{}")
        told = f"{error.value.message} {error.value.hint}"
        assert where in told
        assert "secret" not in told.replace(str(file), "")
        assert "example" not in told


def test_a_mistyped_url_is_an_error_of_the_configuration_too() -> None:
    with pytest.raises(ConfigurationError, match=r"the address of alerts\.webhook") as error:
        webhook(url="https://[::1/x").post(b"{}")
    assert "url" in (error.value.hint or "")
