"""A sink's settings -> the sink: the one file that knows them all. Importing it loads no client library.

A sink's code is loaded with the first that is opened: every command reads settings, and few write rows.

Some settings shape the data of a generation, and every other may change while it lives. Each settings class names the
former in ``SHAPING``; ``definition`` takes them out, to be kept with a generation, and ``with_definition`` puts them
back into what the configuration says today.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Annotated, Any, Final, assert_never, cast

from pydantic import Field, ValidationError

from cdc.model.errors import LockstepError
from cdc.model.event import JsonValue
from cdc.model.table import Table, TableName
from sinks.contract import OpenedSink
from sinks.delta.settings import DeltaSettings
from sinks.opensearch.settings import OpenSearchSettings
from sinks.redis.settings import RedisSettings
from sinks.view_settings import ViewSettings
from sinks.warehouse.settings import WarehouseSettings
from sinks.wrappers.projection import Projection

SinkSettings = Annotated[
    OpenSearchSettings | RedisSettings | WarehouseSettings | DeltaSettings, Field(discriminator="type")
]
"""Settings of any sink; ``type`` says which."""


def open_sink(name: str, settings: SinkSettings, generation: int) -> OpenedSink:
    """The destination of these settings, opened for one generation. It connects when it is first used."""
    opened = _open(name, settings, generation)
    projection, renaming = settings.projection(), settings.renaming()
    keeps_names = settings.schema_changes == "keep"
    if not (projection or renaming or keeps_names):
        return opened
    from sinks.wrappers.projecting import ProjectingSink

    return replace(
        opened, sink=ProjectingSink(opened, projection, generation, renaming=renaming, keeps_names=keeps_names)
    )


def _open(name: str, settings: SinkSettings, generation: int) -> OpenedSink:
    match settings:
        case OpenSearchSettings():
            from sinks.opensearch.sink import open_opensearch

            return open_opensearch(name, settings, generation)
        case RedisSettings():
            from sinks.redis.sink import open_redis

            return open_redis(name, settings, generation)
        case WarehouseSettings():
            from sinks.warehouse.sink import open_warehouse

            return open_warehouse(name, settings, generation)
        case DeltaSettings():
            from sinks.delta.sink import open_delta

            return open_delta(name, settings, generation)
        case _:
            assert_never(settings)


_CLIENTS: Final = {"opensearch": "opensearchpy", "redis": "redis", "warehouse": "sqlalchemy", "delta": "deltalake"}


def load_client(settings: SinkSettings) -> None:
    """Load the client library of a sink now: for who measures how long its server takes to answer.

    Else the first connection does. That takes tenths of a second, and many times as long on a busy machine.
    """
    import_module(_CLIENTS[settings.type])


def projection_of(settings: SinkSettings) -> Projection:
    """What of the source's rows this sink holds: to be applied to the source's side of a comparison."""
    return settings.projection()


def setting_problems(settings: SinkSettings, tables: Sequence[Table]) -> list[str]:
    """What of these settings a new generation of these tables of the source would refuse, a sentence each.

    Expressions aren't looked at: that takes Spark.
    """
    projection, renaming = settings.projection(), settings.renaming()
    seen = [projection.table(table) for table in tables]
    problems = projection.key_problems(tables) + projection.clash_problems(tables)
    problems += projection.unknown_problems(tables) + renaming.unknown_problems(seen) + renaming.clash_problems(seen)
    return problems + settings.problems_with([renaming.table(table) for table in seen])


def problems_at_work(settings: SinkSettings, tables: Sequence[Table]) -> list[str]:
    """What of these settings doesn't fit these tables of the source and stops no job, a sentence each."""
    projection, renaming = settings.projection(), settings.renaming()
    return settings.problems_at_work([renaming.table(projection.table(table)) for table in tables])


def check_new_generation(name: str, settings: SinkSettings, tables: Sequence[Table]) -> str:
    """Have the sink's server say whether it would take a new generation of these tables of the source, where it can.

    Nothing is created. Returns why it can't say, "" where nothing is left to be known. Raises LockstepError with its
    reason, Unavailable when it doesn't answer.
    """
    if isinstance(settings, OpenSearchSettings):
        from sinks.opensearch.indexes import OpenSearchIndexes

        projection, renaming = settings.projection(), settings.renaming()
        indexes = OpenSearchIndexes(name, settings, 1)
        try:
            return indexes.check_new([renaming.table(projection.table(table)) for table in tables])
        finally:
            indexes.client.close()
    return ""


def why_late_writes_are_unseen(name: str, settings: SinkSettings) -> str:
    """Why a job that takes a view over can't see a write of the job before that its server has begun; "" where it can.

    Raises LockstepError with the server's reason, Unavailable when it doesn't answer.
    """
    if isinstance(settings, OpenSearchSettings) and settings.view is not None:
        from sinks.opensearch.indexes import OpenSearchIndexes
        from sinks.opensearch.writer_aliases import WriterAliases

        indexes = OpenSearchIndexes(name, settings, 1)
        try:
            return WriterAliases(indexes).why_unseen()
        finally:
            indexes.client.close()
    return ""


def history_tables(settings: SinkSettings, tables: Iterable[TableName]) -> frozenset[TableName]:
    """Those of a sink's tables, which all have a key, of which it keeps all versions."""
    if not isinstance(settings, WarehouseSettings) or not settings.keeps_history:
        return frozenset()
    return frozenset(tables) & settings.history_tables if settings.history_tables else frozenset(tables)


def definition(settings: SinkSettings) -> dict[str, JsonValue]:
    """The settings that shape a generation's data, as JSON."""
    return cast("dict[str, JsonValue]", settings.model_dump(mode="json", include=set(settings.SHAPING)))


def changed_settings(then: Mapping[str, JsonValue], today: Mapping[str, JsonValue]) -> list[str]:
    """The settings in which two definitions differ, by the names that they have in the configuration. Pure.

    Those of a view are settings of its section: ``sql``, ``key``, ``top``, ``retain`` and ``tasks``. One that
    was built before there was such a setting has its default.
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
    """These settings, but shaped as the definition says; what it lacks has its default. Raises LockstepError for one
    that isn't of this kind of sink."""
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
