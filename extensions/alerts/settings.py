"""The section ``[alerts]``."""

from typing import Final

from pydantic import Field

from cdc.settings import Settings
from cdc.webhook import WebhookSettings

WEBHOOK_URL_VARIABLE: Final = "LOCKSTEP_ALERTS_WEBHOOK_URL"


class AlertSettings(Settings):
    """Where alerts go. The log has every one, with a webhook or without."""

    webhook: WebhookSettings | None = Field(default=None, description="an HTTP endpoint")
