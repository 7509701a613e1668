"""The webhook that alerts are posted to.

No error holds a header or the address, which may be a secret itself.
"""

import orjson

from cdc.webhook import Webhook, WebhookSettings
from extensions.alerts.due_messages import Message
from extensions.alerts.settings import WEBHOOK_URL_VARIABLE


def alert_webhook(settings: WebhookSettings) -> Webhook:
    """Where alerts are posted."""
    return Webhook(settings, setting="alerts", variable=WEBHOOK_URL_VARIABLE)


def post_alert(settings: WebhookSettings, message: Message) -> None:
    """POST a message as JSON, over a connection of its own: they are rare. Returns once it is delivered.

    Raises Unavailable when it isn't, and ConfigurationError when a setting is wrong.
    """
    with alert_webhook(settings) as webhook:
        webhook.post(orjson.dumps(message.to_json()))
