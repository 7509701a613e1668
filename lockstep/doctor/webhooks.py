"""Whether a webhook can be posted to, and whether others can read what is posted."""

from cdc.model.errors import LockstepError
from cdc.model.finding import Finding, error, ok
from cdc.webhook import Webhook
from lockstep.doctor.encryption import plain_findings


def webhook_findings(subject: str, webhook: Webhook, *, why: str) -> list[Finding]:
    """What a webhook lacks to be posted to. Sends nothing: a receiver might take it for a real message."""
    found = []
    for ask in (webhook.address, webhook.headers):
        try:
            ask()
        except LockstepError as lacking:
            found.append(error(subject, lacking.message, why, lacking.hint or ""))
    return found or [ok(subject, "its webhook has an address and its headers; nothing was sent to it")]


def webhook_encryption(subject: str, webhook: Webhook, *, why: str) -> list[Finding]:
    """A warning if the webhook is on another machine and has no TLS; ``why`` says what others could read."""
    try:
        address = webhook.address().get_secret_value()
    except LockstepError:
        return []  # its own check reports that
    plain = [address] if address.lower().startswith("http:") else []
    return plain_findings(subject, plain, better="let the webhook's address begin with https", why=why)
