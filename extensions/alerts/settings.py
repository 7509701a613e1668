"""The section ``[alerts]``."""

import os
from typing import Final

from cdc.webhook import WebhookSettings

WEBHOOK_URL_VARIABLE: Final = "LOCKSTEP_ALERTS_WEBHOOK_URL"


class AlertSettings(WebhookSettings):
    """The HTTP endpoint that gets alerts. The log has every alert, with or without an endpoint."""

    @property
    def webhook(self) -> WebhookSettings | None:
        """The endpoint; None if neither the settings nor the environment have one."""
        return self if self != AlertSettings() or os.environ.get(WEBHOOK_URL_VARIABLE) else None
