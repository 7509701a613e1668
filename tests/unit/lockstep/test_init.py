"""The file that ``lockstep init`` writes: it has every setting, and each of its examples is valid."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.model.later import named
from cdc.model.table import Column, ReplicaIdentity, Table, TableName
from cdc.postgres.settings import TableOptions
from cdc.settings import Settings
from lockstep.config import Config
from lockstep.extension import installed
from lockstep.init import config_text, write_config
from lockstep.init_examples import NO_KEY, FoundTables, NewSink, secret_columns
from sinks.delta.settings import DeltaSettings
from sinks.registry import SinkSettings
from sinks.view_settings import RetainSettings, TopSettings, ViewSettings

SINKS: dict[str, Any] = {model.model_fields["type"].default: model for model in get_args(get_args(SinkSettings)[0])}
"""Every kind of sink that the configuration knows."""

COMMON = "NAME"
"""The section of what every sink may have; its settings count for all of them."""

LEFT_OUT = {
    "view": "it is a section of its own, [views.NAME]",
    "topic": "it is a view's",
    "lender": "a view's setting `sink`",
    "login.password": "a secret: it comes from a file or the environment",
    "mask_salt": "the same",
    "aws_region": "excludes login, and is told in words",
}
"""Settings that the file doesn't mention, and why."""

_SETTING = re.compile(r"# (\[+[a-z][^\]]*\]+|[a-z_]+ = .*)")


def _uncommented() -> str:
    """The file with all that is commented out in it switched on."""
    tables = FoundTables({(table := TableName("public", name)): _shape(table) for name in ("orders", "items", "log")})
    return _switched_on(config_text("shop", "host=127.0.0.1 dbname=shop", tables))


def _switched_on(text: str) -> str:
    lines = [match[1] if (match := _SETTING.fullmatch(line)) else line for line in text.splitlines()]
    return "\n".join(lines)


def _document() -> dict[str, Any]:
    """The same, parsed; the common section's settings are in every sink's that has none of its own."""
    document = tomllib.loads(_uncommented())
    common = document["sinks"].pop(COMMON)
    assert common.pop("apply") is True, "the one that no sink's settings have"
    document["sinks"] = {name: common | section for name, section in document["sinks"].items()}
    return document


def _section(kind: str) -> dict[str, Any]:
    (section,) = (sink_settings for sink_settings in _document()["sinks"].values() if sink_settings["type"] == kind)
    return dict(section)


def _missing(model: type[BaseModel], section: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The settings of a model that a section of the file lacks."""
    for name, field in model.model_fields.items():
        called = f"{path}{field.alias or name}"
        if called in LEFT_OUT or (model is DeltaSettings and called == "tls"):  # which it refuses
            continue
        if (field.alias or name) not in section:
            yield called
            continue
        nested = _model_of(field.annotation)
        if nested is not None:
            yield from _missing(nested, section[field.alias or name], f"{called}.")


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The settings that a setting consists of: ``Tls`` for ``Tls`` and ``Tls | None``; None for a plain value."""
    kinds = annotation.__args__ if isinstance(annotation, UnionType) else (annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def test_all_of_its_examples_are_a_valid_configuration() -> None:
    Config.model_validate(_document())


@pytest.mark.parametrize("kind", SINKS)
def test_every_setting_of_a_sink_is_in_it(kind: str) -> None:
    assert list(_missing(SINKS[kind], _section(kind))) == []


@pytest.mark.parametrize("kind", SINKS)
def test_its_numbers_are_the_defaults(kind: str) -> None:
    section = _section(kind)
    defaults = {field.alias or name: field.default for name, field in SINKS[kind].model_fields.items()}
    numbers = {name for name, value in section.items() if isinstance(value, int | float)}
    assert {name: section[name] for name in numbers} == {name: defaults[name] for name in numbers}


def test_every_other_setting_is_in_it() -> None:
    document = _document()
    sections = {name: model for name, field in Config.model_fields.items() if (model := _model_of(field.annotation))}
    assert sections.keys() == Config.model_fields.keys() - {"sinks"}
    added = {name: named(each.sections[name]) for each in installed() for name in each.sections}
    # One that is a dictionary has sections of any name, which the tests of its extension know.
    sections |= {name: model for name, model in added.items() if issubclass(model, Settings)}
    del sections["added"]
    missing = [name for section, model in sections.items() for name in _missing(model, document[section])]
    assert missing == ["exclude_tables"], "it needs patterns, and is told in words"
    options = {name for section in document["source"]["options"].values() for name in section}
    assert options == TableOptions.model_fields.keys()


@pytest.mark.parametrize("kind", SINKS)
def test_it_says_which_settings_take_a_rebuild(kind: str) -> None:
    lines: dict[str, bool] = {}
    section = ""
    for line in _uncommented().splitlines():
        if line.startswith("["):
            section = line
        elif match := re.match(r"([a-z_]+) = ", line):
            is_mine = section == f"[sinks.{COMMON}]" or section == _header(kind)
            if is_mine:
                lines[match[1]] = "(rebuild)" in line
    assert {name for name, is_marked in lines.items() if is_marked} == SINKS[kind].SHAPING - {"view"}


def _header(kind: str) -> str:
    (name,) = (name for name, section in _document()["sinks"].items() if section["type"] == kind)
    return f"[sinks.{name}]"


def test_a_view_has_all_of_its_settings_in_it() -> None:
    [view] = _document()["views"].values()
    assert view.keys() == {"sink", "topic", *ViewSettings.model_fields} - {"name"}
    assert view["top"].keys() == TopSettings.model_fields.keys()
    assert view["retain"][0].keys() == RetainSettings.model_fields.keys()
    assert not _document()["sinks"].keys().isdisjoint({view["sink"]})


def test_what_is_left_out_would_be_missed_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    left_out = set(LEFT_OUT)
    monkeypatch.setattr(f"{__name__}.LEFT_OUT", {})
    assert {name for kind, model in SINKS.items() for name in _missing(model, _section(kind))} == left_out


@pytest.mark.parametrize(
    ("dsn", "name", "where", "message"),
    [
        ("host=nowhere", "Bad Name", "lockstep.toml", "--name: must be a lower-case letter"),
        ("host=nowhere", None, "nowhere/lockstep.toml", "nowhere isn't a directory"),
        ("host=nowhere password=very geheim", None, "lockstep.toml", "--dsn is not a libpq connection string"),
        ("postgresql://me:ge%zzgeheim@nowhere/x", None, "lockstep.toml", "--dsn is not a libpq connection string"),
        ("host=nowhere sslpassword=geheim", None, "lockstep.toml", "--dsn holds a password"),
    ],
)
def test_what_would_fail_at_the_end_is_told_before_the_database_is_asked(
    tmp_path: Path, dsn: str, name: str | None, where: str, message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        write_config(dsn=dsn, path=tmp_path / where, name=name)
    assert message in str(caught.value)
    assert "geheim" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_table_of_any_name_is_in_the_file_as_it_is_called() -> None:
    names = [TableName("public", name) for name in ("\U0001f600", 'quo"ted', "back\\slash", "t\x7fab")]
    skipped = [(TableName("public", "two\nlines"), "unlogged")]
    partitions = {TableName("public", "more\nlines"): [names[0], names[1]]}
    tables = FoundTables({name: _shape(name) for name in names}, skipped, partitions)
    document = tomllib.loads(config_text("shop", "host=x", tables))
    assert [TableName.parse(text) for text in document["source"]["tables"]] == names


def test_a_database_that_does_not_answer_needs_no_file_for_its_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Unavailable("PostgreSQL is not available: refused")

    monkeypatch.setattr("lockstep.init.connect", refuse)
    with pytest.raises(LockstepError) as caught:
        write_config(dsn="host=nowhere", path=tmp_path / "lockstep.toml", name=None)
    assert caught.value.hint == "check host and port in --dsn, and that the server runs"


@pytest.mark.parametrize(
    "sink",
    [
        "https://search:9200",
        "search",
        "search=",
        "=https://search",
        "search=ftp://x",
        "search=search:9200",
        "x=http://[bad",
    ],
)
def test_a_sink_that_is_no_name_and_address_is_refused_before_the_database_is_asked(sink: str, tmp_path: Path) -> None:
    path = tmp_path / "lockstep.toml"
    with pytest.raises(ConfigurationError, match="a name and an address are expected"):
        write_config(dsn="host=nowhere", path=path, sinks=(sink,))
    assert not path.exists()


def test_a_password_in_the_address_of_a_sink_is_refused_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        write_config(
            dsn="host=nowhere",
            path=tmp_path / "lockstep.toml",
            sinks=("cache=redis://me:hunter2@cache:6379",),
        )
    assert "hunter2" not in str(refused.value)
    assert "LOCKSTEP_SINK_CACHE_PASSWORD" in str(refused.value)


def _shape(
    name: TableName,
    columns: Mapping[str, str] = MappingProxyType(
        {"id": "integer", "name": "text", "email": "text", "credit": "numeric"}
    ),
    key: tuple[str, ...] = ("id",),
) -> Table:
    made = tuple(Column(column, kind, kind, False, 0, -1) for column, kind in columns.items())
    return Table(name, made, key, ReplicaIdentity.DEFAULT)


SHAPES = {
    "rich": _shape(TableName("app", "customer")),
    "one column": _shape(TableName("app", "flag"), {"no": "uuid", "is_on": "boolean"}, ("no",)),
    "one text": _shape(TableName("app", "tag"), {"id": "uuid", "label": "text"}),
    "two keys": _shape(TableName("app", "member"), {"a": "integer", "b": "integer", "role": "text"}, ("a", "b")),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_each_example_is_of_a_table_of_the_user_and_valid_when_it_is_switched_on(shape: Table) -> None:
    keyless = TableName("app", "audit")
    text = _switched_on(config_text("app", "host=x", FoundTables({shape.name: shape}, [(keyless, NO_KEY)])))
    assert re.findall(r"public\.(?!outbox|\*)\w+", text) == []
    document = tomllib.loads(text)
    document["source"]["tables"].append(str(keyless))
    common = document["sinks"].pop(COMMON)
    del common["apply"]
    document["sinks"] = {name: common | section for name, section in document["sinks"].items()}
    Config.model_validate(document)


def test_a_column_that_looks_like_a_secret_gets_to_no_sink_that_is_asked_for() -> None:
    names = ("password", "client_secret", "api_key", "access_token", "tax_id", "token_id", "customer_id")
    shape = _shape(TableName("public", "account"), {"id": "integer", **dict.fromkeys(names, "text")})
    hidden = secret_columns([shape])
    assert hidden == [f"public.account.{name}" for name in names[:4]]
    sinks = [NewSink.parse("cache=redis://h/0")]
    text = config_text("shop", "host=x", FoundTables({shape.name: shape}), sinks)
    assert tomllib.loads(text)["sinks"]["cache"]["exclude"] == hidden


@pytest.mark.parametrize(
    "names", [("customers", "orders"), ("accounts", "customers", "items"), ("customers", "orders_lines")]
)
def test_tables_with_the_names_of_examples_stay_as_they_are(names: Sequence[str]) -> None:
    tables = [TableName("public", name) for name in names]
    found = FoundTables({name: _shape(name) for name in tables}, [(TableName("public", "audit"), NO_KEY)])
    text = config_text("shop", "host=x", found)
    assert tomllib.loads(text)["source"]["tables"] == list(map(str, tables))


@pytest.mark.parametrize("sinks", [("a b=redis://h/0",), ("a.b=redis://h/0",), ("a=redis://h/0", "a=https://h:9200")])
def test_names_of_sinks_are_checked_before_the_database_is_asked(sinks: Sequence[str], tmp_path: Path) -> None:
    path = tmp_path / "lockstep.toml"
    with pytest.raises(ConfigurationError, match="these sinks can't be written"):
        write_config(dsn="host=nowhere", path=path, sinks=sinks)
    assert not path.exists()
