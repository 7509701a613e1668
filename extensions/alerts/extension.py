"""Delivery of alerts, as Lockstep gets it."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from extensions.alerts import cli
from lockstep.extension import Extension, Group, Reached

if TYPE_CHECKING:
    from cdc.model.finding import Finding
    from cdc.settings import Settings
    from lockstep.config import Config
    from monitor.condition_watch import Reporter

_EXAMPLE: Final = """\
# Who is told of what is wrong: docs/alerts.md.
# [alerts.webhook]
# url = "https://hooks.example.com/x"      # gets JSON by POST
# url_file = "/run/secrets/hook"           # ... an address that is a secret; or $LOCKSTEP_ALERTS_WEBHOOK_URL
# headers = { Authorization = "HOOK_TOKEN" }    # header = the environment variable that holds its value
# ca_file = "/etc/ssl/ca.pem"              # else the system's authorities
"""


def _sections() -> "Mapping[str, type[Settings]]":
    from extensions.alerts.settings import AlertSettings

    return {"alerts": AlertSettings}


def _doctor(_: Reached, config: "Config") -> "Iterable[Finding]":
    from extensions.alerts.channel import alert_webhook
    from extensions.alerts.settings import AlertSettings
    from lockstep.doctor.webhooks import webhook_encryption, webhook_findings

    settings = config.section(AlertSettings).webhook
    if settings is None:
        return []
    webhook = alert_webhook(settings)
    read = "whoever is on the way reads what alerts say and the headers' values, and can keep alerts back"
    return [
        *webhook_findings("alerts", webhook, why="alerts aren't posted"),
        *webhook_encryption("alerts", webhook, why=read),
    ]


def _reporter(config: "Config") -> "Reporter":
    from extensions.alerts.reporter import AlertReporter
    from extensions.alerts.settings import AlertSettings

    return AlertReporter(config.pipeline.name, config.section(AlertSettings), config.watch_directory)


ALERTS: Final = Extension(
    name="alerts",
    groups=[
        Group(
            "alerts",
            "What is wrong, and who is told.",
            {"list": cli.list_open, "test": cli.send_test, "watch": cli.watch},
        )
    ],
    sections=_sections,
    example=_EXAMPLE,
    without_page=("alerts", "watch"),
    doctor=_doctor,
    reporter=_reporter,
)
