"""The kinds of sinks, and how a sink's settings become the sink. Importing it loads no client library.

A kind's code is loaded when its first sink is opened: every command reads settings, and few write rows.

Some settings shape the data of a generation; all others may change while it lives. Each settings class names the former
in ``SHAPING``. ``definition`` extracts them, to be stored with a generation; ``with_definition`` puts them back into
the present configuration.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, Union, cast

from pydantic import Field, ValidationError

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue
from cdc.model.table import Table, TableName
from sinks.contract import OpenedSink
from sinks.delta.kind import KIND as DELTA
from sinks.kind import SinkKind
from sinks.opensearch.kind import KIND as OPENSEARCH
from sinks.redis.kind import KIND as REDIS
from sinks.table_settings import TableSettings
from sinks.view_settings import ViewSettings
from sinks.warehouse.kind import KIND as WAREHOUSE
from sinks.wrappers.projection import Projection

KINDS: Final[Mapping[str, SinkKind]] = {kind.name: kind for kind in (OPENSEARCH, REDIS, WAREHOUSE, DELTA)}
"""Every kind of sink, by its name in the configuration."""

if TYPE_CHECKING:
    SinkSettings = TableSettings
else:
    SinkSettings = Annotated[
        Union[tuple(kind.settings for kind in KINDS.values())],  # noqa: UP007  of as many as there are kinds
        Field(discriminator="type"),
    ]
    """Settings of any sink; ``type`` says which."""


def kind_of(settings: SinkSettings) -> SinkKind:
    return KINDS[settings.type]


def open_sink(name: str, settings: SinkSettings, generation: int) -> OpenedSink:
    """The destination of these settings, opened for one generation. It connects when it is first used."""
    opened = kind_of(settings).open(name, settings, generation)
    projection, renaming = settings.projection(), settings.renaming()
    keeps_names = settings.schema_changes == "keep"
    if not (projection or renaming or keeps_names):
        return opened
    from sinks.wrappers.projecting import ProjectingErasing, ProjectingSink

    sink = ProjectingSink(opened, projection, generation, renaming=renaming, keeps_names=keeps_names)
    erasing = None if opened.erasing is None else ProjectingErasing(sink, opened.erasing)
    return replace(opened, sink=sink, erasing=erasing)


def load_client(settings: SinkSettings) -> None:
    """Load the client library of a sink now, for callers that measure how long its server takes to answer.

    Otherwise the first connection loads it. That takes tenths of a second, and many times as long on a busy machine.
    """
    import_module(kind_of(settings).client)


def projection_of(settings: SinkSettings) -> Projection:
    """Which part of the source's rows this sink holds: a comparison applies it to the source's side."""
    return settings.projection()


def setting_problems(settings: SinkSettings, tables: Sequence[Table]) -> list[str]:
    """Why a new generation of these source tables would refuse these settings. Expressions aren't checked."""
    projection, renaming = settings.projection(), settings.renaming()
    seen = [projection.table(table) for table in tables]
    problems = projection.key_problems(tables) + projection.clash_problems(tables)
    problems += projection.unknown_problems(tables) + renaming.unknown_problems(seen) + renaming.clash_problems(seen)
    return problems + settings.problems_with([renaming.table(table) for table in seen])


def problems_at_work(settings: SinkSettings, tables: Sequence[Table]) -> list[str]:
    """Settings that don't fit these tables of the source but stop no job, a sentence each."""
    projection, renaming = settings.projection(), settings.renaming()
    return settings.problems_at_work([renaming.table(projection.table(table)) for table in tables])


def unfit_tables(name: str, settings: SinkSettings, tables: Sequence[Table]) -> Mapping[TableName, LockstepError]:
    projection, renaming = settings.projection(), settings.renaming()
    return settings.unfit(name, [renaming.table(projection.table(table)) for table in tables])


def check_new_generation(name: str, settings: SinkSettings, tables: Sequence[Table]) -> str:
    projection, renaming = settings.projection(), settings.renaming()
    seen = [renaming.table(projection.table(table)) for table in tables]
    return kind_of(settings).check_new(name, settings, seen)


def history_tables(settings: SinkSettings, tables: Iterable[TableName]) -> frozenset[TableName]:
    """Those of a sink's tables, all with a key, of which it keeps all versions."""
    if not settings.keeps_history:
        return frozenset()
    return frozenset(tables) & settings.history_tables if settings.history_tables else frozenset(tables)


def definition(settings: SinkSettings) -> dict[str, JsonValue]:
    """The settings that shape a generation's data, as JSON."""
    return cast("dict[str, JsonValue]", settings.model_dump(mode="json", include=set(settings.SHAPING)))


def changed_settings(then: Mapping[str, JsonValue], today: Mapping[str, JsonValue]) -> list[str]:
    """The settings in which two definitions differ, by their names in the configuration. Pure.

    ``then`` has every setting that ``today`` has: ``with_definition`` adds defaults of settings that are newer than a
    stored definition. A view's settings are those of its section: ``sql``, ``key``, ``top``, ``retain`` and ``tasks``.
    Of these, a missing one has its default.
    """
    changed = list[str]()
    for name in sorted(today):
        before, now = then[name], today[name]
        if isinstance(before, dict) and isinstance(now, dict) and name == "view":
            changed += sorted(part for part in now if now[part] != before.get(part, _default_of_view(part)))
        elif before != now:
            changed.append(name)
    return changed


def _default_of_view(setting: str) -> JsonValue:
    return cast("JsonValue", ViewSettings.model_fields[setting].get_default())


def with_definition(settings: SinkSettings, shaping: Mapping[str, JsonValue]) -> SinkSettings:
    """These settings with a definition's shape; missing ones have defaults. Raises LockstepError if it doesn't fit."""
    unknown = sorted(set(shaping) - settings.SHAPING)
    if unknown:
        raise LockstepError(
            f"the definition of a generation has settings that a sink of type {settings.type!r} doesn't know: "
            f"{', '.join(unknown)}",
            hint="another version of Lockstep wrote it; use that one, or rebuild the sink from the log",
        )
    fields = type(settings).model_fields
    values: dict[str, Any] = {name: getattr(settings, name) for name in fields}
    for name in settings.SHAPING:
        values[name] = shaping[name] if name in shaping else fields[name].get_default(call_default_factory=True)
    try:
        return type(settings).model_validate(values)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)
        )
        raise LockstepError(
            f"the definition of a generation doesn't fit a sink of type {settings.type!r}: {problems}",
            hint="a salt that it was built with has to be there until that generation is dropped; else another version "
            "of Lockstep"
            " wrote it: use that one, or rebuild the sink from the log",
        ) from None
