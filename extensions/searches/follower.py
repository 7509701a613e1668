"""Follows an OpenSearch sink and reports which documents begin and cease to match its standing searches.

It reports what the sink's live generation holds. The log only says which documents may have changed. So it reads the
log up to where the sink has applied it, looks up each of these documents, asks which searches it matches now, and
reports the differences from the last report. A rejected event reports nothing, since the document is unchanged. Columns
that a sink leaves out, masks or computes need no special care.

Whenever something else may have changed documents or searches, it *compares*: the index itself finds the documents that
match, and those with a different last report are looked at, so nothing in between is lost. It compares each new search.
It compares all searches at its start, when another generation goes live, when a sink was put back, when the log no
longer has what comes next, and every ten minutes, because a retried rejection has no new event.

A search that the server refuses is *refused*: its reason is kept, and the others go on. Its last reports stay. It is
tried again when it is changed, and when all are compared. A search that can't be stored, for example because its table
isn't in the sink yet, is tried again every few seconds.
"""

import logging
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import uuid4

import orjson
import pyarrow as pa

from cdc.event_format.decode import tag_of
from cdc.kafka.topic_names import table_topic
from cdc.model.errors import Fenced, LockstepError, PositionMismatch, Unavailable
from cdc.model.event import parse_key
from cdc.model.log_message import LogMessage
from cdc.model.table import TableName
from cdc.spilling import SpillingMap
from extensions.searches.matches import Reported, changes, tag_of_absence
from extensions.searches.percolator import (
    Document,
    Percolator,
    QueriesRefused,
    in_portions,
    newest_number,
    queries_index,
    remove_left_over,
)
from extensions.searches.signs import Signs
from extensions.searches.stored import Claim, Search, StoredSearches
from extensions.searches.topic import Match, MatchTopic
from jobs.executor.log_reader import LogReader, ranges
from jobs.generations.record import Generation, load_record
from lockstep.config import Config
from lockstep.generations import settings_of_generation
from sinks.contract import Progress, TopicPartition
from sinks.opensearch.coordination import OpenSearchCoordination
from sinks.opensearch.generations import OpenSearchGenerations
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.settings import OpenSearchSettings
from sinks.wrappers.column_names import load_names
from sinks.wrappers.renaming import Renaming

logger = logging.getLogger("lockstep.searches")

_DOCUMENTS: Final = 500
"""How many documents are looked up at once, in slices of a limited size."""

_RECORDS_IN_TRANSACTION: Final = 5000
_COMPARE_EVERY_S: Final = 600.0
_REFUSED_AGAIN_S: Final = 10.0
"""How often a search is tried again that can't be stored, for example because its table isn't in the sink yet."""

_Item = TypeVar("_Item")


class Stopped(LockstepError):
    """It was asked to stop, and did so in the middle of a long step."""


@dataclass(frozen=True, slots=True)
class _RefusedSearch:
    """A search that isn't reported, and why. ``is_stored``: the server stored the query, but refuses to ask it."""

    search: Search
    reason: str
    is_stored: bool


class Follower:
    """Follows one sink. Call ``step`` again and again, and ``close`` at the end. An error leaves no report half done:
    close this follower, and go on with a new one. ``stopping`` is called all the time; if it returns True, any method
    may raise Stopped.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        *,
        stopping: Callable[[], bool] = lambda: False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Fences any other process that reports this sink, and reads past reports. Raises as ``MatchTopic``."""
        self._config = config
        self._name = name
        self._stopping = stopping
        self._monotonic = monotonic
        settings = config.sinks[name]
        assert isinstance(settings, OpenSearchSettings)
        self._settings = settings
        self._closing = ExitStack()
        self.live: LiveGeneration | None = None
        self._any = OpenSearchIndexes(name, settings, 1)
        self._closing.callback(self._any.client.close)
        self._stored = StoredSearches(self._any.bookkeeping)
        self._searches: dict[str, Search] = {}
        """The searches that documents are asked about."""
        self._refused: dict[str, _RefusedSearch] = {}
        self._compare_at = self._again_at = 0.0
        try:
            # Before any claim: a process that can't report must not replace one that does.
            self._topic = MatchTopic(config.kafka, config.pipeline.name, name)
            self._closing.callback(self._topic.close)
            self._log = LogReader(config.kafka.client())
            self._closing.callback(self._log.close)
            self._documents = SpillingMap(Path(tempfile.gettempdir()))
            """The last reports: [table, identity] -> [key, {search: [matches, tag]}], both JSON."""
            self._closing.callback(self._documents.close)
            self._matching: dict[str, int] = {}
            # The claim comes before the fence, so that the other process learns that it must end.
            self._claim = self._stored.claim(uuid4().hex[:12], above=newest_number(self._any))
            self._signs = Signs(self._stored, self._claim, sink=name, monotonic=monotonic)
            with self._noting_what_is_in_the_way():
                self._topic.start()
                for match in self._topic.reported():
                    self._check_stopping()
                    self._remember(match)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Uncommitted reports are dropped."""
        self._leave()
        self._closing.close()

    def remove_queries(self) -> None:
        """Remove everything from the sink that only this process needs. Call it before ``close`` at an orderly end."""
        remove_left_over(self._any, self._claim)

    def check_claim(self) -> None:
        """Raise Fenced if another process reports this sink by now."""
        self._signs.check_claim()

    def step(self) -> bool:
        """Report what has changed; returns whether there was any work. An error is stored for observers if possible."""
        with self._noting_what_is_in_the_way():
            looked = self._step()
            self._signs.done(
                {name: self._matching.get(name, 0) for name in self._searches},
                {name: refused.reason for name, refused in self._refused.items()},
            )
        return looked

    def _step(self) -> bool:
        searches = self._stored.load()
        if not searches and not self._searches and not any(self._matching.values()):
            return False
        looked = self._settle(searches)
        if self.live is not None:
            looked |= self._follow(self.live)
        return looked

    @contextmanager
    def _noting_what_is_in_the_way(self) -> Iterator[None]:
        try:
            yield
        except (Stopped, Fenced):
            raise
        except LockstepError as error:
            with suppress(LockstepError):
                self._signs.waiting(error.message)
            raise
        except Exception as error:
            with suppress(LockstepError):
                # The error's own text may contain values of rows.
                self._signs.waiting(f"{type(error).__name__}, a fault of Lockstep's own: its log has it")
            raise

    # --- searches and generations ---

    def _settle(self, searches: Mapping[str, Search]) -> bool:
        """Ask the live generation about these searches, and compare new ones. Returns whether any were compared."""
        self._end_removed(searches)
        number = self._any.live()
        progress = None if number is None else self._progress_of(number)
        if number is None or progress is None:
            self._leave()
            return False
        if self.live is None or self.live.is_other_than(number, progress):
            self._begin(number, progress)
        live = self.live
        assert live is not None
        live.progress = progress
        for table in live.outdated():
            live.drop(table)
            self._searches = {name: search for name, search in self._searches.items() if search.table != table}
            self._refused = {name: refused for name, refused in self._refused.items() if refused.search.table != table}
        now = self._monotonic()
        is_again, is_due = now >= self._again_at, now >= self._compare_at
        self._again_at = now + _REFUSED_AGAIN_S if is_again else self._again_at
        self._compare_at = now + _COMPARE_EVERY_S if is_due else self._compare_at
        if is_due:
            live.remove_left_over()
        new = [search for name, search in searches.items() if self._searches.get(name) != search]
        taken = [search for search in new if self._is_to_be_tried(search, is_again=is_again, is_due=is_due)]
        taken = [search for search in taken if self.take(live, search)]
        compared = list(self._searches.values()) if is_due else taken
        if compared:
            self._topic.check()
            self._compare(live, compared)
        return bool(compared)

    def _is_to_be_tried(self, search: Search, *, is_again: bool, is_due: bool) -> bool:
        refused_search = self._refused.get(search.name)
        if refused_search is None or refused_search.search != search:
            return True
        return is_due if refused_search.is_stored else is_again

    def _begin(self, number: int, progress: Progress) -> None:
        """Begin with a generation: all searches are stored for it and compared."""
        self._leave()
        self.live = LiveGeneration(self._config, self._name, self._settings, number, progress, claim=self._claim)
        self.live.begin_anew()
        self._searches.clear()
        self._refused.clear()
        self._compare_at = self._monotonic() + _COMPARE_EVERY_S

    def _leave(self) -> None:
        if self.live is not None:
            self.live.close()
            self.live = None

    def take(self, live: "LiveGeneration", search: Search) -> bool:
        """Store a search, so that documents are asked about it. Returns False if that is impossible."""
        try:
            live.percolator(search.table).store(search.name, search.query)
        except Unavailable:
            raise
        except LockstepError as error:
            self._refuse(_RefusedSearch(search, error.message, is_stored=False))
            return False
        self._searches[search.name] = search
        return True

    def _refuse(self, refused_search: _RefusedSearch) -> None:
        """Go on without a search. The log says so once."""
        name = refused_search.search.name
        self._searches.pop(name, None)
        before = self._refused.get(name)
        self._refused[name] = refused_search
        if before is None or before.reason != refused_search.reason:
            logger.error(LogMessage("search refused", {"sink": self._name, "search": name}, refused_search.reason))

    def _refuse_queries(self, live: "LiveGeneration", refused: QueriesRefused) -> None:
        for name, reason in refused.reasons.items():
            search = self._searches[name]
            live.discard(search)
            self._refuse(_RefusedSearch(search, f"opensearch refuses to ask for it: {reason}", is_stored=True))

    def _end_removed(self, searches: Mapping[str, Search]) -> None:
        """Report the end of matches for searches that were removed or moved to another table."""
        for name in [name for name in self._refused if name not in searches]:
            del self._refused[name]
        gone = {name for name, search in self._searches.items() if searches.get(name) != search}
        for name in gone:
            search = self._searches.pop(name)
            if self.live is not None:
                self.live.discard(search)
        gone = {name for name, count in self._matching.items() if count and name not in searches}
        if gone:
            self._report_all(self._ceased(entry, name) for entry, name in self._reported_to_match(gone))

    def _reported_to_match(
        self, names: Collection[str], *, but: Callable[[bytes, str], bool] = lambda *_: False
    ) -> list[tuple[bytes, str]]:
        """The documents reported to match these searches, each with the search, except ``but``. Takes one pass."""
        wanted = {name for name in names if self._matching.get(name)}
        if not wanted:
            return []
        found = []
        for number, entry in enumerate(self._documents):
            if not number % _DOCUMENTS:
                self._go_on()
            reported = self._reported_of_entry(entry)[1]
            for name in wanted & reported.keys():
                if reported[name].matches and not but(entry, name):
                    found.append((entry, name))
        return found

    def _progress_of(self, number: int) -> Progress | None:
        indexes = self._any if self.live is None or self.live.number != number else self.live.indexes
        if indexes.generation == number:
            return OpenSearchGenerations(indexes).load_progress()
        other = OpenSearchIndexes(self._name, self._settings, number)
        try:
            return OpenSearchGenerations(other).load_progress()
        finally:
            other.client.close()

    # --- changes ---

    def _follow(self, live: "LiveGeneration") -> bool:
        """Look at everything applied since the last call. Returns whether there was anything."""
        topics = {table_topic(self._config.pipeline.name, table): table for table in self._tables()}
        ends = {at: end for at, end in live.reached.items() if at[0] in topics}
        wanted = ranges({at: live.position.get(at, 0) for at in ends}, ends)
        try:
            with closing(self._log.read(wanted)) as log:
                for records in log if wanted else ():
                    for table, identities in _changed(live, records, topics).items():
                        for portion in _portions(identities.items(), _DOCUMENTS):
                            self._look_at(live, table, dict(portion))
        except PositionMismatch:
            logger.warning(
                LogMessage("comparing all searches", {"sink": self._name}, "the log no longer has what comes next")
            )
            self._leave()
            return True
        live.position = live.reached
        return bool(wanted)

    def _compare(self, live: "LiveGeneration", searches: Sequence[Search]) -> None:
        """Look at documents that the index finds without a reported match, and at reported matches that it doesn't
        find. Asks the index once for each search, and goes through the reports once for all. A search that the index
        refuses is kept with its reason.
        """
        counts = dict.fromkeys((search.name for search in searches), 0)
        with SpillingMap(Path(tempfile.gettempdir())) as seen:
            for search in searches:
                if search.name in self._searches:  # comparing another search may have refused it
                    found = self._found_and_not_reported(live, search, seen)
                    counts[search.name] += self._look_at_all(live, search, found)
            standing = {search.name: search for search in searches if search.name in self._searches}
            missing: dict[str, list[bytes]] = {}
            for entry, name in self._reported_to_match(
                standing, but=lambda entry, name: seen.get(_found(name, entry)) is not None
            ):
                # In a generation with other ids or another table, it is another document.
                table = standing[name].table
                now = live.percolator(table).identity_of(self._reported_of_entry(entry)[0])
                if now is None or _entry(str(table), now) != entry:
                    self._report([self._ceased(entry, name)])
                else:
                    missing.setdefault(name, []).append(now)
            for name, identities in missing.items():
                counts[name] += self._look_at_all(live, standing[name], identities)
        for search in searches:
            if search.name in self._searches:
                self._refused.pop(search.name, None)
                count = counts[search.name]
                logger.info(
                    LogMessage("search compared", {"sink": self._name, "search": search.name, "looked_at": count})
                )

    def _found_and_not_reported(self, live: "LiveGeneration", search: Search, seen: SpillingMap) -> Iterator[bytes]:
        """The documents that the index finds without a reported match. Everything it finds is added to ``seen``."""
        for identity in live.percolator(search.table).found(search.name):
            self._go_on()
            seen[_found(search.name, _entry(str(search.table), identity))] = b""
            reported = self._reported_of(search.table, identity)[1].get(search.name)
            if reported is None or not reported.matches:
                yield identity

    def _look_at_all(self, live: "LiveGeneration", search: Search, identities: Iterable[bytes]) -> int:
        """Look at these documents because of a search, and return their number. The search may be refused."""
        count = 0
        try:
            for portion in _portions(identities, _DOCUMENTS):
                if search.name not in self._searches:
                    break
                self._look_at(live, search.table, dict.fromkeys(portion, ""))
                count += len(portion)
        except QueriesRefused as refused:
            self._refuse_queries(live, refused)
        return count

    def _ceased(self, entry: bytes, search: str) -> Match:
        """The report that a document ceases to match a search, as of the version that was reported last."""
        stored = self._documents.get(entry)
        assert stored is not None, "its match was reported"
        key, reported, identity = orjson.loads(stored)
        _, tag = reported[search]
        return Match(self._name, search, _table_of(entry), identity.encode(), key, Reported(matches=False, tag=tag))

    def _look_at(self, live: "LiveGeneration", table: TableName, identities: Mapping[bytes, str]) -> None:
        """Report these documents' differences. Each has the tag of its last event, or ""."""
        percolator = live.percolator(table)
        absent = dict(identities)
        for portion in in_portions(percolator.documents(list(identities))):
            self._go_on()
            matching = self._asked(live, percolator, [document for _, document in portion])
            found = list[Match]()
            for (identity, document), names in zip(portion, matching, strict=True):
                del absent[identity]
                found += self._differing(table, identity, document.key, document.tag, names)
            self._report_all(found)
        gone = list[Match]()
        for identity, seen_tag in absent.items():
            key, reported = self._reported_of(table, identity)
            gone += self._differing(table, identity, key, tag_of_absence(reported, seen_tag), ())
        self._report_all(gone)

    def _differing(
        self, table: TableName, identity: bytes, key: Mapping[str, Any], tag: str, matching: Collection[str]
    ) -> Iterator[Match]:
        """The differences from a document's last reports. ``matching`` are the searches that it matches now."""
        searches = [search.name for search in self._searches.values() if search.table == table]
        _, reported = self._reported_of(table, identity)
        for search, now in changes(reported, matching, searches, tag=tag).items():
            yield Match(self._name, search, str(table), identity, dict(key), now)

    def _asked(self, live: "LiveGeneration", percolator: Percolator, documents: Sequence[Document]) -> list[set[str]]:
        """The searches that each of these documents matches. Searches that can't be asked are refused."""
        while True:
            try:
                return percolator.matches(documents)
            except QueriesRefused as refused:
                self._refuse_queries(live, refused)

    # --- reports ---

    def _report_all(self, matches: Iterable[Match]) -> None:
        for portion in _portions(matches, _RECORDS_IN_TRANSACTION):
            self._go_on()
            self._report(portion)

    def _report(self, matches: Iterable[Match]) -> None:
        reported = list(matches)
        for match in reported:
            self._topic.report(match)
        self._topic.commit()
        for match in reported:
            self._remember(match)

    def _remember(self, match: Match) -> None:
        entry = _entry(match.table, match.identity)
        _, reported = self._reported_of_entry(entry)
        before = reported.get(match.search)
        self._matching[match.search] = (
            self._matching.get(match.search, 0) + match.reported.matches - (before is not None and before.matches)
        )
        reported[match.search] = match.reported
        fields = {search: [each.matches, each.tag] for search, each in reported.items()}
        self._documents[entry] = orjson.dumps([match.key, fields, match.identity.decode()])

    def _reported_of(self, table: TableName, identity: bytes) -> tuple[dict[str, Any], dict[str, Reported]]:
        return self._reported_of_entry(_entry(str(table), identity))

    def _reported_of_entry(self, entry: bytes) -> tuple[dict[str, Any], dict[str, Reported]]:
        stored = self._documents.get(entry)
        if stored is None:
            return {}, {}
        key, reported, _ = orjson.loads(stored)
        return key, {search: Reported(*fields) for search, fields in reported.items()}

    def _tables(self) -> set[TableName]:
        return {search.table for search in self._searches.values()}

    def _go_on(self) -> None:
        """Called all the time in long steps: gives a sign of life. Raises Stopped if asked to stop."""
        self._check_stopping()
        self._signs.going_on()

    def _check_stopping(self) -> None:
        if self._stopping():
            raise Stopped(f"the searches of sink {self._name!r} wait: this process is stopping")


class LiveGeneration:
    """The generation that readers see, and how far the log was processed for it."""

    def __init__(
        self,
        config: Config,
        name: str,
        settings: OpenSearchSettings,
        number: int,
        progress: Progress,
        *,
        claim: Claim,
    ) -> None:
        """``claim`` names the indexes of the queries."""
        self.number = number
        self.progress = progress
        self.position = self.reached
        indexes = OpenSearchIndexes(name, settings, number)
        try:
            records = OpenSearchCoordination(indexes)
            record = load_record(records, number)
            built_with = settings_of_generation(config, name, Generation(number, is_live=True, record=record))
            kept = load_names(records, number)
        finally:
            indexes.client.close()
        assert isinstance(built_with, OpenSearchSettings)
        self._renaming: Renaming = built_with.renaming() if kept is None else kept.renaming
        self.indexes = OpenSearchIndexes(name, built_with, number)
        self._claim = claim
        self._percolators: dict[TableName, Percolator] = {}

    def close(self) -> None:
        self.indexes.client.close()

    @property
    def reached(self) -> dict[TopicPartition, int]:
        """How far the sink has applied the log, including positions after a part that was left out."""
        return self.progress.reached

    def is_other_than(self, number: int, progress: Progress) -> bool:
        """Whether another generation is live, or this one was put back, or its topics were recreated."""
        if number != self.number or _is_below(progress, self.position):
            return True
        ids = self.progress.topic_ids
        return any(ids[topic] != topic_id for topic, topic_id in progress.topic_ids.items() if topic in ids)

    def begin_anew(self) -> None:
        """Remove all stored queries, also those of other generations."""
        self._percolators.clear()
        self.remove_left_over()

    def remove_left_over(self) -> None:
        """Remove queries that a killed or fenced process has left."""
        remove_left_over(self.indexes, self._claim, but=[self._queries_index(table) for table in self._percolators])

    def percolator(self, table: TableName) -> Percolator:
        """The percolator of a table with an index in this generation. Raises LockstepError for another table."""
        if table not in self._percolators:
            made = Percolator(self.indexes, table, self._queries_index(table))
            made.create()
            self._percolators[table] = made
        return self._percolators[table]

    def _queries_index(self, table: TableName) -> str:
        return queries_index(self.indexes, table, self._claim)

    def outdated(self) -> list[TableName]:
        return [table for table, percolator in self._percolators.items() if percolator.is_outdated()]

    def drop(self, table: TableName) -> None:
        del self._percolators[table]

    def discard(self, search: Search) -> None:
        if search.table in self._percolators:
            self._percolators[search.table].discard(search.name)

    def identity(self, table: TableName, key: bytes) -> bytes:
        """How to find a row's document. ``key`` is the source's, as in an event."""
        return self.percolator(table).identity(self._renaming.row(table, parse_key(key)))


def _changed(
    live: LiveGeneration, records: pa.RecordBatch, topics: Mapping[str, TableName]
) -> dict[TableName, dict[bytes, str]]:
    """The documents of these records of the log, each with the tag of its newest event."""
    found: dict[TableName, dict[bytes, str]] = {}
    columns = (records.column(name).to_pylist() for name in ("topic", "key", "value", "tombstone_tag"))
    for topic, key, value, tombstone_tag in zip(*columns, strict=True):
        table = topics[topic]
        tag = tombstone_tag if value is None else tag_of(value)
        found.setdefault(table, {})[live.identity(table, key)] = (tag or b"").decode()
    return found


def _is_below(progress: Progress, position: Mapping[TopicPartition, int]) -> bool:
    reached = progress.reached
    return any(reached.get(at, 0) < end for at, end in position.items())


def _table_of(entry: bytes) -> str:
    table: str = orjson.loads(entry)[0]
    return table


def _entry(table: str, identity: bytes) -> bytes:
    """The key for a document's reports, as on the topic. It has no routing, since that may differ by generation."""
    return orjson.dumps([table, orjson.loads(identity)["_id"]])


def _portions(of: Iterable[_Item], most: int) -> Iterator[list[_Item]]:
    remaining = iter(of)
    while portion := list(islice(remaining, most)):
        yield portion


def _found(search: str, entry: bytes) -> bytes:
    """The entry for a document that the index has found for a search."""
    return search.encode() + b"\0" + entry
