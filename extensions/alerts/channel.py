"""The webhook that alerts are posted to. No error contains a header or the address, which may be secret."""

import orjson

from cdc.webhook import Webhook, WebhookSettings
from extensions.alerts.due_messages import Message
from extensions.alerts.settings import WEBHOOK_URL_VARIABLE


def alert_webhook(settings: WebhookSettings) -> Webhook:
    return Webhook(settings, setting="alerts", variable=WEBHOOK_URL_VARIABLE)


def post_alert(settings: WebhookSettings, message: Message) -> None:
    """POST a message as JSON, over a connection of its own, since messages are rare. Returns once it is delivered.
    Raises Unavailable when it isn't, and ConfigurationError when a setting is wrong.
    """
    with alert_webhook(settings) as webhook:
        webhook.post(orjson.dumps(message.to_json()))
