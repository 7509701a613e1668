"""``lockstep bundle``: an archive for people who help with a pipeline. It holds no row's values and no secrets.

A part that fails becomes an error in its file: an archive is wanted most when something is broken.
"""

import contextlib
import io
import json
import os
import platform
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, quote_plus

import psycopg
from pydantic import BaseModel, SecretStr

from cdc.kafka.topic_admin import TopicAdmin, control_topic_plans
from cdc.model.errors import ConfigurationError, LockstepError
from cdc.postgres.connection import connection_error
from cdc.secret import address_holds_secret, is_secret_name, read_secret_file
from cdc.webhook import WEBHOOK_VARIABLE_END, WebhookSettings
from lockstep.config import Config, captured, followed
from lockstep.doctor.display import findings_json
from lockstep.doctor.examine import examine
from lockstep.state import read_pipeline_state
from lockstep.views.status import views_now
from monitor.collector import LagCollector

_HIDDEN: Final = "***"

_SECRET_FILES: Final = ("password_file", "mask_salt_file", "url_file")
"""Settings that name a file with a secret in it. TLS keys are never sent to a server, so no server can quote them."""

_README: Final = """\
Written by `lockstep bundle`.

versions.json        Lockstep, Python, the system, and the packages that Lockstep needs
configuration.json   lockstep.toml with its defaults; secrets are ***
state.json           `lockstep state --json`
lag.json             `lockstep lag --json`
doctor.json          `lockstep doctor --json`
views.json           `lockstep views list --json`
topics.json          partitions and settings of the pipeline's topics

No row's values are in here, and no secrets. Names are: of tables, columns, hosts, users and files.
Logs aren't in here: they are where the processes write them.
"""


def write_bundle(config: Config, file: Path, *, say: Callable[[str], None]) -> None:
    """Write the archive, readable by its owner only. If that fails or is interrupted, nothing of it is left. Raises
    OSError if the file can't be written, ConfigurationError if it exists."""
    secrets = _longest_first(_secrets(config))
    parts: Mapping[str, Callable[[], Any]] = {
        "versions": _versions,
        "configuration": lambda: _shown({of: each for of, each in (*config, *config.added) if of != "added"}),
        "state": lambda: read_pipeline_state(config).to_json(),
        "lag": lambda: _lag(config),
        "doctor": lambda: findings_json(examine(config)),
        "views": lambda: [status.to_json() for status in views_now(config)],
        "topics": lambda: _topics(config),
    }
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigurationError(f"{file} exists already", hint="name another file, or remove it") from None
    try:
        _write(descriptor, parts, secrets, say)
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def _write(
    descriptor: int, parts: Mapping[str, Callable[[], Any]], secrets: Sequence[str], say: Callable[[str], None]
) -> None:
    with (
        os.fdopen(descriptor, "wb") as output,
        tarfile.open(fileobj=output, mode="w:gz") as archive,
        # Side by side: several may have to wait for a server that is away.
        ThreadPoolExecutor(max_workers=len(parts), thread_name_prefix="bundle") as threads,
    ):
        _add(archive, "README.txt", _README)
        answers = {name: threads.submit(_answer, part) for name, part in parts.items()}
        for name, answer in answers.items():
            say(f"{name} ...")
            # If a server quotes what it was sent, the secrets that were read are hidden.
            document = _without(answer.result(), secrets)
            _add(archive, f"{name}.json", json.dumps(document, indent=2) + "\n")


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    member = tarfile.TarInfo(f"lockstep-bundle/{name}")
    member.size, member.mtime, member.mode = len(content), int(time.time()), 0o600
    archive.addfile(member, io.BytesIO(content))


def _answer(part: Callable[[], Any]) -> Any:
    try:
        return part()
    except LockstepError as error:
        return {"error": error.message}
    except psycopg.Error as error:
        return {"error": connection_error(error).message}


def _versions() -> dict[str, Any]:
    packages: dict[str, str | None] = {}
    for requirement in requires("lockstep") or ():
        name = requirement.split(";")[0].strip()
        name = name[: next((at for at, letter in enumerate(name) if letter in " [<>=!~("), len(name))]
        try:
            packages[name] = distribution(name).version
        except PackageNotFoundError:  # of an extra that isn't installed
            packages[name] = None
    return {
        "lockstep": distribution("lockstep").version,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": packages,
    }


def _lag(config: Config) -> dict[str, Any]:
    with LagCollector(config.as_pipeline(), config.sinks, resolve=followed, others=config.added_stores) as collector:
        return collector.collect().to_json()


def _topics(config: Config) -> dict[str, Any]:
    cluster = TopicAdmin(config.kafka.client())
    control = [plan.name for plan in control_topic_plans(config.pipeline.name, config.kafka.topics)]
    names = [*captured(config).topics().values(), *control]
    counts = cluster.partition_counts(names)
    settings = cluster.configs([name for name in names if name in counts])
    return {name: {"partitions": counts.get(name), "settings": settings.get(name)} for name in names}


def _shown(value: Any, path: tuple[str, ...] = ()) -> Any:
    """A setting as JSON, without what is a secret or may hold one."""
    match value:
        case BaseModel():
            return {name: _shown(inner, (*path, name)) for name, inner in value}
        case Mapping():
            return {str(name): _shown(inner, (*path, str(name))) for name, inner in value.items()}
        case SecretStr():
            # Addresses have the type of a secret, since they may hold one.
            return _shown(value.get_secret_value(), path) if path[-1] == "url" else _HIDDEN
        case None | bool() | int() | float():
            return value
        case str() | os.PathLike():
            text = str(value)
            return _HIDDEN if _may_be_secret(text, path) else text
        case Iterable():
            return [_shown(inner, path) for inner in value]
        case _:
            return _shown(str(value), path)


def _may_be_secret(text: str, path: tuple[str, ...]) -> bool:
    """Whether a text may be or hold a secret. Webhooks' addresses are secrets as a whole."""
    is_webhook = path[-2:] == ("webhook", "url")
    return is_webhook or any(map(is_secret_name, path)) or address_holds_secret(text) or "password=" in text


def _longest_first(secrets: Iterable[str]) -> Sequence[str]:
    """Each secret in the forms in which an address or an error may quote it. Longest first, so that a shorter secret
    doesn't leave the end of a longer one."""
    forms = {
        form
        for secret in secrets
        for form in (secret, quote(secret), quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1])
    }
    return sorted(forms, key=len, reverse=True)


def _secrets(value: Any) -> Iterator[str]:
    """Every secret that the configuration reads from the environment, and from files of its own."""
    match value:
        case BaseModel():
            with contextlib.suppress(LockstepError):  # a file that can't be read
                if callable(password := getattr(value, "password", None)):
                    yield from _secrets(password())
                if isinstance(value, WebhookSettings):
                    variables = [name for name in os.environ if name.endswith(WEBHOOK_VARIABLE_END)]
                    addresses = [value.address(variable) for variable in ("", *variables)]
                    yield from (address.get_secret_value() for address in addresses if address is not None)
                    yield from filter(None, [os.environ.get(variable) for variable in value.headers.values()])
            for name, inner in value:
                if name in _SECRET_FILES and inner is not None:
                    with contextlib.suppress(OSError):  # then it was never read, and its user reports that
                        yield from filter(None, [read_secret_file(inner).strip()])
                yield from _secrets(inner)
        case Mapping():
            for inner in value.values():
                yield from _secrets(inner)
        case SecretStr():
            text = value.get_secret_value()
            if text and not ("://" in text and not address_holds_secret(text)):
                yield text
        case list() | tuple():
            for inner in value:
                yield from _secrets(inner)


def _without(document: Any, secrets: Sequence[str]) -> Any:
    match document:
        case dict():
            return {_without(name, secrets): _without(inner, secrets) for name, inner in document.items()}
        case list():
            return [_without(inner, secrets) for inner in document]
        case str():
            for secret in secrets:
                document = document.replace(secret, _HIDDEN)
            return document
        case _:
            return document
