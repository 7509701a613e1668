"""Settings of alerts. Whoever sets nothing has them in the log, with thresholds that don't wake anybody for nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, SecretStr, StrictBool, field_validator, model_validator

from cdc.model.table import TableName
from cdc.secret import read_secret
from cdc.settings import Settings
from cdc.webhook import WebhookSettings
from sinks.warehouse.names import qualified
from sinks.warehouse.settings import WarehouseSettings

MAIL_PASSWORD_VARIABLE: Final = "LOCKSTEP_ALERTS_MAIL_PASSWORD"  # noqa: S105  the name of a variable
WEBHOOK_URL_VARIABLE: Final = "LOCKSTEP_ALERTS_WEBHOOK_URL"


class MailSettings(Settings):
    """A mail server, and who gets mail."""

    host: str = Field(min_length=1, description="the SMTP server")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(default=587, description="its port")
    tls: Literal["starttls", "tls", "none"] = Field(
        default="starttls", description="encryption: after STARTTLS, from the beginning, or none"
    )
    ca_file: Path | None = Field(default=None, description="authorities to trust instead of the system's")
    user: str | None = Field(default=None, description="whom to log in as; without it nobody logs in")
    password_file: Path | None = Field(
        default=None, description=f"file that holds the password; else ${MAIL_PASSWORD_VARIABLE}"
    )
    sender: str = Field(min_length=3, description="the address that mail comes from")
    to: tuple[str, ...] = Field(min_length=1, description="the addresses that get it")

    @field_validator("sender", "to")
    @classmethod
    def _one_line(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if any("\n" in each or "\r" in each for each in ([value] if isinstance(value, str) else value)):
            raise ValueError("an address is one line")
        return value

    @model_validator(mode="after")
    def _encrypted_login(self) -> Self:
        if self.user is not None and self.tls == "none":
            raise ValueError("mail.user needs mail.tls: the password would be sent in the clear")
        return self

    def password(self) -> SecretStr | None:
        """The password, if there is one. Raises ConfigurationError when its file can't be read."""
        return read_secret(variable=MAIL_PASSWORD_VARIABLE, file=self.password_file)


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
    """When somebody is told, and how. The log has every alert, whatever else is set."""

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
    view_building_s: Annotated[float, Field(gt=0)] = Field(
        default=3600.0, description="seconds that the state of a view may take to be built"
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
        description="what was told, what is still to be delivered, and silences, in <pipeline> below it; without it"
        " alerts come again",
    )
    webhook: WebhookSettings | None = Field(default=None, description="an HTTP endpoint")
    command: tuple[str, ...] = Field(
        default=(), description="a program and its arguments, without a shell; it gets JSON on standard input"
    )
    mail: MailSettings | None = Field(default=None, description="a mail server")
    rules: dict[str, RuleSettings] = Field(default={}, description="rules over rows of views and stream queries")
