"""The indexes of one generation: creates, evolves and finds them, and knows what each holds."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from cdc.model.errors import ConfigurationError, LockstepError, NeedsRebuild
from cdc.model.table import Table, TableName
from sinks.columns.shape import Shape, unprepared
from sinks.opensearch.answers import require_all
from sinks.opensearch.bookkeeping import Bookkeeping
from sinks.opensearch.client import OpenSearchClient, shaping
from sinks.opensearch.documents import Target
from sinks.opensearch.mapping import DELETED_FIELD, field_name, mapping
from sinks.opensearch.names import PREFIX, OwnIndex, alias_name, fence_of, own_indexes, writer_alias
from sinks.opensearch.settings import OpenSearchSettings, flat_settings

LIVE: Final[Mapping[str, Any]] = {"bool": {"must_not": {"term": {DELETED_FIELD: True}}}}
"""The query for documents that are rows."""

_SIMULATE: Final = "/_index_template/_simulate"
_NOT_FOR_US: Final = (403, 404, 405)
"""Statuses of a request that our role may not make, or that the server doesn't know."""

_ABOVE_OTHERS: Final = 1_000_000_000
"""The priority of a template that is only tried, so that no other template of the server applies."""

GC_DELETES_S: Final = 3600
"""How long the server remembers a deletion's version. This costs memory; later writes are rare."""

_NEVER: Final = "-1"  # as refresh_interval: only on request


class HeldIndex(NamedTuple):
    shape: Shape
    properties: Mapping[str, Mapping[str, Any]]


class OpenSearchIndexes:
    """The indexes of one generation of a sink. Connects at the first call.

    ``of_generation`` is the pattern of the generation's indexes. ``targets`` are the indexes that were looked at, by
    table. With ``fences``, one job at a time may write, as for a view's result. ``claimed`` is this object's fence.
    Raises ConfigurationError for a prefix that can't begin an index name.
    """

    def __init__(self, name: str, settings: OpenSearchSettings, generation: int) -> None:
        self.name = name
        self.prefix = settings.prefix or name
        if not PREFIX.fullmatch(self.prefix):
            raise ConfigurationError(
                f"sink {name!r}: {self.prefix!r} can't begin an index name",
                hint="set prefix to lower-case letters, digits, '_' and '-'",
            )
        self.settings = settings
        self.generation = generation
        self.of_generation = f"{self.prefix}.*_g{generation}"
        self.client = OpenSearchClient(settings)
        self.bookkeeping = Bookkeeping(self.client, name, prefix=self.prefix, replicas=settings.replicas)
        self.targets: dict[TableName, Target] = {}
        self.fences = settings.view is not None
        self.claimed = 0
        self._fence = 0
        self._names = settings.table_names()

    def alias(self, name: TableName) -> str:
        """The name by which readers find a table. Raises LockstepError when it is too long."""
        return alias_name(self.prefix, name, self._names, is_fenced=self.fences)

    def index(self, name: TableName) -> str:
        """A table's index in this generation. Raises LockstepError when its name is too long."""
        return f"{self.alias(name)}_g{self.generation}"

    # Of one table

    def prepare(self, tables: Sequence[Table]) -> None:
        """Create the tables' indexes, or add the fields that they lack.

        Raises ConfigurationError when the settings don't fit new tables, and LockstepError when an index has another
        shape.
        """
        before = {table.name: self.held(self.index(table.name)) for table in tables}
        self._check([table for table in tables if before[table.name] is None])
        self._give_back_aliases([self.index(name) for name, held in before.items() if held is not None])
        for table in tables:
            index = self.index(table.name)
            held = before[table.name]
            if held is None:
                with shaping(table.name):
                    self.client.create_index(index, self._mapping(Shape.of(table)), self._index_settings(table))
                # Another job may have created it just now: then its shape is compared like any other.
                held = self.held(index)
                if held is None:
                    raise unprepared(table.name)
            self.targets[table.name] = self._target(index, self._evolved(index, held, table))

    def _give_back_aliases(self, indexes: Sequence[str]) -> None:
        """Restore the writing aliases of these indexes if somebody has removed them."""
        aliases = self._aliases() if indexes else {}
        lacking = [index for index in indexes if f"{index}_W" not in aliases.get(index, ())]
        if lacking:
            actions = [{"add": {"index": index, "alias": f"{index}_W"}} for index in lacking]
            self.client.call("POST", "/_aliases", {"actions": actions})

    def check_new(self, tables: Sequence[Table]) -> str:
        """Ask the server whether it would create these tables' indexes. Creates nothing.

        Returns why nothing is known, or "" if the server has answered. Jobs don't need that request, so our role may
        lack the right to it, or the server may not have it. Raises LockstepError with the server's reason: a missing
        analyzer, or a parameter that a field can't have.
        """
        for table in tables:
            made = {"settings": self._index_settings(table), "mappings": self._mapping(Shape.of(table))}
            body = {"index_patterns": [self.index(table.name)], "priority": _ABOVE_OTHERS, "template": made}
            try:
                with shaping(table.name):
                    self.client.call("POST", _SIMULATE, body)
            except LockstepError as error:
                status = getattr(error.__cause__, "status_code", None)
                if status in _NOT_FOR_US:
                    return f"POST {_SIMULATE} is answered with {status}"
                raise
        return ""

    def look_at(self, table: TableName) -> Target:
        """Where a table's documents go, by its index's present state. Raises LockstepError if there is none."""
        index = self.index(table)
        held = self.held(index)
        if held is None:
            raise unprepared(table)
        return self._target(index, held)

    def look_up_in(self, table: Table) -> Target:
        """Like ``look_at``, to find rows by their keys. Raises ConfigurationError if settings name other columns."""
        if problems := self.settings.key_problems(table):
            raise ConfigurationError("; ".join(problems), hint="mend them, and rebuild the sink: lockstep rebuild")
        return self.look_at(table.name)

    def look_again_at(self, table: TableName) -> Target:
        """Like ``look_at``; stores the result in ``targets``."""
        target = self.targets[table] = self.look_at(table)
        return target

    def held(self, index: str) -> HeldIndex | None:
        """What an index holds; None if it doesn't exist. Raises LockstepError for an index that isn't ours."""
        # A node that has just started knows no index yet, and answers that a single named one doesn't exist. With these
        # parameters it first checks whether it can answer.
        lenient = {"ignore_unavailable": "true", "allow_no_indices": "true"}
        answer = self.client.call("GET", f"/{index}/_mapping", parameters=lenient)
        if index not in answer:
            return None
        mappings = answer[index]["mappings"]
        meta = mappings.get("_meta") or {}
        if "lockstep_shape" not in meta:
            raise LockstepError(f"index {index!r} isn't ours", hint="remove it, or set another prefix for this sink")
        return HeldIndex(Shape.from_json(meta["lockstep_shape"]), mappings["properties"])

    def write_as(self, fence: int) -> None:
        """From now on, ``targets`` are written through the alias of the writer with this fence."""
        if self.fences and fence != self._fence:
            self._fence = fence
            self.targets.clear()

    def writer_aliases(self) -> dict[str, list[str]]:
        aliases = self._aliases()
        mine = [index.name for index in own_indexes(aliases) if index.generation == self.generation]
        return {index: [alias for alias in aliases[index] if fence_of(index, alias)] for index in mine}

    def uuids(self) -> dict[str, str]:
        """The cluster's own ids of this generation's indexes, and of the bookkeeping index, by name.

        An index that is created again, or put back from a snapshot under its name, has another id.
        """
        self.bookkeeping.check_format()
        # As in ``held``: a node that has just started checks whether it can answer. Closed indexes count.
        lenient = {"ignore_unavailable": "true", "allow_no_indices": "true", "expand_wildcards": "all"}
        path = f"/{self.of_generation},{self.bookkeeping.index}/_settings/index.uuid"
        answer = self.client.call("GET", path, parameters={**lenient, "flat_settings": "true"})
        return {name: held["settings"]["index.uuid"] for name, held in answer.items()}

    def histories(self) -> dict[str, list[str]]:
        """By index of this generation, the ids of its shards' histories, as ``shard:id``; "" is the id of an absent
        shard.

        An id changes when an index is put back in place, or when a shard begins anew without its data. Empty if our
        user may not ask for it.
        """
        fields = "indices.*.shards.*.routing.primary,indices.*.shards.*.commit.user_data.history_uuid"
        wanted = {"level": "shards", "forbid_closed_indices": "false", "expand_wildcards": "all", "filter_path": fields}
        try:
            answer = self.client.call("GET", f"/{self.of_generation}/_stats/docs", parameters=wanted)
        except LockstepError as error:
            if getattr(error.__cause__, "status_code", None) in _NOT_FOR_US:
                return {}
            raise
        return {
            index: [f"{number}:{_history_of(copies)}" for number, copies in sorted(stats.get("shards", {}).items())]
            for index, stats in (answer or {}).get("indices", {}).items()
        }

    # Of all generations

    def all_own(self) -> list[OwnIndex]:
        return list(own_indexes(self._aliases()))

    def undisturbed(self) -> list[OwnIndex]:
        """Like ``all_own``. Raises LockstepError when somebody pointed a name that readers use to something else."""
        aliases = self._aliases()
        own = list(own_indexes(aliases))
        names = {index.name for index in own}
        for reading in sorted({index.alias for index in own}):
            if reading in aliases:
                raise LockstepError(
                    f"there is an index named {reading!r}: that is the alias by which readers find this sink's live "
                    "rows",
                    hint="it is nothing of Lockstep's: move it to another name, or remove it, then try again",
                )
            strangers = [index for index in sorted(aliases) if reading in aliases[index] and index not in names]
            if strangers:
                raise LockstepError(
                    f"alias {reading!r}, by which readers find this sink's live rows, points to index "
                    f"{strangers[0]!r}, "
                    "which isn't this sink's",
                    hint="it was moved by hand: point it back or remove it there, then try again; nothing was changed",
                )
        return own

    def live(self) -> int | None:
        """The generation to which the aliases point. Raises LockstepError if they point to several."""
        live = sorted({index.generation for index in self.undisturbed() if index.is_live})
        if len(live) > 1:  # a switch moves all aliases in one request
            raise LockstepError(
                f"the aliases that readers use point to generations {' and '.join(map(str, live))} at once",
                hint="one of them was moved by hand; switch to the generation that is meant to be live",
            )
        return live[0] if live else None

    def move_aliases(self, *, to: Iterable[tuple[str, str]], away_from: Iterable[tuple[str, str]] = ()) -> None:
        """Move reading aliases, all at once. Each pair is an index and its alias."""
        actions: list[dict[str, Any]] = [{"remove": {"index": index, "alias": alias}} for index, alias in away_from]
        # Filtered whatever the setting is: there may be markers from a time when it differed.
        actions += [{"add": {"index": index, "alias": alias, "filter": LIVE}} for index, alias in to]
        self.client.call("POST", "/_aliases", {"actions": actions})

    def remove_markers(self, query: Mapping[str, Any]) -> None:
        """Have the cluster gradually remove these markers of this generation. It remembers them like any deletion."""
        parameters = {"conflicts": "proceed", "wait_for_completion": "false", "allow_no_indices": "true"}
        path = f"/{self.of_generation}/_delete_by_query"
        self.client.call("POST", path, {"query": query}, parameters)

    # Bulk load

    def in_bulk(self) -> list[str]:
        path = f"/{self.of_generation}/_settings/index.refresh_interval"
        answer = self.client.call("GET", path, parameters={"flat_settings": "true"})
        return [name for name, held in answer.items() if held["settings"].get("index.refresh_interval") == _NEVER]

    def begin_bulk(self, index: str) -> None:
        self._change_settings(index, {"refresh_interval": _NEVER, "number_of_replicas": 0})

    def end_bulk(self, index: str) -> None:
        # Refreshed first: whoever sees the changed interval may rely on finding the rows.
        self.refresh(index)
        normal = {"refresh_interval": self._refresh_interval, "number_of_replicas": self.settings.replicas}
        self._change_settings(index, normal)

    def refresh(self, index: str) -> None:
        """From now on readers find what was written before. ``index`` may be a pattern.

        Raises Unavailable if a copy has failed: OpenSearch reports success nevertheless.
        """
        require_all(self.client.call("POST", f"/{index}/_refresh"))

    def _aliases(self) -> Mapping[str, frozenset[str]]:
        """All indexes with a name or an alias of ours, with their aliases."""
        self.bookkeeping.check_format()
        answer = self.client.call("GET", f"/{self.prefix}.*/_alias", parameters={"expand_wildcards": "all"})
        return {index: frozenset(held["aliases"]) for index, held in answer.items()}

    def _change_settings(self, index: str, settings: Mapping[str, Any]) -> None:
        self.client.call("PUT", f"/{index}/_settings", {"index": settings})

    def _check(self, tables: Sequence[Table]) -> None:
        """Raise ConfigurationError with all settings that don't fit these new tables."""
        problems = self.settings.problems_with(tables)
        if problems:
            raise ConfigurationError(
                "settings of this sink don't fit its tables",
                problems=problems,
                hint="mend fields, ids or routing of this sink",
            )

    def _evolved(self, index: str, held: HeldIndex, table: Table) -> HeldIndex:
        """The index with all fields of the table. Raises LockstepError when it holds another table or shape."""
        if held.shape.table.name != table.name:
            raise NeedsRebuild(
                f"index {index!r} holds table {held.shape.table.name}, not {table.name}",
                hint="names of this sink were changed: rebuild it from the log: lockstep rebuild",
            )
        evolved = held.shape.evolve(table)
        if evolved == held.shape:
            return held
        wanted = self._mapping(evolved, held.properties)
        with shaping(table.name):
            without_dynamic = {name: value for name, value in wanted.items() if name != "dynamic"}
            self.client.call("PUT", f"/{index}/_mapping", without_dynamic)
        return HeldIndex(evolved, wanted["properties"])

    def _mapping(self, shape: Shape, held: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> dict[str, Any]:
        """A table's mapping. The index's ``held`` fields stay, unless the settings name them."""
        table = shape.table.name
        fields = self.settings.fields_of(table)
        made = mapping(shape, fields, is_routed=bool(self.settings.routing_of(table)))
        spoken_of = set(map(field_name, fields))
        kept = {name: held[name] for name in made["properties"] if name in held and name not in spoken_of}
        return {**made, "properties": {**made["properties"], **kept}}

    def _index_settings(self, table: Table) -> dict[str, Any]:
        return {
            "number_of_replicas": self.settings.replicas,
            **flat_settings(self.settings.index_settings),
            "number_of_shards": self.settings.shards,
            "refresh_interval": self._refresh_interval,
            "gc_deletes": f"{GC_DELETES_S}s",
            # Sub-fields also count, and PostgreSQL allows 1600 columns.
            "mapping.total_fields.limit": max(1000, 4 * len(table.columns) + 100),
        }

    @property
    def _refresh_interval(self) -> str:
        return f"{self.settings.refresh_interval_ms}ms"

    def _target(self, index: str, held: HeldIndex) -> Target:
        name = held.shape.table.name
        return Target(
            writer_alias(index, self._fence),
            held.shape,
            deletes_leave_markers=self.settings.deletes == "marker",
            fields=self.settings.fields_of(name),
            properties=held.properties,
            id_template=self.settings.id_of(name),
            routing=self.settings.routing_of(name),
        )


def _history_of(copies: Sequence[Mapping[str, Any]]) -> str:
    """The history of a shard's primary, which other copies share."""
    return next((str(copy["commit"]["user_data"]["history_uuid"]) for copy in copies if copy["routing"]["primary"]), "")
