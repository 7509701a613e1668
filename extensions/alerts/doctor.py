"""Whether alerts can be posted."""

from typing import Final

from cdc.model.finding import Finding
from extensions.alerts.channel import alert_webhook
from extensions.alerts.settings import AlertSettings
from lockstep.config import Config
from lockstep.doctor.webhooks import webhook_encryption, webhook_findings
from lockstep.extension import Reached

_READ: Final = "anybody on the network path can read the alerts and the headers' values, and hold alerts back"


def check_webhook(_: Reached, config: Config) -> list[Finding]:
    """Checks the settings. Nothing is sent."""
    settings = config.section(AlertSettings).webhook
    if settings is None:
        return []
    webhook = alert_webhook(settings)
    lost = "alerts aren't posted"
    return webhook_findings("alerts", webhook, why=lost) + webhook_encryption("alerts", webhook, why=_READ)
