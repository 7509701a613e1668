"""The extension ``alerts``."""

from typing import Final

from cdc.model.later import later
from extensions.alerts import cli
from lockstep.extension import Extension, Group

_EXAMPLE: Final = """\
# Alerts about what is wrong: docs/alerts.md.
# [alerts]
# url = "https://hooks.example.com/x"      # gets JSON by POST
# url_file = "/run/secrets/hook"           # ... an address that is a secret; or $LOCKSTEP_ALERTS_WEBHOOK_URL
# headers = { Authorization = "HOOK_TOKEN" }    # header = the environment variable that holds its value
"""


ALERTS: Final = Extension(
    name="alerts",
    groups=[
        Group(
            "alerts",
            "What is wrong, and the alerts about it.",
            {"list": cli.list_open, "test": cli.send_test, "watch": cli.watch},
        )
    ],
    sections={"alerts": "extensions.alerts.settings:AlertSettings"},
    example=_EXAMPLE,
    without_page=("alerts", "watch"),
    doctor=later("extensions.alerts.doctor:check_webhook"),
    reporter=later("extensions.alerts.reporter:reporter_of"),
)
