"""A real capture of a test's own database, and the rows that a new reader gets from its topics."""

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from cdc.capture.batch import Committed
from cdc.capture.batch_size import COPY_BATCH, STREAM_BATCH, BatchSize
from cdc.kafka.control_topics import read_schema_records, read_state
from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import PositionMismatch
from cdc.model.table import Table, TableName
from cdc.postgres.catalogue import load_tables, row_filters
from cdc.postgres.slot import emit_heartbeat
from cdc.protocol.control_records import CaptureState, SchemaRecord
from lockstep.capture.run import Observer, capture
from lockstep.config import Config, load
from lockstep.verify.full_comparison import SourceRows
from stack.stack import Endpoints
from tests.databases import Database
from tests.topics import remove_later

_numbers = itertools.count(1)
_PATIENCE_S = 300.0
_STOP_PATIENCE_S = 300.0
"""A capture that is stopped may be in a commit, which it waits for up to two minutes."""


Row = dict[str, Any]


class Captured:
    """Capture in a thread, on the tables of a database."""

    def __init__(
        self,
        database: Database,
        kafka: str,
        directory: Path,
        tables: Sequence[str],
        *,
        source: str = "",
        partitions: int = 3,
        sections: str = "",
        batch: BatchSize = STREAM_BATCH,
        copy_batch: BatchSize = COPY_BATCH,
    ) -> None:
        """``source`` and ``sections`` are more lines of lockstep.toml. ``batch`` may be changed for the next start."""
        self.batch = batch
        self._copy_batch = copy_batch
        self.database = database
        self.name = f"t{os.getpid()}_{next(_numbers)}"
        self.said: list[str] = []
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.stopping = threading.Event()
        self._told: CaptureState | None = None
        self.after_commit: Callable[[CaptureState], None] = lambda _: None
        """Called in capture's own thread, before it reads on."""
        path = directory / f"{self.name}.toml"
        names = ", ".join(f"'{name}'" for name in tables)
        path.write_text(
            f"[pipeline]\nname = '{self.name}'\n"
            f"[kafka]\nbootstrap_servers = '{kafka}'\n"
            f"topics = {{ partitions = {partitions}, replication_factor = 1 }}\n"
            f"{sections}\n"
            f"[source]\ndsn = '{database.dsn}'\ntables = [{names}]\nheartbeat_interval_s = 0.15\n{source}\n"
        )
        self.path = path
        self.config: Config = load(path)
        self.client = self.config.kafka.client()
        remove_later(self.client, self.name)

    def configure(self, **changes: Any) -> None:
        assert changes.keys() <= type(self.config.source).model_fields.keys(), "such a setting would change nothing"
        source = self.config.source.model_copy(update=changes)
        self.config = self.config.model_copy(update={"source": source})

    # The process.

    def start(self, **wrappers: Any) -> "Captured":
        self.begin(**wrappers)
        self.wait_for("streaming from")
        return self

    def begin(self, **wrappers: Any) -> None:
        self.stopping.clear()
        self.error = None
        self._told = None
        self.said.clear()
        self._thread = threading.Thread(target=self._run, kwargs=wrappers, daemon=True)
        self._thread.start()

    def _run(self, **wrappers: Any) -> None:
        try:
            capture(
                replace(self.config.as_pipeline(), batch=self.batch, copy_batch=self._copy_batch),
                stopping=self.stopping.is_set,
                observer=Observer(say=self.said.append, committed=self._committed),
                **wrappers,
            )
        except BaseException as error:
            self.error = error

    def _committed(self, committed: Committed) -> None:
        self._told = committed.state
        self.after_commit(committed.state)

    def wait_for(self, words: str) -> None:
        """Wait until it has said these words."""
        self._until(lambda: any(words in line for line in self.said), words)

    def _until(self, condition: Any, what: str, *, seconds: float = _PATIENCE_S) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if self.error is not None:
                raise self.error
            assert time.monotonic() < deadline, f"not in time: {what}; it said {self.said}"
            time.sleep(0.02)

    def stop(self) -> None:
        self.stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_PATIENCE_S)
            assert not self._thread.is_alive()

    def wait_error(self) -> BaseException:
        """Wait until it has ended with an error, and return that."""
        deadline = time.monotonic() + _PATIENCE_S
        while self.error is None:
            assert time.monotonic() < deadline, f"it goes on; it said {self.said}"
            time.sleep(0.02)
        return self.error

    def streams_or_error(self, while_waiting: Callable[[], None] = lambda: None) -> BaseException | None:
        """Wait until it streams, or until it has ended with an error, which is returned."""
        deadline = time.monotonic() + _STOP_PATIENCE_S
        while self.error is None and not any("streaming from" in line for line in self.said):
            assert time.monotonic() < deadline, f"neither streams nor ends; it said {self.said}"
            while_waiting()
            time.sleep(0.02)
        return self.error

    def settle(self, *, seconds: float = _PATIENCE_S) -> None:
        target = emit_heartbeat(self.database.connection)
        emitted = time.monotonic()

        def published() -> bool:
            nonlocal emitted
            # Reading the topic each time would cost more than capture does.
            state = self._told
            if time.monotonic() - emitted > 1:
                # Others write to the server as well: the target may lie after the commit that should reach it.
                emit_heartbeat(self.database.connection)
                emitted = time.monotonic()
                state = read_state(self.client, self.name, self.config.slot)
            return (
                state is not None
                and state.end_lsn >= target
                and all(name in state.copied for name in self.config.source.table_names)
            )

        self._until(published, "published", seconds=seconds)

    def wait_quiet(self) -> None:
        """Wait until it has also looked for changes that the stream doesn't show, and has copied them."""
        self.settle()
        time.sleep(3 * self.config.source.heartbeat_interval_s)
        self.settle()

    def __enter__(self) -> "Captured":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def refusal(self) -> str:
        """What a start says that is refused, because the stream isn't at the stored position."""
        self.begin()
        error = self.wait_error()
        assert isinstance(error, PositionMismatch)
        return str(error)

    # What is on the topics.

    def state(self) -> CaptureState:
        state = read_state(self.client, self.name, self.config.slot)
        assert state is not None
        return state

    def topic(self, table: str) -> str:
        return self.config.topics()[TableName.parse(table)]

    def events(self, table: str) -> list["Published"]:
        """All records of a table, partition by partition."""
        return [
            Published(record.partition, record.key, record.value)
            for record in TopicReader(self.client).records(self.topic(table))
        ]

    def copied_rows(self, table: str) -> int:
        return sum(event.op == "r" for event in self.events(table))

    def schemas(self, table: str) -> list[SchemaRecord]:
        records = read_schema_records(self.client, self.name)
        return [record for record in records if record.table.name == TableName.parse(table)]

    def rows(self, table: str, *, by_tag: bool = False) -> dict[bytes, Row]:
        """The rows of the topic for a reader: the newest of each key, in the newest shape, by ``__schema`` alone.
        ``by_tag``: the event with the greatest tag counts, as in a sink. Otherwise the last event does."""
        return _folded(self.events(table), self.schemas(table), by_tag=by_tag)

    def source_rows(self, table: str) -> dict[bytes, Row]:
        """The same from the database, through the snapshot's encoder."""
        shape, rows = self._source_rows(TableName.parse(table))
        return {_key(shape, row): row for row in rows}

    def source_row_list(self, table: str) -> list[Row]:
        """All rows of a table, which needs no key for it."""
        return self._source_rows(TableName.parse(table))[1]

    def _source_rows(self, name: TableName) -> tuple[Table, list[Row]]:
        connection = self.database.pinned()
        with connection:
            shapes = load_tables(connection, [name], self.config.publication, self.config.source.keys)
            where = row_filters(connection, self.config.publication).get(name, "")
            return shapes[name], [dict(row) for row in SourceRows(connection, shapes).rows(shapes[name], where)]

    def assert_equal(self, *tables: str) -> None:
        """Every table's topic gives the source's rows, to a new reader and to a sink that was always there."""
        self.settle()
        names = tables or [str(name) for name in self.config.source.table_names]
        for table in names:
            events, records, rows = self.events(table), self.schemas(table), self.source_rows(table)
            for by_tag in (False, True):
                assert_same_rows(table, _folded(events, records, by_tag=by_tag), rows)


@dataclass(frozen=True)
class Published:
    partition: int
    key: bytes
    value: bytes | None
    parsed: Row = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.value is not None:
            self.parsed.update(orjson.loads(self.value))

    @property
    def op(self) -> str:
        return "tombstone" if self.value is None else str(self.parsed["op"])

    @property
    def tag(self) -> str:
        return str(self.parsed["tag"])

    @property
    def after(self) -> Row:
        return dict(self.parsed["after"])

    @property
    def schema_id(self) -> str:
        return str(self.parsed["source"]["schema_id"])


def _folded(events: Sequence[Published], records: Sequence[SchemaRecord], *, by_tag: bool) -> dict[bytes, Row]:
    indexes = {record.table.schema_id: index for index, record in enumerate(records)}
    newest: dict[bytes, Row] = {}
    tags: dict[bytes, str] = {}
    for event in events:
        if by_tag and event.value is None:
            continue  # it follows its delete, which has a tag
        if by_tag and event.tag < tags.setdefault(event.key, event.tag):
            continue
        if by_tag:
            tags[event.key] = event.tag
        if event.value is None or event.op in ("d", "x"):  # deleted, or left out
            newest.pop(event.key, None)
            continue
        row = event.after
        for record in records[indexes[event.schema_id] + 1 :]:
            row = carried(row, record)
        newest[event.key] = row
    return newest


def assert_same_rows(table: str, actual: Mapping[bytes, Row], expected: Mapping[bytes, Row], where: str = "") -> None:
    """Raise AssertionError with the first keys that differ; ``where`` says where the actual rows are."""
    different = [key for key in actual.keys() | expected.keys() if actual.get(key) != expected.get(key)]
    shown = [(key, _short(actual.get(key)), _short(expected.get(key))) for key in sorted(different)[:3]]
    assert not different, (
        f"{table}: {len(different)} keys differ, {where or 'on the topic'} and in the source: {str(shown)[:2000]}"
    )


def _short(row: Row | None) -> object:
    return None if row is None else {name: str(value)[:40] for name, value in row.items()}


def carried(row: Row, record: SchemaRecord) -> Row:
    """A row of the previous shape in a record's shape: renamed columns, defaults of added ones, no dropped ones."""
    change = record.change
    values = {}
    for column in record.table.columns:
        old = change.renamed.get(column.name, column.name)
        if old in row and (column.name in change.renamed or column.name not in change.defaults):
            values[column.name] = row[old]
        else:
            values[column.name] = change.defaults.get(column.name)
    return values


def _key(shape: Table, row: Mapping[str, Any]) -> bytes:
    return orjson.dumps({name: row[name] for name in shape.key})


StartCapture = Callable[..., Captured]


@pytest.fixture(name="capture")
def _capture(database: Database, endpoints: Endpoints, tmp_path: Path) -> Iterator[StartCapture]:
    """Starts capture of tables of the test's database, or ``of`` another one. Ends it with the test. ``publication`` is
    what follows ``for`` in the statement that creates one. Without it, capture creates its own."""
    made: list[Captured] = []

    def make(
        *tables: str,
        of: Database = database,
        publication: str = "",
        source: str = "",
        start: bool = True,
        **settings: Any,
    ) -> Captured:
        if publication:
            of.execute(f"create publication p for {publication}")
            source = f"publication = 'p'\n{source}"
        captured = Captured(of, endpoints.kafka_bootstrap, tmp_path, tables, source=source, **settings)
        made.append(captured)
        return captured.start() if start else captured

    yield make
    for captured in made:
        captured.stop()
