"""The webhook that alerts are posted to.

No error holds a header or the address, which may be a secret itself.
"""

from typing import Protocol

import orjson

from cdc.webhook import Webhook, WebhookSettings
from monitor.alerts.book import Message
from monitor.alerts.settings import WEBHOOK_URL_VARIABLE


class Channel(Protocol):
    """A way to tell somebody."""

    def send(self, message: Message) -> None:
        """Return once it is delivered. Raises Unavailable when it isn't, ConfigurationError when a setting is wrong."""


def alert_webhook(settings: WebhookSettings) -> Webhook:
    """Where alerts are posted."""
    return Webhook(settings, setting="alerts.webhook", variable=WEBHOOK_URL_VARIABLE)


class WebhookChannel:
    """POSTs a message as JSON, each over a connection of its own: they are rare."""

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings

    def send(self, message: Message) -> None:
        with alert_webhook(self._settings) as webhook:
            webhook.post(orjson.dumps(message.to_json()))
