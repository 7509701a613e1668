"""``lockstep tables remove``: how tables leave capture, and what stays of them.

The configuration file says what is captured, and capture reads it when it starts. So this changes nothing: it reports
what to change in the file, what to restart, and in the end what is left.
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
from lockstep.captured_tables import parse_table, recorded_shapes, recorded_state
from lockstep.config import Config, validated

_RESTART: Final = (
    "stop capture and start it again: with `lockstep run`, or with `lockstep capture` and `lockstep apply`"
)


class Removal(StrEnum):
    """``CONFIGURED``: the file still takes the table in. ``CAPTURED``: only capture still has it. ``OUT``: neither."""

    CONFIGURED = "configured"
    CAPTURED = "captured"
    OUT = "out"


@dataclass(frozen=True, slots=True)
class FileChanges:
    source: Sequence[str]
    """The new lines of ``[source]``."""

    removed: Sequence[str]
    """The sections of ``source.options`` to remove."""

    problems: Sequence[str]
    """What the file would be refused for then: views and sinks that name the tables."""

    def lines(self) -> list[str]:
        lines = ["    [source]", *(f"    {line}" for line in self.source)] if self.source else []
        lines += [f"    remove the section [{section}]" for section in self.removed]
        lines += [f"    mend as well: {problem}" for problem in self.problems]
        return lines + [f"    {_SINKS}"] * bool(self.problems)

    def to_json(self) -> dict[str, Any]:
        return {"source": list(self.source), "removed": list(self.removed), "problems": list(self.problems)}


_SINKS: Final = (
    "remove views that read them; a sink that names no other table goes too, or stays as the store of views with"
    " apply = false and without tables: an empty list means all"
)


@dataclass(frozen=True, slots=True)
class RemovalReport:
    """How far each table is, what to change in the file, what stays, and what to do next."""

    tables: Mapping[TableName, Removal]
    changes: FileChanges | None
    kept: Sequence[str]
    next_steps: Sequence[str]

    @property
    def is_done(self) -> bool:
        return all(removal is Removal.OUT for removal in self.tables.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "tables": {str(name): removal.value for name, removal in self.tables.items()},
            "changes": None if self.changes is None else self.changes.to_json(),
            "kept": list(self.kept),
            "next_steps": list(self.next_steps),
        }

    def lines(self, path: str) -> list[str]:
        """For people. ``path`` is the file's."""
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
    """How far these tables are on their way out of capture. ``document`` is the configuration's file. Raises
    ConfigurationError for names that were never captured, and Unavailable if Kafka doesn't answer."""
    names = list(dict.fromkeys(map(parse_table, texts)))
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


def removal_of(name: TableName, config: Config, recorded: Collection[TableName]) -> Removal:
    """How far a table is. ``recorded`` are the tables that capture has committed as its own. Pure."""
    if config.source.may_have(name):
        return Removal.CONFIGURED
    return Removal.CAPTURED if name in recorded else Removal.OUT


def file_changes(document: Mapping[str, Any], config: Config, tables: Sequence[TableName]) -> FileChanges:
    """The changes to a file that leave out these tables, which it takes in now. Pure. Raises ConfigurationError if
    nothing would be left to capture."""
    source = document["source"]
    kept = [text for text in source["tables"] if is_pattern(text) or TableName.parse(text) not in tables]
    if not kept:
        raise ConfigurationError(
            "these are all the tables that the file takes in, and a pipeline captures one at least",
            hint=f"to give the pipeline up, stop it, then: select pg_drop_replication_slot('{config.slot}');",
        )
    lines, source = [], {**source, "tables": kept}
    if kept != document["source"]["tables"]:
        lines.append(_list("tables", kept))
    if matched := [str(name) for name in tables if config.source.matches(name)]:
        source["exclude_tables"] = [*source.get("exclude_tables", ()), *matched]
        lines.append(_list("exclude_tables", source["exclude_tables"]))
    options = source.get("options", {})
    gone = [text for text in options if TableName.parse(text) in tables]
    source["options"] = {text: options[text] for text in options if text not in gone}
    _, problems = validated({**document, "source": source})
    return FileChanges(lines, [f"source.options.{toml_key(text)}" for text in gone], problems)


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
        f"records on {topics}, which get no more",
        f"{having} their rows as they are: `lockstep rebuild SINK --switch` builds a sink without them",
    ]


def _of_publication(config: Config, tables: Sequence[TableName]) -> list[str]:
    """How to make the publication stop naming tables that nobody captures."""
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
