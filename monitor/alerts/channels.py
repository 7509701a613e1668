"""Ways to tell somebody: a webhook, a command, mail. Each sends one message, or raises why it didn't.

No error holds a header, a password or the address of a webhook, which may be a secret itself.
"""

import contextlib
import os
import signal
import smtplib
import ssl
import subprocess
from collections.abc import Callable, Iterator
from email.message import EmailMessage
from email.utils import getaddresses
from pathlib import Path
from typing import Final, Protocol

import orjson

from cdc.model.errors import ConfigurationError, Unavailable
from cdc.model.timeouts import ALERT_COMMAND_S
from cdc.webhook import Webhook, WebhookSettings
from monitor.alerts.book import Kind, Message
from monitor.alerts.settings import WEBHOOK_URL_VARIABLE, AlertSettings, MailSettings

_TIMEOUT_S: Final = 10.0


class Channel(Protocol):
    """A way to tell somebody."""

    def send(self, message: Message) -> None:
        """Return once it is delivered. Raises Unavailable when it isn't, ConfigurationError when a setting is wrong."""


def channels_of(settings: AlertSettings) -> dict[str, Channel]:
    """The channels that are set, by their names. The log isn't one of them: it takes every message at once.

    Each address that gets mail is one: one that the server refuses keeps no other from getting it, and isn't forgotten.
    """
    channels: dict[str, Channel] = {}
    if settings.webhook is not None:
        channels["webhook"] = WebhookChannel(settings.webhook)
    if settings.command:
        channels["command"] = Command(settings.command)
    if settings.mail is not None:
        for _, address in getaddresses(settings.mail.to):
            channels[f"mail:{address}"] = Mail(settings.mail, address)
    return channels


def alert_webhook(settings: WebhookSettings) -> Webhook:
    """Where alerts are posted."""
    return Webhook(settings, setting="alerts.webhook", variable=WEBHOOK_URL_VARIABLE)


class WebhookChannel:
    """POSTs a message as JSON, each over a connection of its own: they are rare."""

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings

    def send(self, message: Message) -> None:
        with alert_webhook(self._settings) as webhook:
            webhook.post(orjson.dumps(message.to_json()))


class Command:
    """Runs a program, without a shell: JSON on its standard input, and the same facts as ``LOCKSTEP_ALERT_*``.

    Our other variables, which hold passwords, aren't handed on. What it prints isn't kept.
    """

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command

    def send(self, message: Message) -> None:
        facts = {
            f"LOCKSTEP_ALERT_{name.upper()}": "" if value is None else str(value)
            for name, value in message.to_json().items()
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=inherited | facts,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"{self._command[0]} can't be started: {error.strerror}") from error
        with process:
            try:
                process.communicate(orjson.dumps(message.to_json()), timeout=ALERT_COMMAND_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise Unavailable(f"{self._command[0]} didn't end within {ALERT_COMMAND_S:.0f} s") from None
        if process.returncode:
            raise Unavailable(f"{self._command[0]} ended with exit code {process.returncode}")


class Mail:
    """Hands a message for one address to an SMTP server."""

    def __init__(self, settings: MailSettings, address: str) -> None:
        self._settings = settings
        self._address = address

    def send(self, message: Message) -> None:
        settings = self._settings
        password = settings.password()
        if settings.user is not None and password is None:
            raise ConfigurationError(
                "alerts.mail.user has no password",
                hint="set alerts.mail.password_file or $LOCKSTEP_ALERTS_MAIL_PASSWORD",
            )
        where = f"the mail server {settings.host}:{settings.port}"
        try:
            with self._server() as server:
                if settings.user is not None and password is not None:
                    server.login(settings.user, password.get_secret_value())
                server.send_message(_mail(message, settings), to_addrs=[self._address])
        except smtplib.SMTPResponseException as error:
            raise Unavailable(f"{where} refused it with code {error.smtp_code}") from None
        except smtplib.SMTPRecipientsRefused as error:
            code, _ = error.recipients[self._address]
            raise Unavailable(f"{where} takes no mail for {self._address}, with code {code}") from None
        except (OSError, smtplib.SMTPException) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise Unavailable(f"{where} can't be reached: {reason}") from None

    @contextlib.contextmanager
    def _server(self) -> Iterator[smtplib.SMTP]:
        settings = self._settings
        opening: Callable[..., smtplib.SMTP] = smtplib.SMTP
        if settings.tls == "tls":
            with smtplib.SMTP_SSL(
                settings.host, settings.port, timeout=_TIMEOUT_S, context=_tls(settings.ca_file)
            ) as server:
                yield server
            return
        with opening(settings.host, settings.port, timeout=_TIMEOUT_S) as server:
            if settings.tls == "starttls":
                server.starttls(context=_tls(settings.ca_file))
            yield server


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))


_WORDS: Final = {Kind.OPENED: "open", Kind.WORSE: "now critical", Kind.CLEARED: "over", Kind.TEST: "test"}


def _mail(message: Message, settings: MailSettings) -> EmailMessage:
    condition = message.condition
    mail = EmailMessage()
    mail["From"] = settings.sender
    mail["To"] = ", ".join(settings.to)
    subject = f"[lockstep {message.pipeline}] {_WORDS[message.kind]}: {condition.name} {condition.subject}"
    mail["Subject"] = " ".join(subject.split())
    mail["X-Lockstep-Alert"] = " ".join(message.id.split())
    state = "This is over." if message.kind is Kind.CLEARED else f"What to do: {condition.step}"
    mail.set_content(f"{condition.sentence}\n\n{state}\n")
    return mail
