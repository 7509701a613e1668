"""``lockstep.toml``: the settings of all parts as one frozen value, every error at once."""

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator

from cdc.capture.settings import CaptureSettings
from cdc.kafka.settings import KafkaSettings
from cdc.model.errors import ConfigurationError
from cdc.model.table import TableName
from cdc.pipeline import Pipeline
from cdc.postgres.settings import SourceSettings
from cdc.settings import Settings
from jobs.settings import SparkSettings
from sinks.registry import SinkSettings
from sinks.warehouse.settings import WarehouseSettings

DEFAULT_PATH = Path("lockstep.toml")

_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
"""Lower case and short: the name becomes part of topics, of the slot, of indexes and of key prefixes."""


class PipelineSettings(Settings):
    """The pipeline's name, which is the prefix of its topics."""

    name: str

    @field_validator("name")
    @classmethod
    def _legal(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(
                "must be a lower-case letter followed by up to 40 lower-case letters, digits or underscores"
            )
        return name


class Config(Settings):
    """The whole configuration."""

    pipeline: PipelineSettings
    source: SourceSettings
    kafka: KafkaSettings
    capture: CaptureSettings = CaptureSettings()
    spark: SparkSettings = SparkSettings()
    sinks: Annotated[dict[str, SinkSettings], Field(default_factory=dict)]

    @field_validator("sinks")
    @classmethod
    def _sink_names(cls, sinks: dict[str, SinkSettings]) -> dict[str, SinkSettings]:
        wrong = [name for name in sinks if not _NAME.fullmatch(name)]
        if wrong:
            raise ValueError(f"sink names are lower-case letters, digits and underscores: {', '.join(wrong)}")
        return sinks

    @model_validator(mode="after")
    def _sinks_read_captured_tables(self) -> "Config":
        captured = set(self.source.keyed_names)
        for name, sink in self.sinks.items():
            unknown = [table for table in sink.tables if TableName.parse(table) not in captured]
            if unknown:
                raise ValueError(
                    f"sinks.{name}.tables names tables that aren't captured with a key: {', '.join(unknown)}"
                )
            astray = sorted(sink.named_tables() - captured)
            if astray:
                raise ValueError(
                    f"sinks.{name} names tables that aren't captured with a key: {', '.join(map(str, astray))}"
                )
        return self

    @model_validator(mode="after")
    def _files_are_where_they_are_written(self) -> "Config":
        """A warehouse in a file is locked by the one machine that has it."""
        if not self.spark.is_local:
            files = [name for name, sink in self.sinks.items() if isinstance(sink, WarehouseSettings) and sink.is_file]
            if files:
                raise ValueError(
                    f"sinks.{files[0]}.url names a file, which the machines of {self.spark.master!r} can't write to"
                    " together: set spark.master to local[2], or give the sink a PostgreSQL warehouse"
                )
        return self

    def as_pipeline(self) -> Pipeline:
        """The part that capture needs."""
        return Pipeline(self.pipeline.name, self.source, self.kafka, self.capture)

    @property
    def slot(self) -> str:
        """The replication slot of the pipeline."""
        return self.as_pipeline().slot

    @property
    def publication(self) -> str:
        """The publication of the pipeline."""
        return self.as_pipeline().publication

    def topics(self) -> dict[TableName, str]:
        """Captured table -> its topic."""
        return self.as_pipeline().topics()


def load(path: Path) -> Config:
    """Read and check a configuration file. Raises ConfigurationError with every problem at once."""
    try:
        document = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{path} doesn't exist",
            hint="`lockstep init --dsn ...` writes one from your database; --config names another",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from error
    problems = _secrets_in_file(document)
    if problems:
        raise ConfigurationError(
            f"{path} holds secrets", problems=problems, hint="keep it fit to be shown and committed"
        )
    try:
        config = Config.model_validate(_with_sink_secrets(document))
    except ValidationError as error:
        raise ConfigurationError(
            f"{path} has {error.error_count()} problem{'s' if error.error_count() > 1 else ''}",
            problems=[_problem(details) for details in error.errors(include_url=False, include_input=False)],
            hint="every setting with its meaning is in the file that `lockstep init` writes",
        ) from None
    return _below(path.absolute().parent, config)


def sink_password_variable(name: str) -> str:
    """The environment variable that holds a sink's password."""
    return f"LOCKSTEP_SINK_{name.upper()}_PASSWORD"


def sink_salt_variable(name: str) -> str:
    """The environment variable that holds the salt of a sink's hashes."""
    return f"LOCKSTEP_SINK_{name.upper()}_SALT"


def _sink_sections(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    sinks = document.get("sinks")
    if not isinstance(sinks, dict):
        return {}
    return {name: section for name, section in sinks.items() if isinstance(section, dict)}


def _secrets_in_file(document: dict[str, Any]) -> list[str]:
    problems = []
    for name, section in _sink_sections(document).items():
        way_out = f"use login.password_file or ${sink_password_variable(name)}"
        login = section.get("login")
        if isinstance(login, dict) and "password" in login:
            problems.append(f"sinks.{name}.login.password: {way_out}")
        if urlsplit(str(section.get("url", ""))).password:
            problems.append(f"sinks.{name}.url: holds a password; {way_out}")
        if "mask_salt" in section:
            problems.append(f"sinks.{name}.mask_salt: use mask_salt_file or ${sink_salt_variable(name)}")
    return problems


def _with_sink_secrets(document: dict[str, Any]) -> dict[str, Any]:
    """Passwords and salts from the environment, where no file is named."""
    sinks = dict(document.get("sinks") or {}) if isinstance(document.get("sinks"), dict) else document.get("sinks")
    for name, section in _sink_sections(document).items():
        assert isinstance(sinks, dict)
        password = os.environ.get(sink_password_variable(name))
        login = section.get("login", {})
        if password and isinstance(login, dict) and "password_file" not in login:
            sinks[name] = sinks[name] | {"login": login | {"password": password}}
        salt = os.environ.get(sink_salt_variable(name))
        if salt and "mask_salt_file" not in section:
            sinks[name] = sinks[name] | {"mask_salt": salt}
    return document if sinks is None else document | {"sinks": sinks}


def _problem(details: Any) -> str:
    location = list(details["loc"])
    if location[:1] == ["sinks"] and len(location) > 3:
        del location[2]  # pydantic names the sink's type here, which isn't a key of the file
    path = ".".join(str(part) for part in location) or "the file as a whole"
    message = details["msg"].removeprefix("Value error, ")
    if details["type"] == "extra_forbidden":
        message = "unknown setting: check its spelling and its section"
    return f"{path}: {message}"


def _below(directory: Path, config: Config) -> Config:
    """Paths in the file count from where the file is, not from where the command is run."""
    checkpoints = config.spark.checkpoint_directory
    if "://" not in checkpoints and not Path(checkpoints).is_absolute():
        config = _with_spark(config, checkpoint_directory=str(directory / checkpoints))
    if config.spark.package is not None:
        config = _with_spark(config, package=directory / config.spark.package)
    sinks = {
        name: sink
        if sink.mask_salt_file is None
        else sink.model_copy(update={"mask_salt_file": directory / sink.mask_salt_file})
        for name, sink in config.sinks.items()
    }
    config = config.model_copy(update={"sinks": sinks})
    config = _with_spark(config, jars=tuple(directory / jar for jar in config.spark.jars))
    # Joined to an absolute one, the directory counts for nothing.
    values = str(directory / config.capture.values_directory)
    return config.model_copy(update={"capture": config.capture.model_copy(update={"values_directory": values})})


def _with_spark(config: Config, **changes: object) -> Config:
    return config.model_copy(update={"spark": config.spark.model_copy(update=changes)})
