"""Rows as documents in OpenSearch, one index per table and generation. ``docs/sinks/opensearch.md`` says what is where.

The tag is the document's external version (``cdc.model.tag``): the server refuses older writes.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson

from cdc.model.errors import ConfigurationError, LockstepError, Unavailable
from cdc.model.event import Events, JsonValue, RowEvent, TableEvents
from cdc.model.table import Table, TableName
from sinks.columns.shape import Shape, unknown_column, unprepared
from sinks.contract import NOTHING_ADDED, AddedValues, Batch, OpenedSink, Outcome, Progress, Rejection, StoredRow
from sinks.opensearch.answers import RETRY_AFTER_S, Verdict, refusal, stopping, unreadable, verdict
from sinks.opensearch.client import Answers, OpenSearchClient, shaping
from sinks.opensearch.documents import Target
from sinks.opensearch.mapping import DELETED_FIELD, field_name, mapping
from sinks.opensearch.names import BOOKKEEPING, PREFIX, OwnIndex, alias_name, own_indexes
from sinks.opensearch.settings import OpenSearchSettings, flat_settings
from sinks.progress_json import dump_progress, load_progress
from sinks.stored_format import STORED_FORMAT, check_stored_format

# Enough that the server's work hides the round trip, little enough for its memory (http.max_content_length is 100 MB).
_BULK_BYTES: Final = 5 * 1024 * 1024
_BULK_DOCUMENTS: Final = 10_000
# The next requests are made while the server is at work on one.
_IN_FLIGHT: Final = 2
# Items that the server had no room for are sent again at once, in smaller requests; after that the caller waits.
_ROUNDS: Final = 3

_LIVE: Final[Mapping[str, Any]] = {"bool": {"must_not": {"term": {DELETED_FIELD: True}}}}

_SCAN_DOCUMENTS: Final = 2000
_NEVER: Final = "-1"  # as refresh_interval: when asked to only
_RECORDS_MAX: Final = 10_000  # max_result_window; a pipeline has a handful
_SCAN_KEEP_ALIVE: Final = "5m"


def _record_id(name: str) -> str:
    return f"coordination.{name}"


class _Item(NamedTuple):
    """An event on its way. ``searchable``: with copies of its JSON and ranges for searching."""

    events: TableEvents
    row_index: int
    searchable: bool = True

    @property
    def event(self) -> RowEvent:
        return self.events[self.row_index]


class _Held(NamedTuple):
    """A table's index as it is: the shape that it was made for, and its fields."""

    shape: Shape
    properties: Mapping[str, Mapping[str, Any]]


def open_opensearch(name: str, settings: OpenSearchSettings, generation: int) -> OpenedSink:
    """The destination opened for one generation. It connects when it is first used."""
    sink = OpenSearchSink(name, settings, generation)
    return OpenedSink(sink, sink, sink)


class OpenSearchSink:
    """Applies events to an OpenSearch cluster. Connects at the first call."""

    def __init__(self, name: str, settings: OpenSearchSettings, generation: int) -> None:
        self._settings = settings
        self._generation = generation
        self._prefix = settings.prefix or name
        if not PREFIX.fullmatch(self._prefix):
            raise ConfigurationError(
                f"sink {name!r}: {self._prefix!r} can't begin an index name",
                hint="set prefix to lower-case letters, digits, '_' and '-'",
            )
        self._bookkeeping_index = f"{self._prefix}.{BOOKKEEPING}"
        self._names = settings.table_names()
        self._name = name
        self._format_is_checked = False
        self._client = OpenSearchClient(settings)
        self._targets: dict[TableName, Target] = {}
        # Less where the cluster, or a proxy before it, takes less in a request.
        self._bulk_bytes = _BULK_BYTES

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        alias_names = [self._alias(table.name) for table in tables]
        self._create_bookkeeping_index()
        before = {table.name: self._held(self._index(table.name)) for table in tables}
        self._check([table for table in tables if before[table.name] is None])
        for table in tables:
            index = self._index(table.name)
            held = before[table.name]
            if held is None:
                with shaping(table.name):
                    self._create(index, self._mapping(Shape.of(table)), self._index_settings(table))
                # Another job may have created it just now: then its shape is compared like any other.
                held = self._held(index)
                if held is None:
                    raise unprepared(table.name)
            if held.shape.table.name != table.name:
                raise LockstepError(
                    f"index {index!r} holds table {held.shape.table.name}, not {table.name}",
                    hint="names of this sink were changed: rebuild it from the log: lockstep rebuild",
                )
            evolved = held.shape.evolve(table)
            if evolved != held.shape:
                wanted = self._mapping(evolved, held.properties)
                with shaping(table.name):
                    self._client.call("PUT", f"/{index}/_mapping", _without_dynamic(wanted))
                held = _Held(evolved, wanted["properties"])
            self._targets[table.name] = self._target(index, held)
        live = self.live()
        if alias_names and (live == self._generation or (live is None and go_live and not self._loading())):
            adds = [_add(f"{alias}_g{self._generation}", alias) for alias in alias_names]
            self._client.call("POST", "/_aliases", {"actions": adds})
        return added

    def begin_bulk(self) -> None:
        """Has no effect on the live generation: its readers would wait for every row until ``end_bulk``."""
        mine = [index for index in self._undisturbed() if index.generation == self._generation]
        if not any(index.is_live for index in mine):
            for index in mine:
                self._change_settings(index.name, {"refresh_interval": _NEVER, "number_of_replicas": 0})

    def end_bulk(self) -> None:
        self._check_format()
        loading = self._loading()
        for index in loading:
            normal = {"refresh_interval": self._refresh_interval, "number_of_replicas": self._settings.replicas}
            # Refreshed first: who sees the interval changed may rely on finding the rows.
            self._client.call("POST", f"/{index}/_refresh")
            self._change_settings(index, normal)

    def claim(self) -> int:
        """Returns 0: the server can't fence, the versions alone keep two writers right."""
        return 0

    def fence(self) -> int:
        """Returns 0, as ``claim`` does."""
        return 0

    def apply(self, batch: Batch) -> Outcome:
        self._check_format()
        events = Events.of(batch.events)
        for table_events in events.tables:
            if table_events.table not in self._targets:
                self._aim_at(table_events.table)
        applied = stale = 0
        rejections: list[Rejection] = []
        pending = [
            _Item(table_events, row_index) for table_events in events.tables for row_index in range(len(table_events))
        ]
        documents_max = _BULK_DOCUMENTS
        rounds = 0
        while pending and rounds < _ROUNDS:
            again: list[_Item] = []
            is_too_long = False
            for items, answers in self._answers(
                self._requests(pending, documents_max, overwrite_equal_tags=batch.overwrite_equal_tags)
            ):
                if answers is None:
                    applied += len(items)
                    continue
                if len(items) > 1 and answers[0][0] == 413:
                    again += items
                    is_too_long = True
                    continue
                for item, (status, error) in zip(items, answers, strict=True):
                    match verdict(status, None if error is None else error["type"]):
                        case Verdict.APPLIED:
                            applied += 1
                        case Verdict.STALE:
                            stale += 1
                        case Verdict.AGAIN:
                            again.append(item)
                        case Verdict.REJECTED:
                            assert error is not None
                            if self._knew_too_little(item.event):
                                again.append(item)
                            elif item.searchable and self._targets[item.events.table].has_copies:
                                # The copies for searching may be what it can't index, and the row comes first.
                                again.append(item._replace(searchable=False))
                            else:
                                rejections.append(Rejection(item.event, refusal(error)))
                        case Verdict.STOP:
                            assert error is not None
                            raise stopping(status, error["type"])
            pending = again
            if is_too_long:
                # Doesn't count: it ends by itself, at the latest when each document goes alone.
                self._bulk_bytes = max(1, self._bulk_bytes // 4)
            else:
                rounds += 1
                documents_max = max(1, documents_max // 4)
        if not pending:
            return Outcome(applied, stale, rejections)
        raise Unavailable(
            f"opensearch has no room for {len(pending)} of {len(events)} documents now",
            retry_after_s=RETRY_AFTER_S,
        )

    def load_progress(self) -> Progress | None:
        self._check_format()
        path = f"/{self._bookkeeping_index}/_doc/progress.g{self._generation}"
        answer = self._client.call("GET", path, missing_ok=True)
        return load_progress(orjson.dumps(answer["_source"])) if answer and answer.get("found") else None

    def save_progress(self, progress: Progress) -> None:
        self._check_format()
        path = f"/{self._bookkeeping_index}_W/_doc/progress.g{self._generation}"
        self._client.call("PUT", path, dump_progress(progress), {"require_alias": "true"})

    def live(self) -> int | None:
        live = sorted({index.generation for index in self._undisturbed() if index.is_live})
        if len(live) > 1:  # one request moves all aliases
            raise LockstepError(
                f"the aliases that readers use point to generations {' and '.join(map(str, live))} at once",
                hint="somebody moved one of them by hand; switch to the generation that is meant to be live",
            )
        return live[0] if live else None

    def numbers(self) -> list[int]:
        return sorted({index.generation for index in self._indexes()[0]})

    def switch(self) -> None:
        indexes = self._undisturbed()
        mine = [index for index in indexes if index.generation == self._generation]
        if not mine:
            raise LockstepError(
                f"generation {self._generation} doesn't exist", hint="it was never prepared, or it was dropped"
            )
        if self._loading():
            raise LockstepError(
                f"generation {self._generation} is still being loaded in bulk", hint="switch when its load has ended"
            )
        # What is written and not yet refreshed would be missing for readers until the next refresh.
        self._client.call("POST", f"/{self._prefix}.*_g{self._generation}/_refresh")
        actions = [
            {"remove": {"index": index.name, "alias": index.alias}}
            for index in indexes
            if index.is_live and index.generation != self._generation
        ]
        actions += [_add(index.name, index.alias) for index in mine]
        self._client.call("POST", "/_aliases", {"actions": actions})

    def keep_only(self, tables: Collection[TableName]) -> list[TableName]:
        others = []
        for index in self._undisturbed():
            held = self._held(index.name) if index.generation == self._generation else None
            if held is not None and held.shape.table.name not in tables:
                self._client.call("DELETE", f"/{index.name}", missing_ok=True)  # with its aliases
                self._targets.pop(held.shape.table.name, None)
                others.append(held.shape.table.name)
        return sorted(others)

    def drop(self) -> None:
        mine = [index for index in self._indexes()[0] if index.generation == self._generation]
        if any(index.is_live for index in mine):
            raise LockstepError(
                f"generation {self._generation} is live", hint="switch to another generation before you drop this one"
            )
        for index in mine:
            self._client.call("DELETE", f"/{index.name}", missing_ok=True)
        self._client.call("DELETE", f"/{self._bookkeeping_index}/_doc/progress.g{self._generation}", missing_ok=True)
        for document in self._record_documents():
            if document.startswith(_record_id(f"g{self._generation}.")):
                self._client.call("DELETE", f"/{self._bookkeeping_index}/_doc/{document}", missing_ok=True)
        self._targets.clear()

    def load(self, name: str) -> str | None:
        self._check_format()
        answer = self._client.call("GET", f"/{self._bookkeeping_index}/_doc/{_record_id(name)}", missing_ok=True)
        return str(answer["_source"]["text"]) if answer and answer.get("found") else None

    def save(self, name: str, text: str | None) -> None:
        if text is None:
            self._client.call("DELETE", f"/{self._bookkeeping_index}/_doc/{_record_id(name)}", missing_ok=True)
        else:
            self._create_bookkeeping_index()
            path = f"/{self._bookkeeping_index}_W/_doc/{_record_id(name)}"
            self._client.call("PUT", path, {"text": text}, {"require_alias": "true"})

    def create(self, name: str, text: str) -> bool:
        self._create_bookkeeping_index()
        path = f"/{self._bookkeeping_index}_W/_create/{_record_id(name)}"
        there = ("version_conflict_engine_exception",)
        return (
            self._client.call("PUT", path, {"text": text}, {"require_alias": "true"}, passing_errors=there) is not None
        )

    def scan(self, table: Table) -> Iterator[StoredRow]:
        self._check_format()
        index = self._index(table.name)
        target = self._target_of(table.name)
        self._client.call("POST", f"/{index}/_refresh")
        query = {"size": _SCAN_DOCUMENTS, "sort": ["_doc"], "query": _LIVE}
        page = self._client.call("POST", f"/{index}/_search", query, {"scroll": _SCAN_KEEP_ALIVE})
        try:
            while _is_whole(page)["hits"]["hits"]:
                for hit in page["hits"]["hits"]:
                    yield target.stored(hit["_source"], table)
                again = {"scroll": _SCAN_KEEP_ALIVE, "scroll_id": page["_scroll_id"]}
                page = self._client.call("POST", "/_search/scroll", again)
        finally:
            self._client.call("DELETE", "/_search/scroll", {"scroll_id": [page["_scroll_id"]]}, missing_ok=True)

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        self._check_format()
        index = self._index(table.name)
        target = self._target_of(table.name)
        identities = [target.identity({name: key[name] for name in table.key}) for key in keys]
        documents = list({identity["_id"]: identity for identity in identities}.values())
        if not documents:
            return
        # By id, hence as of now: the server looks into what it hasn't refreshed yet.
        wanted = {"docs": documents} if target.routing else {"ids": [document["_id"] for document in documents]}
        answer = self._client.call("POST", f"/{index}/_mget", wanted)
        for document in answer["docs"]:
            if "error" in document:
                raise unreadable(document["error"])
            if document["found"] and not document["_source"].get(DELETED_FIELD):
                yield target.stored(document["_source"], table)

    def close(self) -> None:
        self._client.close()

    def _check(self, tables: Sequence[Table]) -> None:
        """What the settings say of these new tables must fit them. Raises ConfigurationError with all that doesn't."""
        problems = [problem for table in tables for problem in self._settings.problems_of(table)]
        if problems:
            raise ConfigurationError(
                "settings of this sink don't fit its tables",
                problems=problems,
                hint="mend fields, ids or routing of this sink",
            )

    def _mapping(self, shape: Shape, held: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> dict[str, Any]:
        """A table's mapping. ``held`` are the fields that its index has.

        These stay, unless the settings speak of them.
        """
        table = shape.table.name
        fields = self._settings.fields_of(table)
        made = mapping(shape, fields, is_routed=bool(self._settings.routing_of(table)))
        spoken_of = set(map(field_name, fields))
        kept = {name: held[name] for name in made["properties"] if name in held and name not in spoken_of}
        return {**made, "properties": {**made["properties"], **kept}}

    def _index_settings(self, table: Table) -> dict[str, Any]:
        return {
            **flat_settings(self._settings.index_settings),
            "number_of_shards": self._settings.shards,
            "refresh_interval": self._refresh_interval,
            "gc_deletes": f"{self._settings.gc_deletes_s}s",
            # Sub-fields count too, and PostgreSQL allows 1600 columns.
            "mapping.total_fields.limit": max(1000, 4 * len(table.columns) + 100),
        }

    @property
    def _refresh_interval(self) -> str:
        return f"{self._settings.refresh_interval_ms}ms"

    def _loading(self) -> list[str]:
        """The indexes of this generation that are in bulk."""
        path = f"/{self._prefix}.*_g{self._generation}/_settings/index.refresh_interval"
        answer = self._client.call("GET", path, parameters={"flat_settings": "true"})
        return [name for name, held in answer.items() if held["settings"].get("index.refresh_interval") == _NEVER]

    def _change_settings(self, index: str, settings: Mapping[str, Any]) -> None:
        self._client.call("PUT", f"/{index}/_settings", {"index": settings})

    def _target(self, index: str, held: _Held) -> Target:
        name = held.shape.table.name
        return Target(
            f"{index}_W",
            held.shape,
            deletes_leave_markers=self._settings.deletes == "marker",
            fields=self._settings.fields_of(name),
            properties=held.properties,
            id_template=self._settings.id_of(name),
            routing=self._settings.routing_of(name),
        )

    def _alias(self, name: TableName) -> str:
        return alias_name(self._prefix, name, self._names)

    def _index(self, name: TableName) -> str:
        return f"{self._alias(name)}_g{self._generation}"

    def _indexes(self) -> tuple[list[OwnIndex], Mapping[str, frozenset[str]]]:
        """This sink's indexes of all generations.

        And all indexes that have a name or an alias of ours, with their aliases.
        """
        self._check_format()
        answer = self._client.call("GET", f"/{self._prefix}.*/_alias", parameters={"expand_wildcards": "all"})
        aliases = {index: frozenset(held["aliases"]) for index, held in answer.items()}
        return list(own_indexes(aliases)), aliases

    def _undisturbed(self) -> list[OwnIndex]:
        """This sink's indexes. Raises LockstepError when somebody gave a name that readers use to something else."""
        own, aliases = self._indexes()
        names = {index.name for index in own}
        for reading in sorted({index.alias for index in own}):
            if reading in aliases:
                raise LockstepError(
                    f"there is an index called {reading!r}: that is the alias by which readers find this sink's live "
                    "rows",
                    hint="it is nothing of Lockstep's: move it to another name, or remove it, then try again",
                )
            strangers = [index for index in sorted(aliases) if reading in aliases[index] and index not in names]
            if strangers:
                raise LockstepError(
                    f"alias {reading!r}, by which readers find this sink's live rows, points to index "
                    f"{strangers[0]!r}, "
                    "which isn't this sink's",
                    hint="somebody moved it: point it back or remove it there, then try again; nothing was changed",
                )
        return own

    def _record_documents(self) -> list[str]:
        """The ids of all coordination records."""
        if self._client.call("POST", f"/{self._bookkeeping_index}/_refresh", missing_ok=True) is None:
            return []
        everything = {"size": _RECORDS_MAX, "_source": False, "query": {"match_all": {}}}
        answer = self._client.call("POST", f"/{self._bookkeeping_index}/_search", everything)
        return [hit["_id"] for hit in answer["hits"]["hits"] if hit["_id"].startswith(_record_id(""))]

    def _create_bookkeeping_index(self) -> None:
        # Read by id, which sees what was never refreshed; coordination records are listed after a refresh that is asked
        # for.
        settings = {"number_of_shards": 1, "refresh_interval": _NEVER}
        meta = {"lockstep_stored_format": STORED_FORMAT}
        self._check_format()
        self._create(self._bookkeeping_index, {"dynamic": False, "_meta": meta}, settings)

    def _check_format(self) -> None:
        """Raise LockstepError when what is stored here is of another format. Asks the cluster once."""
        if self._format_is_checked:
            return
        lenient = {"ignore_unavailable": "true", "allow_no_indices": "true"}
        earlier = f"{self._prefix}.lockstep_progress"
        answer = self._client.call("GET", f"/{self._bookkeeping_index},{earlier}/_mapping", parameters=lenient)
        if self._bookkeeping_index in answer:
            meta = answer[self._bookkeeping_index]["mappings"].get("_meta") or {}
            check_stored_format(self._name, int(meta.get("lockstep_stored_format", 1)), elsewhere="prefix")
        elif earlier in answer:
            check_stored_format(self._name, 1, elsewhere="prefix")
        self._format_is_checked = True

    def _held(self, index: str) -> _Held | None:
        """What an index holds; None where there is none. Raises LockstepError for one that isn't ours."""
        # A node that has just started knows no index yet, and says of one that is named alone that it doesn't exist.
        # Asked like this it looks first whether it can tell.
        lenient = {"ignore_unavailable": "true", "allow_no_indices": "true"}
        answer = self._client.call("GET", f"/{index}/_mapping", parameters=lenient)
        if index not in answer:
            return None
        mappings = answer[index]["mappings"]
        meta = mappings.get("_meta") or {}
        if "lockstep_shape" not in meta:
            raise LockstepError(f"index {index!r} isn't ours", hint="remove it, or set another prefix for this sink")
        return _Held(Shape.from_json(meta["lockstep_shape"]), mappings["properties"])

    def _target_of(self, table: TableName) -> Target:
        """The target of a table as its index is now. Raises LockstepError when there is none."""
        index = self._index(table)
        held = self._held(index)
        if held is None:
            raise unprepared(table)
        return self._target(index, held)

    def _create(self, index: str, index_mapping: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Create an index with its writing alias, unless it is there."""
        body = {
            "settings": {"index": {"number_of_replicas": self._settings.replicas, **settings}},
            "mappings": index_mapping,
            "aliases": {f"{index}_W": {}},
        }
        if self._client.call("HEAD", f"/{index}") is False:
            self._client.call("PUT", f"/{index}", body, passing_errors=("resource_already_exists_exception",))

    def _aim_at(self, table: TableName) -> Target:
        """Know the index of a table. Raises LockstepError when there is none."""
        target = self._targets[table] = self._target_of(table)
        return target

    def _knew_too_little(self, event: RowEvent) -> bool:
        """Whether the event has a column that the index has got since we looked.

        Raises LockstepError for one it doesn't have.
        """
        columns = event.row or {}
        if self._targets[event.table].columns.issuperset(columns):
            return False
        now = self._aim_at(event.table).columns
        for name in columns:
            if name not in now:
                raise unknown_column(event.table, name)
        return True

    def _requests(
        self, items: Sequence[_Item], documents_max: int, *, overwrite_equal_tags: bool
    ) -> Iterator[tuple[list[_Item], bytes]]:
        """Bulk bodies of at most so many documents and about so many bytes; one large document goes alone."""
        portion: list[_Item] = []
        lines: list[bytes] = []
        size = 0
        for item in items:
            events, row_index, searchable = item
            line = self._targets[events.table].lines(
                events, row_index, searchable=searchable, overwrite_equal_tags=overwrite_equal_tags
            )
            if lines and (len(lines) >= documents_max or size + len(line) > self._bulk_bytes):
                yield portion, b"".join(lines)
                portion, lines, size = [], [], 0
            portion.append(item)
            lines.append(line)
            size += len(line)
        if lines:
            yield portion, b"".join(lines)

    def _answers(self, requests: Iterator[tuple[list[_Item], bytes]]) -> Iterator[tuple[list[_Item], Answers | None]]:
        """Send requests, some at once, and yield what became of each, in their order. Raises the first one's error."""
        first = next(requests, None)
        second = next(requests, None)
        if first is not None and second is None:  # the rule: no thread for a few rows
            items, body = first
            yield items, self._client.bulk(body, len(items))
            return
        with ThreadPoolExecutor(_IN_FLIGHT) as pool:
            sent: deque[tuple[list[_Item], Future[Answers | None]]] = deque()
            for request in chain((early for early in (first, second) if early is not None), requests):
                sent.append((request[0], pool.submit(self._client.bulk, request[1], len(request[0]))))
                if len(sent) > _IN_FLIGHT:
                    items, answer = sent.popleft()
                    yield items, answer.result()
            for items, answer in sent:
                yield items, answer.result()


def _add(index: str, alias: str) -> dict[str, Any]:
    # Filtered whatever the setting is now: there may be markers from a time when it was another.
    return {"add": {"index": index, "alias": alias, "filter": _LIVE}}


def _without_dynamic(index_mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in index_mapping.items() if name != "dynamic"}


def _is_whole(page: Any) -> Any:
    """A page of results. Raises Unavailable where a shard couldn't say what it has.

    OpenSearch answers without it all the same.
    """
    if page["_shards"]["failed"] or page.get("timed_out"):
        raise Unavailable("opensearch can't read all shards of an index now", retry_after_s=RETRY_AFTER_S)
    return page
