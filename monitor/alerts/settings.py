"""Settings of alerts. Whoever sets nothing has them in the log, with thresholds that don't wake anybody for nothing."""

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, SecretStr, StrictBool, field_validator, model_validator

from cdc.secret import read_secret
from cdc.settings import Settings
from cdc.webhook import WebhookSettings

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
