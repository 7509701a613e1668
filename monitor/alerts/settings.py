"""Settings of alerts. Whoever sets nothing has them in the log, with thresholds that don't wake anybody for nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, StrictBool, field_validator

from cdc.model.table import TableName
from cdc.settings import Settings
from cdc.webhook import WebhookSettings
from sinks.warehouse.names import qualified
from sinks.warehouse.settings import WarehouseSettings

WEBHOOK_URL_VARIABLE: Final = "LOCKSTEP_ALERTS_WEBHOOK_URL"


class RuleSettings(Settings):
    """When somebody is told of rows of a result."""

    of: str = Field(description="a view or a stream query whose result is in a warehouse in PostgreSQL")
    where: Annotated[str, Field(min_length=1, description="a condition on its columns, in PostgreSQL's SQL")]
    more_than: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=0, description="how many rows may fulfil it without anybody being told"
    )
    severity: Literal["warning", "critical"] = Field(default="warning", description="how bad that is")
    says: str = Field(default="", description="what is told, in a sentence")
    step: str = Field(default="", description="what whoever is told should do")

    @field_validator("where")
    @classmethod
    def _is_one_condition(cls, where: str) -> str:
        if ";" in where:
            raise ValueError("is one condition, as after `where`, without a semicolon")
        return where


@dataclass(frozen=True, slots=True)
class RuleTarget:
    """Where the rows of a rule are: the store of view or stream query ``name``, and the result's table there."""

    name: str
    settings: WarehouseSettings
    table: TableName

    @property
    def relation(self) -> str:
        """What readers read, as SQL names it."""
        schema = self.settings.schema_name or self.name
        return qualified(schema, self.settings.warehouse_names.of(self.table))


class AlertSettings(Settings):
    """When somebody is told, and where. The log has every alert, with a webhook or without."""

    lag_s: Annotated[float, Field(gt=0)] = Field(
        default=300.0, description="seconds that readers of a sink may be behind"
    )
    slot_minutes: Annotated[float, Field(gt=0)] = Field(
        default=60.0, description="minutes until the slot is lost, at the rate at which WAL is written now"
    )
    retained_wal_bytes: Annotated[int, Field(ge=1024 * 1024)] = Field(
        default=10 * 1024**3, description="WAL that the slot may hold back on the source's disk"
    )
    certificate_days: Annotated[float, Field(gt=0)] = Field(
        default=21.0, description="days before a certificate expires"
    )
    disk_free_percent: Annotated[float, Field(ge=0, le=100)] = Field(
        default=5.0, description="free share of a disk that Lockstep writes to on this machine"
    )
    view_state_bytes: Annotated[int, Field(ge=1024 * 1024)] = Field(
        default=20 * 1024**3, description="disk that the state of a view may take"
    )
    standby: StrictBool = Field(default=False, description="whether a `lockstep capture --standby` is meant to wait")
    open_after_s: Annotated[float, Field(ge=0)] = Field(
        default=30.0, description="how long a condition that may pass by itself has to hold before it is told"
    )
    clear_after_s: Annotated[float, Field(ge=0)] = Field(
        default=60.0, description="how long it has to be gone before that is told"
    )
    directory: Path = Field(
        default=Path(".lockstep/alerts"),
        description="what was told and is still to be delivered, in <pipeline> below it; without it alerts come again",
    )
    webhook: WebhookSettings | None = Field(default=None, description="an HTTP endpoint")
    rules: dict[str, RuleSettings] = Field(default={}, description="rules over rows of views and stream queries")
