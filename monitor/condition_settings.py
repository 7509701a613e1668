"""When something counts as wrong, with thresholds that wake nobody for nothing."""

from typing import Annotated

from pydantic import Field, StrictBool

from cdc.settings import Settings


class ConditionSettings(Settings):
    """The page, metrics and alerts use them."""

    lag_s: Annotated[float, Field(gt=0)] = Field(
        default=300.0, description="seconds that readers of a sink may be behind"
    )
    standby: StrictBool = Field(default=False, description="whether a `lockstep capture --standby` is meant to wait")
