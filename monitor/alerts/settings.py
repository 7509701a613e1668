"""Settings of alerts. Whoever sets nothing has them in the log, with thresholds that don't wake anybody for nothing."""

from typing import Annotated, Final

from pydantic import Field, StrictBool

from cdc.settings import Settings
from cdc.webhook import WebhookSettings

WEBHOOK_URL_VARIABLE: Final = "LOCKSTEP_ALERTS_WEBHOOK_URL"


class AlertSettings(Settings):
    """When somebody is told, and where. The log has every alert, with a webhook or without."""

    lag_s: Annotated[float, Field(gt=0)] = Field(
        default=300.0, description="seconds that readers of a sink may be behind"
    )
    standby: StrictBool = Field(default=False, description="whether a `lockstep capture --standby` is meant to wait")
    webhook: WebhookSettings | None = Field(default=None, description="an HTTP endpoint")
