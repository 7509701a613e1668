"""``lockstep tables remove``: how tables leave capture, and what stays of them.

The configuration file says what is captured, and capture reads it when it starts. So nothing is changed here: whoever
asks is told what the file lacks, what is to be started again, and in the end what is left.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import psycopg

from cdc.kafka.topic_names import table_topic
from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.printable import toml_key, toml_text
from cdc.model.table import TableName
from cdc.model.table_pattern import is_pattern
from cdc.postgres.connection import connect, connection_error
from cdc.postgres.preflight.catalogue_facts import load_relations
from cdc.postgres.preflight.publication import load_publication
from cdc.stream.table_selection import recorded_tables
from lockstep.captured_tables import recorded_shapes, recorded_state
from lockstep.config import Config, validated

_RESTART: Final = (
    "stop capture and start it again: with `lockstep run`, or with `lockstep capture` and `lockstep apply`"
)


class Removal(StrEnum):
    """How far a table is: the file still takes it in (``CONFIGURED``), capture still has it (``CAPTURED``), or neither
    (``OUT``).
    """

    CONFIGURED = "configured"
    CAPTURED = "captured"
    OUT = "out"


@dataclass(frozen=True, slots=True)
class FileChanges:
    """What the file has to say for tables to be left out.

    ``settings`` are the lines of each section as they are to be, ``dropped`` the settings of each that have to go.
    ``removed`` are the sections that have to go as a whole, each with the reason. ``problems`` are what the file would
    still be refused for.
    """

    settings: Mapping[str, Sequence[str]]
    dropped: Mapping[str, Sequence[str]]
    removed: Mapping[str, str]
    problems: Sequence[str]

    def lines(self) -> list[str]:
        """The same as people read it."""
        lines = [
            line for section, settings in self.settings.items() for line in (f"    [{section}]", *_below(settings))
        ]
        lines += [
            f"    remove {', '.join(names)} from the section [{section}]" for section, names in self.dropped.items()
        ]
        lines += [f"    remove the section [{section}]: {why}" for section, why in self.removed.items()]
        return [*lines, *(f"    mend as well: {problem}" for problem in self.problems)]

    def to_json(self) -> dict[str, Any]:
        return {
            "settings": {section: list(lines) for section, lines in self.settings.items()},
            "dropped": {section: list(names) for section, names in self.dropped.items()},
            "removed": dict(self.removed),
            "problems": list(self.problems),
        }


@dataclass(frozen=True, slots=True)
class RemovalReport:
    """How far each table is, what the file lacks, what stays, and what to do next."""

    tables: Mapping[TableName, Removal]
    changes: FileChanges | None
    kept: Sequence[str]
    next_steps: Sequence[str]

    @property
    def is_done(self) -> bool:
        """Whether capture has none of the tables."""
        return all(removal is Removal.OUT for removal in self.tables.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "tables": {str(name): removal.value for name, removal in self.tables.items()},
            "changes": None if self.changes is None else self.changes.to_json(),
            "kept": list(self.kept),
            "next_steps": list(self.next_steps),
        }

    def lines(self, path: str) -> list[str]:
        """The same as people read it. ``path`` is the file's."""
        lines = [f"{name}: {_SENTENCES[removal]}" for name, removal in self.tables.items()]
        if self.changes is not None:
            lines += [f"change {path}:", *self.changes.lines()]
        lines += [f"next: {step}" for step in self.next_steps]
        return [*lines, *(f"stays: {sentence}" for sentence in self.kept)]


_SENTENCES: Final = {
    Removal.CONFIGURED: "is captured as long as the file takes it in",
    Removal.CAPTURED: "the file leaves it out, and capture goes on with it until it is started again",
    Removal.OUT: "isn't captured any more",
}


def look_at_removal(config: Config, document: Mapping[str, Any], texts: Sequence[str]) -> RemovalReport:
    """How far these tables are on their way out of capture. ``document`` is the file that the configuration is of.

    Raises ConfigurationError for names that were never captured, and Unavailable where Kafka doesn't answer.
    """
    names = list(dict.fromkeys(map(_parsed, texts)))
    pipeline = config.as_pipeline()
    state = recorded_state(pipeline)
    recorded = set() if state is None else set(recorded_tables(state))
    known = recorded | recorded_shapes(pipeline).keys()
    unknown = [str(name) for name in names if name not in known and not config.source.may_have(name)]
    if unknown:
        captured = ", ".join(map(str, sorted({*recorded, *config.source.named})))
        raise ConfigurationError(
            f"not captured, and never was: {', '.join(unknown)}", hint=f"captured are: {captured or 'no tables so far'}"
        )
    tables = {name: removal_of(name, config, recorded) for name in names}
    configured = [name for name, removal in tables.items() if removal is Removal.CONFIGURED]
    changes = file_changes(document, config, configured) if configured else None
    out = [name for name, removal in tables.items() if removal is Removal.OUT]
    steps = [] if len(out) == len(tables) else [_RESTART, "run this command again: it says whether they are out"]
    return RemovalReport(tables, changes, kept_of(config, names), [*steps, *_of_publication(config, out)])


def _parsed(text: str) -> TableName:
    try:
        return TableName.parse(text)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def removal_of(name: TableName, config: Config, recorded: Collection[TableName]) -> Removal:
    """How far a table is. ``recorded`` are those that capture has, as it has committed. Pure."""
    if config.source.may_have(name):
        return Removal.CONFIGURED
    return Removal.CAPTURED if name in recorded else Removal.OUT


def file_changes(document: Mapping[str, Any], config: Config, tables: Sequence[TableName]) -> FileChanges:
    """What a file has to say so that these tables, which it takes in, are left out. Pure.

    Raises ConfigurationError where it would leave nothing to capture.
    """
    source = document["source"]
    kept = [text for text in source["tables"] if is_pattern(text) or TableName.parse(text) not in tables]
    if not kept:
        raise ConfigurationError(
            "these are all the tables that the file takes in, and a pipeline captures one at least",
            hint=f"to give the pipeline up, stop it, then: select pg_drop_replication_slot('{config.slot}');",
        )
    changed: dict[str, Any] = {**document, "source": {**source, "tables": kept}}
    settings: dict[str, list[str]] = {}
    if kept != source["tables"]:
        settings["source"] = [_list("tables", kept)]
    matched = [name for name in tables if config.source.matches(name)]
    if matched:
        excluded = [*source.get("exclude_tables", ()), *map(str, matched)]
        changed["source"]["exclude_tables"] = excluded
        settings.setdefault("source", []).append(_list("exclude_tables", excluded))
    removed: dict[str, str] = {}
    dropped: dict[str, list[str]] = {}
    options = source.get("options", {})
    gone = [text for text in options if TableName.parse(text) in tables]
    if gone:
        changed["source"]["options"] = {text: options[text] for text in options if text not in gone}
        removed |= {f"source.options.{toml_key(text)}": "it is about a table that is left out" for text in gone}
    for section in ("sinks", "views"):
        if section in document:
            changed[section] = dict(document[section])
    lenders = {query.lender for query in config.stream_queries.values()}
    for name, sink in config.sinks.items():
        if sink.view is None:
            continue
        reads = [str(table) for table in map(TableName.parse, sink.tables) if table in tables]
        if reads:
            removed[f"views.{name}"] = f"its query reads {', '.join(reads)}, and it can't do without"
            del changed["views"][name]
        else:
            lenders.add(sink.lender)
    for name, sink in config.sinks.items():
        rest = [text for text in sink.tables if TableName.parse(text) not in tables]
        if sink.view is not None or len(rest) == len(sink.tables):
            continue
        section = document["sinks"][name]
        if rest:
            changed["sinks"][name] = {**section, "tables": rest}
            settings[f"sinks.{name}"] = [_list("tables", rest)]
        elif name in lenders:
            # Views and stream queries have its store.
            changed["sinks"][name] = {key: section[key] for key in section if key != "tables"} | {"apply": False}
            settings[f"sinks.{name}"] = ["apply = false"]
            dropped[f"sinks.{name}"] = ["tables"]
        else:
            # An empty list would be all tables.
            removed[f"sinks.{name}"] = "it names no other table"
            del changed["sinks"][name]
    return FileChanges(settings, dropped, removed, validated(changed)[1])


def kept_of(config: Config, tables: Sequence[TableName]) -> list[str]:
    """What is left of tables that aren't captured any more. Pure."""
    sinks = [
        name
        for name, sink in config.sinks.items()
        if sink.view is None and (not sink.tables or any(TableName.parse(text) in tables for text in sink.tables))
    ]
    topics = ", ".join(table_topic(config.pipeline.name, name) for name in tables)
    having = f"sinks, as {', '.join(sinks)}, keep" if sinks else "sinks that had them keep"
    return [
        f"what is on {topics}: it gets nothing more",
        f"{having} their rows as they are: `lockstep rebuild SINK --switch` builds a sink without them",
    ]


def _of_publication(config: Config, tables: Sequence[TableName]) -> list[str]:
    """How the publication stops to name tables that nobody captures."""
    if not tables:
        return []
    try:
        with contextlib.closing(connect(config.source, application="lockstep tables")) as sql:
            sql.execute("set default_transaction_read_only = on")
            relations = load_relations(sql, tables)
            publication = load_publication(sql, config.publication, relations)
    except (LockstepError, psycopg.Error) as error:
        refused = connection_error(error) if isinstance(error, psycopg.Error) else error
        return [f"look whether publication {config.publication} still names them: {refused.message}"]
    listed = [name for name, relation in relations.items() if relation.oid in publication.entries]
    return [
        f"PostgreSQL needn't send {name} any more: alter publication {publication.sql} drop table {name.sql};"
        for name in listed
    ]


def _list(setting: str, texts: Sequence[str]) -> str:
    return f"{setting} = [{', '.join(map(toml_text, texts))}]"


def _below(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]
