"""What is said of a webhook before anything is posted."""

from pathlib import Path

import pytest

from cdc.webhook import Webhook, WebhookSettings
from lockstep.doctor.webhooks import webhook_encryption


@pytest.mark.parametrize(
    ("address", "is_told"),
    [
        ("https://hooks.example.com/x", False),
        ("http://127.0.0.1:9/x", False),
        ("http://hooks.example.com/x", True),
        ("HTTP://hooks.example.com/x", True),
        ("htps://hooks.example.com/x", False),  # its own check refuses it
    ],
)
@pytest.mark.parametrize("is_in_file", [False, True])
def test_a_webhook_is_judged_by_its_address_wherever_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, *, is_told: bool, is_in_file: bool
) -> None:
    monkeypatch.setenv("HOOK_URL", address)
    (tmp_path / "hook").write_text(address)
    settings = WebhookSettings(url_file=tmp_path / "hook" if is_in_file else None)
    found = webhook_encryption("rows", Webhook(settings, setting="webhook", variable="HOOK_URL"), why="all is read")
    told = ["rows: the connection isn't encrypted"] if is_told else []
    assert [f"{finding.subject}: {finding.what}" for finding in found] == told
