"""Writes events by bulk requests of OpenSearch, and repeats them in smaller ones while the cluster has no room."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

from cdc.model.errors import Unavailable
from cdc.model.event import Events, RowEvent, TableEvents
from cdc.model.table import TableName
from cdc.model.tag import TRANSACTION_LENGTH
from sinks.columns.shape import unknown_column
from sinks.contract import Outcome, Rejection
from sinks.opensearch.answers import RETRY_AFTER_S, Verdict, refusal, stopping, unreadable, verdict
from sinks.opensearch.client import Answers
from sinks.opensearch.documents import Target, first_version
from sinks.opensearch.indexes import OpenSearchIndexes
from sinks.opensearch.mapping import TAG_FIELD
from sinks.opensearch.shared_versions import Condition, condition_for, shares_version

# Large enough to hide the round trip, small enough for the server's memory (http.max_content_length is 100 MB).
_BULK_BYTES: Final = 5 * 1024 * 1024
_BULK_DOCUMENTS: Final = 10_000
# The next requests are built while the server works on one.
_IN_FLIGHT: Final = 2
# Items that the server had no room for are repeated at once, in smaller requests. After these rounds the caller waits.
_ROUNDS: Final = 3
# A document changes between two comparisons of its tag only while another job writes the same rows.
_COMPARISONS: Final = 10
_LOOKED_AT: Final = 1000
"""How many documents one request looks up to compare their tags."""


class Item(NamedTuple):
    events: TableEvents
    row_index: int
    searchable: bool = True
    """With copies of its JSON and ranges for searching."""
    condition: Condition | None = None
    """What the write requires of the existing document, if the version can't express it."""

    @property
    def tag(self) -> str:
        return self.events.tags[self.row_index]

    @property
    def is_contested(self) -> bool:
        """Whether a conflict doesn't prove that the document is newer."""
        return shares_version(self.tag)

    @property
    def event(self) -> RowEvent:
        return self.events[self.row_index]


@dataclass(slots=True)
class _Tally:
    """The events so far, by result."""

    applied: int = 0
    stale: int = 0
    rejections: list[Rejection] = field(default_factory=list)
    again: list[Item] = field(default_factory=list)
    """To be sent again."""
    contested: list[Item] = field(default_factory=list)
    """To be compared with their documents' tags first."""


class BulkWriter:
    def __init__(self, indexes: OpenSearchIndexes) -> None:
        self._indexes = indexes
        self._client = indexes.client
        # Shrinks if the cluster, or a proxy before it, accepts less in a request.
        self.bulk_bytes = _BULK_BYTES

    def write(self, events: Events, *, overwrite_equal_tags: bool) -> Outcome:
        """Write all events whose tables are among ``targets``.

        Raises Unavailable when the cluster has no room for some now. Raises LockstepError when it refuses all writes,
        and for an event with a column that its index lacks.
        """
        pending = [Item(table_events, index) for table_events in events.tables for index in range(len(table_events))]
        tally = _Tally()
        documents_max = _BULK_DOCUMENTS
        rounds = comparisons = 0
        is_again = False
        while pending and rounds < _ROUNDS and comparisons < _COMPARISONS:
            tally.again, tally.contested = [], []
            is_too_long = False
            requests = self.requests(
                pending,
                documents_max,
                overwrite_equal_tags=overwrite_equal_tags,
                is_whole=not is_again,
            )
            is_again = True
            for items, answers in self._answers(requests):
                if answers is None:
                    tally.applied += len(items)
                elif len(items) > 1 and answers[0][0] == 413:
                    tally.again += items
                    is_too_long = True
                else:
                    self._sort(items, answers, tally)
            pending = tally.again + self._compared(tally, overwrite_equal_tags=overwrite_equal_tags)
            if is_too_long:
                # Not counted as a round, since it ends by itself: at the latest when each document is sent alone.
                self.bulk_bytes = max(1, self.bulk_bytes // 4)
            elif tally.again:
                rounds += 1
                documents_max = max(1, documents_max // 4)
            else:
                comparisons += 1
        if not pending:
            return Outcome(tally.applied, tally.stale, tally.rejections)
        if comparisons == _COMPARISONS:
            raise Unavailable(
                f"another job changes the same {len(pending)} documents in opensearch now", retry_after_s=RETRY_AFTER_S
            )
        raise Unavailable(
            f"opensearch has no room for {len(pending)} of {len(events)} documents now",
            retry_after_s=RETRY_AFTER_S,
        )

    def _sort(self, items: Sequence[Item], answers: Answers, tally: _Tally) -> None:
        """Count each item's result. Raises LockstepError for an answer that stops the job."""
        for item, (status, error) in zip(items, answers, strict=True):
            match verdict(status, None if error is None else error["type"]):
                case Verdict.APPLIED:
                    tally.applied += 1
                case Verdict.STALE if item.is_contested:
                    tally.contested.append(item)
                case Verdict.STALE:
                    tally.stale += 1
                case Verdict.AGAIN:
                    tally.again.append(item)
                case Verdict.REJECTED:
                    assert error is not None
                    if self._knew_too_little(item.event):
                        tally.again.append(item)
                    elif item.searchable and self._indexes.targets[item.events.table].has_copies:
                        # Perhaps only the copies for searching can't be indexed: the row itself is more important.
                        tally.again.append(item._replace(searchable=False))
                    else:
                        tally.rejections.append(Rejection(item.event, refusal(error)))
                case Verdict.STOP:
                    assert error is not None
                    raise stopping(status, error["type"])

    def _compared(self, tally: _Tally, *, overwrite_equal_tags: bool) -> list[Item]:
        """Contested items with older documents, and the condition to write to these. Others are stale.

        Raises LockstepError for a document that was written too often.
        """
        older = []
        by_table: dict[TableName, list[Item]] = {}
        for item in tally.contested:
            by_table.setdefault(item.events.table, []).append(item)
        for table, items in by_table.items():
            for begin in range(0, len(items), _LOOKED_AT):
                portion = items[begin : begin + _LOOKED_AT]
                for item, document in zip(portion, self._documents(self._indexes.targets[table], portion), strict=True):
                    condition = condition_for(
                        item.tag,
                        document,
                        first_version=first_version(item.tag[:TRANSACTION_LENGTH]),
                        refused=item.condition,
                        or_equal=overwrite_equal_tags,
                    )
                    if condition is None:
                        tally.stale += 1
                    else:
                        older.append(item._replace(condition=condition))
        return older

    def _documents(self, target: Target, items: Sequence[Item]) -> Sequence[Mapping[str, Any]]:
        """The primaries' documents of these items, as of now, in their order. A replica may lag."""
        wanted = {"docs": [target.identity(item.event.key) for item in items]}
        path = f"/{target.write_alias}/_mget"
        documents: Sequence[Mapping[str, Any]] = self._client.call(
            "POST", path, wanted, {"_source_includes": TAG_FIELD, "preference": "_primary"}
        )["docs"]
        for document in documents:
            if "error" in document:
                raise unreadable(document["error"])
        return documents

    def _knew_too_little(self, event: RowEvent) -> bool:
        """Whether the index has got a column of the event since we looked. Raises LockstepError if it lacks one."""
        columns = event.row or {}
        if self._indexes.targets[event.table].columns.issuperset(columns):
            return False
        now = self._indexes.look_again_at(event.table).columns
        for name in columns:
            if name not in now:
                raise unknown_column(event.table, name)
        return True

    def requests(
        self, items: Sequence[Item], documents_max: int, *, overwrite_equal_tags: bool, is_whole: bool
    ) -> Iterator[tuple[list[Item], bytes]]:
        """Bulk bodies with at most this many documents and about ``bulk_bytes``. One large document goes alone.

        ``is_whole``: the items are all events of each table in their order.
        """
        portion: list[Item] = []
        lines: list[bytes] = []
        index = size = 0
        while index < len(items):
            events, row_index, searchable, condition = items[index]
            target = self._indexes.targets[events.table]
            if is_whole and not overwrite_equal_tags and len(lines) < documents_max:
                stop = min(len(events), row_index + documents_max - len(lines))
                end, taken = target.take_lines(events, row_index, stop, lines, bytes_max=self.bulk_bytes - size)
                if end > row_index:
                    portion += items[index : index + end - row_index]
                    index += end - row_index
                    size += taken
                    continue
            line = target.lines(
                events,
                row_index,
                searchable=searchable,
                overwrite_equal_tags=overwrite_equal_tags,
                condition=condition,
            )
            if lines and (len(lines) >= documents_max or size + len(line) > self.bulk_bytes):
                yield portion, b"".join(lines)
                portion, lines, size = [], [], 0
            portion.append(items[index])
            lines.append(line)
            size += len(line)
            index += 1
        if lines:
            yield portion, b"".join(lines)

    def _answers(self, requests: Iterator[tuple[list[Item], bytes]]) -> Iterator[tuple[list[Item], Answers | None]]:
        """Send requests, some in parallel, and yield the results in their order. Raises the first one's error."""
        first = next(requests, None)
        second = next(requests, None)
        if first is not None and second is None:  # the usual case: no thread for a few rows
            items, body = first
            yield items, self._client.bulk(body, len(items))
            return
        with ThreadPoolExecutor(_IN_FLIGHT) as pool:
            sent: deque[tuple[list[Item], Future[Answers | None]]] = deque()
            for request in chain((early for early in (first, second) if early is not None), requests):
                sent.append((request[0], pool.submit(self._client.bulk, request[1], len(request[0]))))
                if len(sent) > _IN_FLIGHT:
                    items, answer = sent.popleft()
                    yield items, answer.result()
            for items, answer in sent:
                yield items, answer.result()
