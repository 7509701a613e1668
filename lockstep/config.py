"""``lockstep.toml``: the settings of all parts as one frozen value. Reports every error at once."""

import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, cast
from urllib.parse import parse_qsl, quote, urlencode

from pydantic import (
    BaseModel,
    Field,
    SecretStr,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from cdc.capture.settings import CaptureSettings, SnapshotSettings
from cdc.kafka.settings import KAFKA_PASSWORD_VARIABLE, KafkaSettings
from cdc.model.errors import ConfigurationError
from cdc.model.later import named
from cdc.model.table import TableName
from cdc.pipeline_settings import Pipeline
from cdc.postgres.dsn import FILES, file_below, files_below
from cdc.postgres.settings import SOURCE_PASSWORD_VARIABLE, SourceSettings
from cdc.secret import address_holds_secret
from cdc.settings import Settings
from jobs.settings import SparkSettings
from lockstep.added_stores import AddedStore
from lockstep.dashboard_settings import DashboardSettings
from lockstep.installed_extensions import extension_values
from lockstep.view_sections import kind_of_sink, problem_of_type, with_views
from monitor.condition_settings import ConditionSettings
from monitor.metrics.settings import MetricsSettings
from sinks.registry import SinkSettings
from sinks.table_settings import TableSettings
from sinks.view_settings import VIEWS_SCHEMA, ViewSettings

_Checked = TypeVar("_Checked", bound=BaseModel)

_ADDED: Final[Mapping[str, type[BaseModel]]] = {
    name: named(address) for each in extension_values() for name, address in each.sections.items()
}
"""Section of an installed extension -> its settings."""

if TYPE_CHECKING:
    _Added = Settings
else:
    _Added = create_model("_Added", __base__=Settings, **{name: (kind, kind()) for name, kind in _ADDED.items()})

Wanted = Literal["sink", "view", "store"]
"""What a command takes the name of. A store is a sink, or something an extension writes to."""

NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
"""Lower case and short: the name becomes part of topics, the slot, indexes and key prefixes."""


def _default_data_directory() -> Path:
    """systemd names a unit's directory; elsewhere it is beside the file."""
    return Path(os.environ.get("STATE_DIRECTORY", "").partition(":")[0] or ".lockstep")


class PipelineSettings(Settings):
    """The pipeline's name, which is the prefix of its topics."""

    name: str
    data_directory: Path = Field(
        default_factory=_default_data_directory,
        description="this machine's files, in subdirectories that other settings may place elsewhere",
    )

    @field_validator("name")
    @classmethod
    def _legal(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError(
                "must be a lower-case letter followed by up to 40 lower-case letters, digits or underscores"
            )
        return name

    @field_validator("data_directory")
    @classmethod
    def _is_local(cls, directory: Path) -> Path:
        if ":/" in str(directory) or str(directory).startswith("~"):
            raise ValueError("must be a directory of this machine, written out")
        return directory


class Config(Settings):
    """The whole configuration. A view is one of the ``sinks``, under its own name. ``added`` has extensions'
    sections."""

    pipeline: PipelineSettings
    source: SourceSettings
    kafka: KafkaSettings
    capture: CaptureSettings = CaptureSettings()
    snapshot: SnapshotSettings = SnapshotSettings()
    spark: SparkSettings = SparkSettings()
    metrics: MetricsSettings = MetricsSettings()
    conditions: ConditionSettings = ConditionSettings()
    dashboard: DashboardSettings = DashboardSettings()
    sinks: Annotated[dict[str, SinkSettings], Field(default_factory=dict)]
    added: _Added = _Added()

    @model_validator(mode="before")
    @classmethod
    def _extensions_have_sections(cls, document: Any) -> Any:
        if not isinstance(document, dict) or _ADDED.keys().isdisjoint(document):
            return document
        rest = {name: section for name, section in document.items() if name not in _ADDED}
        return rest | {"added": {name: document[name] for name in _ADDED if name in document}}

    @model_validator(mode="before")
    @classmethod
    def _views_are_sinks(cls, document: Any) -> Any:
        if not isinstance(document, dict):
            return document
        expanded, problems = _expanded(document)
        if problems:
            raise ValueError("; ".join(problems))
        return expanded

    @field_validator("sinks")
    @classmethod
    def _sink_names(cls, sinks: dict[str, SinkSettings]) -> dict[str, SinkSettings]:
        wrong = [name for name in sinks if not NAME.fullmatch(name)]
        if wrong:
            raise ValueError(
                "sinks and views have names of a lower-case letter followed by up to 40 lower-case letters, digits or"
                f" underscores: {', '.join(map(repr, wrong))}"
            )
        return sinks

    @model_validator(mode="after")
    def _views_have_their_names(self) -> "Config":
        for name, sink in self.sinks.items():
            if sink.view is not None and sink.view.name != name:
                raise ValueError(f"sinks.{name}.view: write it as a section [views.{name}]")
        return self

    @model_validator(mode="after")
    def _sinks_read_captured_tables(self) -> "Config":
        problems = _problems_of_tables(self.source, self.sinks)
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @model_validator(mode="after")
    def _sinks_have_places_of_their_own(self) -> "Config":
        """Two sinks in one place would take each other's generations for their own."""
        names: dict[tuple[str, ...], list[str]] = {}
        for section, name, sink in self._sections_of_stores():
            for place in sink.places(name):
                names.setdefault((sink.type, *place), []).append(f"{section}.{name}")
        problems = [
            f"{' and '.join(sharing)} write to the same place: give each a prefix or schema of its own"
            for sharing in names.values()
            if len(sharing) > 1
        ]
        if problems:
            raise ValueError("; ".join(dict.fromkeys(problems)))
        return self

    @model_validator(mode="after")
    def _files_are_where_they_are_written(self) -> "Config":
        """A warehouse in a file is locked by the one machine that has it."""
        if not self.spark.is_local:
            files = [
                f"{section}.{name}.{sink.file_of_one_machine}"
                for section, name, sink in self._sections_of_stores()
                if sink.file_of_one_machine
            ]
            if files:
                raise ValueError(
                    f"{files[0]} names a file, which the machines of {self.spark.master!r} can't write to"
                    " together: set spark.master to local[2], or give the sink a PostgreSQL warehouse"
                )
        return self

    @model_validator(mode="after")
    def _extensions_fit(self) -> "Config":
        problems = [problem for each in extension_values() for problem in each.problems(self)]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _sections_of_stores(self) -> Iterator[tuple[str, str, SinkSettings]]:
        """The section and name of everything that is written to, with its settings."""
        for name, sink in self.sinks.items():
            yield "sinks" if sink.view is None else "views", name, sink
        for name, store in self.added_stores.items():
            yield store.section, name, store.settings

    def section(self, kind: type[_Checked]) -> _Checked:
        """The settings of an installed extension."""
        return next(settings for _, settings in self.added if isinstance(settings, kind))

    def capturing(self, source: SourceSettings) -> "Config":
        """The same with the source's tables resolved."""
        return self.model_copy(update={"source": source})

    def as_pipeline(self) -> Pipeline:
        """The part that capture needs."""
        waits = bool(self.views) or any(getattr(sink, "consistent", False) for sink in self.sinks.values())
        return Pipeline(
            self.pipeline.name,
            self.source,
            self.kafka,
            self.capture,
            self.snapshot,
            values_directory=self.pipeline.data_directory / "values",
            has_whole_transactions=waits,
        )

    @property
    def slot(self) -> str:
        return self.as_pipeline().slot

    @property
    def publication(self) -> str:
        return self.as_pipeline().publication

    def chosen_sinks(self, names: Collection[str]) -> dict[str, SinkSettings]:
        """The sinks of these names, or all if none is named. Raises ConfigurationError for unknown names."""
        unknown = [name for name in names if name not in self.sinks]
        if unknown:
            raise self.not_found("sink", *unknown)
        if not self.sinks:
            raise ConfigurationError("the configuration has no sinks", hint="add a section [sinks.NAME] to it")
        return {name: self.sinks[name] for name in names or self.sinks}

    def not_found(self, wanted: Wanted, *names: str) -> ConfigurationError:
        """An error that says why these names don't fit what is ``wanted``, and which commands are meant for them."""
        known: dict[Wanted, Collection[str]] = {"sink": self.sinks, "view": self.views, "store": self.stores}
        word = "view" if wanted == "view" else "sink"
        return self.not_among(known[wanted], names, word, f"{word}s")

    def not_among(self, known: Collection[str], names: Iterable[str], wanted: str, plural: str) -> ConfigurationError:
        """The same for what an extension wants: ``known`` are its names."""
        for name in names:
            kind, commands = self._what_is(name)
            if kind is not None:
                return ConfigurationError(f"{name} is a {kind} and no {wanted}", hint=commands)
        return ConfigurationError(
            f"no such {wanted}: {', '.join(names)}",
            hint=f"{plural} of this configuration: {', '.join(known) or 'none'}",
        )

    def _what_is(self, name: str) -> tuple[str | None, str]:
        """What this name stands for, None if nothing, and the commands that are meant for it."""
        if (store := self.added_stores.get(name)) is not None:
            return store.kind, store.commands
        if name in self.views:
            return (
                "view",
                f"`lockstep views explain {name}` shows it, and `lockstep rebuild {name} --switch` builds it again",
            )
        if name in self.sinks:
            return (
                "sink",
                f"`lockstep generations {name}` shows its builds, and `lockstep rebuild {name}` makes another one",
            )
        return None, ""

    def chosen_to_apply(self, names: Collection[str]) -> tuple[dict[str, SinkSettings], dict[str, AddedStore]]:
        """The sinks and extensions' stores of these names, or all. Raises ConfigurationError for other names."""
        added = self.added_stores
        if not names and added:
            return dict(self.sinks), added
        chosen = {name: added[name] for name in names if name in added}
        others = [name for name in names if name not in chosen]
        return (self.chosen_sinks(others) if others or not chosen else {}), chosen

    @property
    def stores(self) -> dict[str, SinkSettings]:
        """The settings of everything that is written to: the sinks, and the stores of extensions."""
        return self.sinks | {name: store.settings for name, store in self.added_stores.items()}

    @property
    def added_stores(self) -> dict[str, AddedStore]:
        """The stores of extensions, beside the sinks."""
        return {name: store for each in extension_values() for name, store in each.stores(self).items()}

    @property
    def watch_directory(self) -> Path:
        """Where processes that look at this pipeline store their files. Each pipeline has its own."""
        return self.pipeline.data_directory / "alerts" / self.pipeline.name

    @property
    def views(self) -> dict[str, ViewSettings]:
        return {name: settings.view for name, settings in self.sinks.items() if settings.view is not None}

    def topics(self) -> Mapping[TableName, str]:
        return self.as_pipeline().topics()

    def topics_of(self, tables: Iterable[TableName]) -> list[str]:
        """The topics of these captured tables, in their order."""
        topics = self.topics()
        return [topics[table] for table in tables]

    def sinks_of(self, table: TableName) -> dict[str, SinkSettings]:
        """The sinks that get this table's rows. A view that reads it has rows of its own."""
        return {
            name: settings
            for name, settings in self.sinks.items()
            if settings.view is None and table in self.sink_tables(settings)
        }

    def sink_tables(self, settings: SinkSettings) -> tuple[TableName, ...]:
        """The captured tables of a sink with these settings."""
        if not settings.tables:
            return self.source.keyed_names
        captured = set(self.source.table_names)
        return tuple(name for name in map(TableName.parse, settings.tables) if name in captured)

    def uncaptured_tables(self, settings: SinkSettings) -> tuple[TableName, ...]:
        """The tables that a sink with these settings names and that aren't captured: they may join, or have left."""
        captured = set(self.source.table_names)
        return tuple(name for name in map(TableName.parse, settings.tables) if name not in captured)


def _problems_of_tables(source: SourceSettings, sinks: Mapping[str, SinkSettings]) -> list[str]:
    """How sinks name tables that they can't have. A table that matches a pattern may be captured one day."""
    may_have = source.may_have
    append_only = frozenset(name for name in source.append_only if may_have(name))
    problems = []
    for name, sink in sinks.items():
        if sink.view is not None:
            problems += _problems_of_view(name, sink, may_have)
            continue
        tables = set(map(TableName.parse, sink.tables))
        # Where no tables are named, a sink gets those with a key; append-only ones have to be asked for.
        refused = sorted(append_only & tables) if not sink.TAKES_APPEND_ONLY else []
        allowed = {name for name in tables | sink.named_tables() if may_have(name)} - (append_only - tables)
        if refused:
            problems.append(
                f"sinks.{name}.tables names append-only tables, which a sink of type {sink.type!r} can't take:"
                f" {', '.join(map(str, refused))}; a warehouse and Delta tables can"
            )
        unknown = [text for text in sink.tables if TableName.parse(text) not in allowed]
        if unknown:
            problems.append(f"sinks.{name}.tables names tables that aren't captured with a key: {', '.join(unknown)}")
        astray = sorted(sink.named_tables() - allowed)
        if astray:
            problems.append(f"sinks.{name} names tables that aren't captured with a key: {', '.join(map(str, astray))}")
        kept = [text for text in map(str, sorted(append_only)) if text in _history_of(sink)]
        if kept:
            problems.append(
                f"sinks.{name}.history names append-only tables, whose events are all kept anyway: {', '.join(kept)}"
            )
        clashing = sink.clashing_columns(append_only)
        if clashing:
            problems.append(f"sinks.{name} names columns that append-only tables need in a sink: {', '.join(clashing)}")
    return problems


def _problems_of_view(name: str, sink: SinkSettings, may_have: Callable[[TableName], bool]) -> list[str]:
    unknown = [text for text in sink.tables if not may_have(TableName.parse(text))]
    astray = sorted(str(table) for table in sink.named_tables() if table not in sink.contained_tables)
    problems = [
        f"views.{name}.sql reads {text}, and there is no section [{text}]"
        for text in unknown
        if TableName.parse(text).schema == VIEWS_SCHEMA
    ]
    unknown = [text for text in unknown if TableName.parse(text).schema != VIEWS_SCHEMA]
    if unknown:
        problems.append(f"views.{name}.sql reads tables that aren't captured: {', '.join(unknown)}")
    if astray:
        result = " ".join(map(str, sink.contained_tables))
        problems.append(f"views.{name} names tables, and its result is called {result}: {', '.join(astray)}")
    return problems


def _history_of(sink: SinkSettings) -> set[str]:
    return set(map(str, sink.history_tables))


def load(path: Path) -> Config:
    """Read and check a configuration file, with the tables that are captured.

    If source.tables has patterns, Kafka is asked what they stand for; before capture has begun, the source is. Raises
    as ``read``, and Unavailable and LockstepError as ``resolved_pipeline``.
    """
    return captured(read(path))


def captured(config: Config) -> Config:
    """The configuration with the tables that are captured. Raises as ``load``."""
    return config if config.source.is_resolved else config.capturing(resolved(config.as_pipeline()).source)


def resolved(pipeline: Pipeline) -> Pipeline:
    """The same for a pipeline alone. Raises as ``load``, except for what sinks name."""
    if pipeline.source.is_resolved:
        return pipeline
    from lockstep.captured_tables import resolved_pipeline  # most configurations need neither server for that

    return resolved_pipeline(pipeline)


def followed(pipeline: Pipeline) -> Pipeline:
    """A pipeline with the tables that are captured now, even if that lacks some named ones. Raises as ``resolved``."""
    from lockstep.captured_tables import followed_pipeline

    return followed_pipeline(pipeline)


def read(path: Path) -> Config:
    """Read and check a file without servers; patterns stay as they are. Raises ConfigurationError with all problems."""
    document = parse(path)
    problems = _secrets_in_file(document)
    if problems:
        raise ConfigurationError(
            f"{path} holds secrets", problems=problems, hint="keep it fit to be shown and committed"
        )
    config, problems = validated(document)
    if problems or config is None:
        raise ConfigurationError(
            f"{path} has {len(problems)} problem{'s' if len(problems) > 1 else ''}",
            problems=problems,
            hint="every setting with its meaning is in the file that `lockstep init` writes",
        )
    return _below(path.absolute().parent, config)


def _expanded(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The document in which all sections that borrow a store have it, and the problems that the models won't find."""
    problems = list[str]()
    for each in extension_values():
        document, found = each.expanded(document)
        problems += found
    expanded, of_views = with_views(document)
    return expanded, problems + of_views


def validated(document: dict[str, Any]) -> tuple[Config | None, list[str]]:
    """A document as its settings, with paths as they are written, and the problems that it would be refused for."""
    document = _with_sink_secrets(document)
    expanded, problems = _expanded(document)
    views = document.get("views", {})
    if not isinstance(views, dict):  # reported already
        views = {}
    config, found = _checked(Config, expanded, views)
    lenders, of_lenders = _checked(_Lenders, {"sinks": _not_applied(document)}, views)
    problems += dict.fromkeys([*found, *of_lenders])
    if config is not None and lenders is not None:
        problems += _problems_of_tables(config.source, lenders.sinks)
    return config, problems


def _checked(kind: type[_Checked], values: object, views: Mapping[str, Any]) -> tuple[_Checked | None, list[str]]:
    try:
        return kind.model_validate(values), []
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        return None, [_problem(details, views) for details in _innermost(found)]


class _Lenders(BaseModel):
    """Sections that get no table, since only views use their stores. They are checked as if they got some."""

    sinks: dict[str, SinkSettings]


def _not_applied(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Their sections. An invalid type is reported already."""
    return {
        name: {key: value for key, value in section.items() if key != "apply"}
        for name, section in _sink_sections(document).items()
        if section.get("apply") is False and kind_of_sink(section) is not None
    }


def parse(path: Path) -> dict[str, Any]:
    """A configuration file's content, unchecked. Raises ConfigurationError if it can't be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{path} doesn't exist",
            hint="`lockstep init --dsn ...` writes one from your database; --config names another",
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"{path} can't be read: {error.strerror}", hint="check its path and permissions; --config names another"
        ) from error
    except (ValueError, RecursionError) as error:  # absurd values raise errors of int and of the stack
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from error


def sink_password_variable(name: str) -> str:
    return f"LOCKSTEP_SINK_{name.upper()}_PASSWORD"


def sink_salt_variable(name: str) -> str:
    return f"LOCKSTEP_SINK_{name.upper()}_SALT"


def _sink_sections(document: dict[str, Any], of: str = "sinks") -> dict[str, dict[str, Any]]:
    sinks = document.get(of)
    if not isinstance(sinks, dict):
        return {}
    return {name: section for name, section in sinks.items() if isinstance(section, dict)}


def _secrets_in_file(document: dict[str, Any]) -> list[str]:
    problems = []
    for of in document.keys() - {"sinks"}:
        for name, section in _sink_sections(document, of).items():
            login = section.get("login")
            if isinstance(login, dict) and "password" in login:
                problems.append(f"{of}.{name}.login.password: use login.password_file, or the sink's own login")
    for name, section in _sink_sections(document).items():
        login = section.get("login")
        if isinstance(login, dict) and "password" in login:
            problems.append(f"sinks.{name}.login.password: {_way_out(('sinks', name))}")
        if "mask_salt" in section:
            problems.append(f"sinks.{name}.mask_salt: use mask_salt_file or ${sink_salt_variable(name)}")
    addresses = [path for path, text in _texts(document, ()) if _is_address(path, text) and address_holds_secret(text)]
    problems += [
        f"{'.'.join(path)}: holds a password, or an @ that has to be written as %40; {_way_out(path)}"
        for path in dict.fromkeys(addresses)
    ]
    return problems


def _texts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    match value:
        case str():
            yield path, value
        case dict():
            for name, inner in value.items():
                yield from _texts(inner, (*path, name))
        case list():
            for inner in value:
                yield from _texts(inner, path)


def _is_address(path: tuple[str, ...], text: str) -> bool:
    """Whether a text is an address. Brokers' addresses have no scheme."""
    return re.match(r"\s*[A-Za-z][\w+.-]*://", text) is not None or path == ("kafka", "bootstrap_servers")


def _way_out(path: tuple[str, ...]) -> str:
    """Where a secret found here belongs."""
    match path:
        case ("sinks", name, *_):
            return f"use login.password_file or ${sink_password_variable(name)}"
        case (section, "url") if section in _ADDED:
            return f"use {section}.url_file"
        case (section, *_) if section in _ADDED and "webhook" in path:
            return f"use {'.'.join(path[: path.index('webhook') + 1])}.url_file"
        case (section, *_) if section == "views" or section in _ADDED:
            return "use login.password_file, or the sink's own login"
        case ("source", *_):
            return f"use source.password_file or ${SOURCE_PASSWORD_VARIABLE}"
        case ("kafka", *_):
            return f"use kafka.username, and kafka.password_file or ${KAFKA_PASSWORD_VARIABLE}"
        case _:
            return "use Spark's own files: spark-defaults.conf, or core-site.xml for a file system's"


def _with_sink_secrets(document: dict[str, Any]) -> dict[str, Any]:
    """Adds passwords and salts from the environment, where no file is named."""
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


_WORDS: Final = {
    "missing": "is missing",
    "extra_forbidden": "unknown setting: check its spelling and its section",
    "tuple_type": "must be a list, in [ ]",
    "string_type": "must be a text",
    "bool_type": "must be true or false, without quotes",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(
        ("dict_type", "mapping_type", "model_type", "model_attributes_type"), "must be a section, or a table in { }"
    ),
}
"""Our words for pydantic's error types, whose own messages use Python's words."""


def _innermost(found: Sequence[Any]) -> Iterator[Any]:
    """The problems, without "too short" of a list whose elements have problems of their own."""
    places = [details["loc"] for details in found]
    for details in found:
        loc = details["loc"]
        is_outer = any(other[: len(loc)] == loc and len(other) > len(loc) for other in places)
        if details["type"] != "too_short" or not is_outer:
            yield details


def _problem(details: Any, views: Mapping[str, Any]) -> str:
    location, kind = list(details["loc"]), details["type"]
    if location[:1] == ["added"]:
        del location[0]
        if location[2:3] == ["sink"] and len(location) > 3:
            del location[2:4]  # the setting is one of the section's own
    if location[:1] == ["sinks"] and len(location) > 2:
        del location[2]  # pydantic names the sink's type here, which isn't a key of the file
    if location[:1] == ["sinks"] and len(location) > 1 and location[1] in views:
        location[0] = "views"
        location[2:3] = [part for part in location[2:3] if part != "view"]
        own = views[location[1]]
        if location[2:] and isinstance(own, dict) and location[2] not in (*own, "tables"):
            location[:2] = ["sinks", str(own.get("sink"))]  # whose setting the view has taken over
    message = details["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden" and len(location) == 1:
        message = "unknown section: check its spelling, or install the extension that it belongs to"
    elif kind in ("union_tag_not_found", "union_tag_invalid"):
        location.append("type")
        message = problem_of_type(details.get("ctx", {}).get("tag"))
    elif kind in ("too_short", "string_too_short") and details["ctx"]["min_length"] == 1:
        message = "must not be empty"
    else:
        message = _WORDS.get(kind, message)
    return f"{'.'.join(map(str, location)) or 'the file as a whole'}: {message}"


_REDIS_FILES: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
"""Parameters of a Redis address that are paths."""


def _below(directory: Path, config: Config) -> Config:
    """Paths in the file count from where the file is, not from where the command is run."""
    config = _below_data_directory(config)
    changes: dict[str, object] = {
        "source": config.source.model_copy(update={"dsn": files_below(directory, config.source.dsn)}),
    }
    checkpoints = config.spark.checkpoint_directory
    if "://" not in checkpoints:
        # Joined to an absolute one, the directory counts for nothing.
        changes["spark"] = config.spark.model_copy(update={"checkpoint_directory": str(directory / checkpoints)})
    return cast("Config", _joined(directory, config.model_copy(update=changes)))


_KEPT: Final = (
    ("spark", "checkpoint_directory", "checkpoints"),
    ("spark", "view_directory", "views"),
)
"""Section, setting, and the directory below ``pipeline.data_directory`` that it defaults to."""


def _below_data_directory(config: Config) -> Config:
    """Puts directories that the file doesn't name below ``pipeline.data_directory``."""
    for section, setting, name in _KEPT:
        settings = getattr(config, section)
        if setting not in settings.model_fields_set:
            directory = config.pipeline.data_directory / name
            value = directory if isinstance(getattr(settings, setting), Path) else str(directory)
            config = config.model_copy(update={section: settings.model_copy(update={setting: value})})
    return config


def _with_address_below(directory: Path, sink: TableSettings) -> TableSettings:
    """A sink whose address names files as parameters, with those below the directory."""
    url = getattr(sink, "url", None)
    if not isinstance(url, SecretStr):
        return sink
    address, _, query = url.get_secret_value().partition("?")
    given = parse_qsl(query, keep_blank_values=True)
    below = [
        (name, file_below(directory, name, value) if name in (*FILES, *_REDIS_FILES) else value)
        for name, value in given
    ]
    if below == given:
        return sink
    return sink.model_copy(update={"url": SecretStr(f"{address}?{urlencode(below, safe='/:', quote_via=quote)}")})


def _joined(directory: Path, value: Any) -> Any:
    """Settings with all their relative paths below the directory."""
    match value:
        case Path():
            return directory / value
        case BaseModel():
            value = _with_address_below(directory, value) if isinstance(value, TableSettings) else value
            fields = {name: getattr(value, name) for name in type(value).model_fields}
            joined = {name: _joined(directory, field) for name, field in fields.items()}
            return value.model_copy(update={name: new for name, new in joined.items() if new != fields[name]})
        case tuple():
            return tuple(_joined(directory, each) for each in value)
        case dict():
            return {key: _joined(directory, each) for key, each in value.items()}
        case _:
            return value
