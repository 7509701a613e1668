"""Rows as rows of Delta tables in a directory or an object store, written with deltalake (delta-rs): no JVM, no server.

=================================  =====================================================================
``shop_g1/orders``                 Delta table of generation 1: the source's columns, ``_exact``, ``_tag``, ``_deleted``
``shop_live``                      Delta table: ``table_schema``, ``table_name``, ``path`` of each live table; the sink's bookkeeping table
=================================  =====================================================================

Readers look into ``shop_live`` for a table's path, relative to the root, and filter by ``not _deleted``. Deleted rows stay with their key
and tag, since without the tag an older write would bring them back. Tables of schema ``public`` keep their names, others are called
``schema__table``; two tables that would get the same name are refused. Characters of a name other than ASCII letters, digits and
``_`` become ``.`` and their hex. How values are stored, and what ``_exact`` is for, is in ``values``.

**Exactly once.** The rows of a batch are merged by key, and only a greater tag replaces a row. A batch is one commit per table, with the
offsets up to which it went as application transactions (``lockstep.offset:<topic>:<partition>``). A batch that is applied again, in
part or as a whole, finds its own tags.

**One writer.** ``claim`` writes a new fence into the log of each table, after it has taken it in the bookkeeping table. Every commit of rows is made
on a state of the log that holds the writer's own fence, and fails when any other commit of ours came in between (``lake``). So once
``claim`` has returned, no older writer commits rows to any table of the generation, however long it slept. What it commits before that
comes from the same log, and the tags decide. The files that a fenced writer has left are no part of the table, and vacuum removes them.

**Several tasks of the one writer** may apply at once. Of two that commit to one table at the same time one is overtaken, and merges
again on what the other one has written. Nothing is lost by that but its work, which is much: two tasks that wrote one table all the time
needed 41 merges for 24 batches. So one task is best where a sink has one large table: set ``spark.small_batch_rows`` as high as
``max_offsets_per_trigger``. Tables are independent of each other: sinks with different ``tables`` scale, also over machines.

**What a merge costs.** It reads the files whose range of keys the batch touches, and writes those anew in which rows are replaced.
New rows and batches that follow the keys are cheap; updates all over a large table write it anew each time. So files are
kept small (``target_file_mb``), and few large batches are much cheaper than many small ones: give the job a long ``trigger_ms``.
Measured with a million rows of 8 columns, 35 MB, in processor time per batch: 2,000 new rows 0.03 s, 2,000 updates of the newest 10,000
rows 0.3 s, 2,000 updates of any rows 0.8 s and 20,000 of them 0.9 s.

**Bulk.** Until ``end_bulk`` the batches are appended as they come. At the end the newest version of each row stays, in the order of the
keys. The table's own log says which way it is written, so nothing is appended once it says so no more. Only a generation that is empty and not live is
loaded like that, and it doesn't go live before the end.

**Readers.** A switch is one commit to ``shop_live``. Who has found the old path goes on with the old generation, whole, until it is
dropped. A query keeps to one version of a table; its files stay for ``retention_hours`` after they were replaced.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from queue import Full, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from cdc.model.errors import ConfigurationError, Fenced, LockstepError
from cdc.model.event import JsonValue, RowEvent
from cdc.model.table import Table, TableName
from sinks.access import Login
from sinks.columns.shape import Shape, unprepared
from sinks.contract import NOTHING_ADDED, AddedValues, Batch, OpenedSink, Outcome, Progress, Rejection, StoredRow
from sinks.delta.bookkeeping import CatalogueState, DeltaBookkeeping, GenerationState
from sinks.delta.lake import TRIES, Lake, Overtaken, refresh, talking, too_many
from sinks.progress_json import dump_progress, load_progress
from sinks.table_settings import PROJECTING, TableSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable

    from sinks.columns.exact_columns import Rows

_Result = TypeVar("_Result")

_SHAPE: Final = "lockstep.shape"
"""Property of a table: the shape that it was prepared for last."""

_FENCE: Final = "lockstep.fence"
"""Property of a table: who may write it."""

_BULK: Final = "lockstep.bulk"
"""Property of a table: ``yes`` while batches are appended."""

_OFFSET: Final = "lockstep.offset:"

_PREFIX: Final = re.compile(r"[A-Za-z0-9_]+")
_SECRET: Final = re.compile(
    r"secret|password|token|private|connection_string|sas(_|$)|(account|access|master|customer)_key(?!_id)",
    re.IGNORECASE,
)
# What user and password of a login are called, by the scheme of the root.
_LOGINS: Final = {
    **dict.fromkeys(("s3", "s3a"), ("aws_access_key_id", "aws_secret_access_key")),
    **dict.fromkeys(
        ("az", "azure", "abfs", "abfss", "adl"), ("azure_storage_account_name", "azure_storage_account_key")
    ),
    **dict.fromkeys(("gs", "gcs"), (None, "google_service_account_key")),
}
_OURS: Final = ("_exact", "_tag", "_deleted")
# Of rows that one query holds when the bulk load ends; more are done in portions.
_ROWS_AT_ONCE: Final = 2_000_000
_PORTIONS_MAX: Final = 256
_BATCHES_AHEAD: Final = 4
_SCAN_ROWS: Final = 8192


def _plain_options(options: Mapping[str, str]) -> Mapping[str, str]:
    secrets = [name for name in options if _SECRET.search(name) and not name.lower().endswith("_file")]
    if secrets:
        raise ValueError(
            f"{', '.join(sorted(secrets))}: secrets don't belong in here; use login, or deltalake's environment variables"
        )
    return options


def _table_names(partitions: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    for text in partitions:
        TableName.parse(text)
    return partitions


class DeltaSettings(TableSettings):
    """Delta tables below ``root``: an absolute path, or an address such as ``s3://bucket/lake``, ``abfss://...``, ``gs://...``.

    ``prefix`` begins the name of each directory; without it the sink's name. ``login`` is the store's key and secret;
    ``storage_options`` are deltalake's other settings of the store. ``partition_by`` names columns by table. After every
    ``optimize_every_commits`` commits to a table its small files are put together, up to ``target_file_mb``, and files that were
    replaced more than ``retention_hours`` ago are deleted.
    """

    SHAPING: ClassVar[frozenset[str]] = PROJECTING | {"partition_by"}

    type: Literal["delta"] = "delta"
    root: str = Field(min_length=1)
    prefix: str | None = None
    partition_by: Annotated[Mapping[str, tuple[str, ...]], AfterValidator(_table_names)] = {}
    login: Login = Login()
    storage_options: Annotated[Mapping[str, str], AfterValidator(_plain_options)] = {}
    optimize_every_commits: int = Field(100, gt=0)
    retention_hours: int = Field(24, gt=0)
    target_file_mb: int = Field(16, gt=0)

    @model_validator(mode="after")
    def _root_and_login_fit(self) -> Self:
        scheme = urlsplit(self.root).scheme
        if not scheme and not Path(self.root).is_absolute():
            raise ValueError("root is neither an absolute path nor an address")
        if self.login != Login() and scheme not in _LOGINS:
            raise ValueError("login is for object stores")
        return self

    def options(self) -> dict[str, str]:
        """deltalake's storage options. Raises LockstepError when a password file can't be read."""
        options = dict(self.storage_options)
        password = self.login.read_password()
        user_option, password_option = _LOGINS.get(urlsplit(self.root).scheme, (None, None))
        if user_option is not None and self.login.user is not None:
            options[user_option] = self.login.user
        if password_option is not None and password is not None:
            options[password_option] = password
        return options


def delta_name(name: TableName) -> str:
    """What a source table's directory is called."""
    text = name.name if name.schema == "public" else f"{name.schema}__{name.name}"
    return re.sub(r"[^A-Za-z0-9_]", lambda found: "".join(f".{byte:02x}" for byte in found[0].encode()), text)


class _Held:
    """A Delta table of this generation, opened."""

    def __init__(self, name: TableName, path: str, table: "DeltaTable") -> None:
        self.name = name
        self.path = path
        self.table = table
        self._shape_text = ""
        self._rows: Rows | None = None

    @property
    def fence(self) -> int:
        return int(self.table.metadata().configuration[_FENCE])

    @property
    def is_bulk(self) -> bool:
        return self.table.metadata().configuration.get(_BULK) == "yes"

    def refresh(self) -> None:
        refresh(self.table)

    def rows(self) -> "Rows":
        """How its rows are stored, as of the last refresh."""
        from sinks.delta.values import rows_of

        metadata = self.table.metadata()
        text = metadata.configuration[_SHAPE]
        if self._rows is None or text != self._shape_text:
            self._rows = rows_of(Shape.from_json(text), metadata.partition_columns)
            self._shape_text = text
        return self._rows

    def columns(self) -> "pa.Schema":
        """Its columns. While it is being prepared it may have some that ``rows`` doesn't know yet."""
        import pyarrow as pa

        return pa.schema(self.table.schema())

    def read(self, columns: Sequence[str], condition: Any) -> Iterator["pa.RecordBatch"]:
        """The live rows that fulfil a condition. The caller may take its time."""
        import pyarrow.dataset as ds

        live = ~ds.field("_deleted")
        with talking():
            scanner = self.table.to_pyarrow_dataset().scanner(
                columns={name: ds.field(name) for name in columns},
                filter=live if condition is None else live & condition,
                batch_size=_SCAN_ROWS,
                batch_readahead=2,
                fragment_readahead=1,
            )
            yield from scanner.to_batches()


def open_delta(name: str, settings: DeltaSettings, generation: int) -> OpenedSink:
    """The destination opened for one generation. It connects when it is first used."""
    sink = DeltaSink(name, settings, generation)
    return OpenedSink(sink, sink, sink)


class DeltaSink:
    """Applies events to Delta tables. Opens them when they are first used, and keeps them open."""

    def __init__(self, name: str, settings: DeltaSettings, generation: int) -> None:
        self._name = name
        self._settings = settings
        self._generation = generation
        self._prefix = settings.prefix or name
        if not _PREFIX.fullmatch(self._prefix):
            raise ConfigurationError(
                f"sink {name!r}: {self._prefix!r} can't begin a directory's name",
                hint="set prefix to letters, digits and '_'",
            )
        self._lake = Lake(settings.root, settings.options)
        self._bookkeeping = DeltaBookkeeping(self._lake, f"{self._prefix}_live", name)
        self._held: dict[TableName, _Held] = {}
        self._fence = 0

    def prepare(
        self, tables: Sequence[Table], *, go_live: bool = True, added: AddedValues = NOTHING_ADDED
    ) -> AddedValues:
        build = self._bookkeeping.change(self._entered).builds[self._generation]
        _check_names_differ([*build.tables, *(table.name for table in tables)])
        # All are looked at before any is changed.
        shapes = {table.name: self._next_shape(table, build) for table in tables}
        for name, shape in shapes.items():
            if name in build.tables:
                self._widen(self._opened(name), shape, added.get(name, {}))
        self._add_tables({name: shape for name, shape in shapes.items() if name not in build.tables})

        def choose(state: CatalogueState, live: int | None) -> int | None:
            build = self._build(state)
            may_go = go_live and not build.is_bulk
            return self._generation if live == self._generation or (live is None and may_go) else None

        self._bookkeeping.show(choose)
        return NOTHING_ADDED

    def begin_bulk(self) -> None:
        """Has no effect on a generation that has rows already, or readers: its rows stay one per key throughout."""
        build = self._build(self._bookkeeping.read())
        if not build.is_bulk:
            for name in build.tables:
                self._opened(name).refresh()
                if _has_rows(self._opened(name)):
                    return

            def begin(state: CatalogueState, live: int | None) -> CatalogueState:
                known = self._build(state)
                return (
                    state
                    if live == self._generation
                    else state.with_build(self._generation, replace(known, is_bulk=True))
                )

            build = self._build(self._bookkeeping.change(begin))
            if not build.is_bulk:
                return
        for name in build.tables:
            self._repeat(self._opened(name), self._begin_bulk_of)

    def end_bulk(self) -> None:
        build = self._bookkeeping.read().builds.get(self._generation)
        if build is None or not build.is_bulk:
            return
        for name in build.tables:
            self._repeat(self._opened(name), self._end_bulk_of)
        self._bookkeeping.change(
            lambda state, _: state.with_build(self._generation, replace(self._build(state), is_bulk=False))
        )

    def claim(self) -> int:
        def next_fence(state: CatalogueState, _live: int | None) -> CatalogueState:
            build = self._build(state)
            return state.with_build(self._generation, replace(build, fence=build.fence + 1))

        build = self._build(self._bookkeeping.change(next_fence))
        for name in build.tables:
            if self._repeat(self._opened(name), lambda held: self._raise_fence(held, build.fence)) != build.fence:
                raise self._fenced_off()
        self._fence = build.fence
        return self._fence

    def fence(self) -> int:
        return self._build(self._bookkeeping.read()).fence

    def apply(self, batch: Batch) -> Outcome:
        by_table: dict[TableName, list[RowEvent]] = {}
        for event in batch.events:
            by_table.setdefault(event.table, []).append(event)
        applied = 0
        rejections: list[Rejection] = []
        for name, events in sorted(by_table.items()):
            written, refused = self._apply_to(self._opened(name), events, batch)
            applied += written
            rejections += refused
        return Outcome(applied, sum(map(len, by_table.values())) - applied - len(rejections), rejections)

    def load_progress(self) -> Progress | None:
        build = self._bookkeeping.read().builds.get(self._generation)
        return None if build is None or build.progress is None else load_progress(build.progress)

    def save_progress(self, progress: Progress) -> None:
        text = dump_progress(progress).decode()

        def save(state: CatalogueState, _live: int | None) -> CatalogueState:
            build = self._build(state)
            if build.fence != self._fence:
                raise self._fenced_off()
            return state.with_build(self._generation, replace(build, progress=text))

        self._bookkeeping.change(save)

    def live(self) -> int | None:
        return self._bookkeeping.live()

    def numbers(self) -> list[int]:
        state = self._bookkeeping.read()
        # One whose files are still to be deleted is still to be dropped.
        return sorted({*state.builds, *(number for number, _ in state.doomed.values())})

    def switch(self) -> None:
        def choose(state: CatalogueState, _live: int | None) -> int:
            if self._build(state).is_bulk:
                raise LockstepError(
                    f"generation {self._generation} is still being loaded in bulk",
                    hint="switch when its load has ended",
                )
            return self._generation

        self._build(self._bookkeeping.read())  # nothing is created for a generation that never was
        self._bookkeeping.show(choose)

    def keep_only(self, tables: Collection[TableName]) -> list[TableName]:
        if self._generation not in self._bookkeeping.read().builds:
            return []

        def leave(state: CatalogueState, _live: int | None) -> CatalogueState:
            return state.without(self._generation, self._build(state).tables.keys() - set(tables))

        state = self._bookkeeping.change(leave)
        self._bookkeeping.show(lambda _, live: live if live == self._generation else None)
        gone = sorted(name for number, name in state.doomed.values() if number == self._generation)
        for name in gone:
            self._held.pop(name, None)
        self._delete_doomed()
        return gone

    def drop(self) -> None:
        def leave(state: CatalogueState, live: int | None) -> CatalogueState:
            if live == self._generation:
                raise LockstepError(
                    f"generation {self._generation} is live",
                    hint="switch to another generation before you drop this one",
                )
            records = {
                name: text for name, text in state.records.items() if not name.startswith(f"g{self._generation}.")
            }
            if self._generation in state.builds:
                state = state.without(self._generation, state.builds[self._generation].tables.keys())
            builds = {number: build for number, build in state.builds.items() if number != self._generation}
            return replace(state, builds=builds, records=records)

        self._held.clear()
        if self._bookkeeping.read() == CatalogueState():
            return
        self._bookkeeping.change(leave)
        self._delete_doomed()

    def load(self, name: str) -> str | None:
        return self._bookkeeping.read().records.get(name)

    def save(self, name: str, text: str | None) -> None:
        def save(state: CatalogueState, _live: int | None) -> CatalogueState:
            others = {known: content for known, content in state.records.items() if known != name}
            return replace(state, records=others if text is None else {**others, name: text})

        self._bookkeeping.change(save)

    def create(self, name: str, text: str) -> bool:
        created = False

        def create(state: CatalogueState, _live: int | None) -> CatalogueState:
            nonlocal created
            created = name not in state.records
            return replace(state, records={**state.records, name: text}) if created else state

        self._bookkeeping.change(create)
        return created

    def scan(self, table: Table) -> Iterator[StoredRow]:
        held = self._opened(table.name)
        held.refresh()
        rows = held.rows()
        for batch in held.read(rows.columns_for(table), None):
            yield from rows.decode(batch, table)

    def rows(self, table: Table, keys: Sequence[Mapping[str, JsonValue]]) -> Iterator[StoredRow]:
        import pyarrow as pa

        if not keys:
            return
        held = self._opened(table.name)
        held.refresh()
        rows = held.rows()
        arrays = rows.key_arrays(keys)
        condition: Any = None
        for name, values in arrays.items():
            among = _among(name, values)
            condition = among if condition is None else condition & among
        wanted = set(zip(*(values.to_pylist() for values in arrays.values()), strict=True))
        columns = list(dict.fromkeys([*rows.columns_for(table), *table.key]))
        for batch in held.read(columns, condition):
            found = zip(*(batch.column(name).to_pylist() for name in table.key), strict=True)
            places = [place for place, key in enumerate(found) if key in wanted]
            yield from rows.decode(batch.take(pa.array(places, pa.int64())), table)

    def close(self) -> None:
        self._held.clear()
        self._bookkeeping.close()

    def _entered(self, state: CatalogueState, _live: int | None) -> CatalogueState:
        """The state with this generation in it."""
        return state if self._generation in state.builds else state.with_build(self._generation, GenerationState())

    def _next_shape(self, table: Table, build: GenerationState) -> Shape:
        """The shape that a table will have. Raises LockstepError when what is there doesn't fit."""
        from sinks.delta.values import form_of

        _check_columns(table)
        if table.name not in build.tables:
            _check_partitions(table, self._partitions(table))
            return Shape.of(table)
        held = self._opened(table.name)
        held.refresh()
        known = held.rows()
        shape = known.shape.evolve(table)
        for column in table.columns:
            kind = form_of(column, is_key=column.name in table.key).type
            if column.name in known.schema.names and known.schema.field(column.name).type != kind:
                raise LockstepError(
                    f"table {table.name} no longer fits what this generation was built for: column {column.name!r} is "
                    f"{column.type_name} now, which its {known.schema.field(column.name).type} can't hold",
                    hint="build it anew from the log: lockstep rebuild, with --switch",
                )
        return shape

    def _widen(self, held: _Held, shape: Shape, added: Mapping[str, JsonValue]) -> None:
        """Give a table the columns that its shape has; those of ``added`` have these values in the rows that are there."""
        if held.rows().shape == shape:
            return

        def widen(held: _Held) -> None:
            from sinks.delta.values import rows_of

            known = held.rows().shape.columns
            new = [column.name for column in shape.columns[len(known) :]]
            rows = rows_of(shape)
            missing = [name for name in new if name not in held.columns().names]
            if missing:
                fields = _fields(rows.schema, missing)
                self._lake.commit(
                    held.path,
                    held.table,
                    lambda properties: held.table.alter.add_columns(fields, commit_properties=properties),
                )
            values = {name: added[name] for name in new if name in added}
            if values and _has_rows(held):
                version = held.table.version()
                self._fill(held, rows.filling(values))
                if held.table.version() != version + 1:
                    raise Overtaken  # by rows of the old shape, which have null there
            # Nobody writes these columns before this commit.
            self._lake.set_properties(held.path, held.table, {_SHAPE: shape.to_json()})

        self._repeat(held, widen)

    def _fill(self, held: _Held, values: "pa.Table") -> None:
        """Write these values into all rows that are there. Rows that came without the columns have null in them."""
        exact = _quoted("_exact", of="t")
        addition = _quoted("_exact", of="s")
        updates = {_quoted(name): _quoted(name, of="s") for name in values.column_names if name not in _OURS}
        if values.column("_exact")[0].is_valid:
            updates[_quoted("_exact")] = (
                f"case when {exact} is null then {addition} else "
                f"concat(substr({exact}, 1, length({exact}) - 1), ',', substr({addition}, 2)) end"
            )
        self._lake.commit(
            held.path,
            held.table,
            lambda properties: (
                held.table.merge(
                    values,
                    f"{_quoted('_deleted', of='t')} = {_quoted('_deleted', of='s')}",
                    source_alias="s",
                    target_alias="t",
                    commit_properties=properties,
                )
                .when_matched_update(updates)
                .execute()
            ),
        )

    def _add_tables(self, shapes: Mapping[TableName, Shape]) -> None:
        """Make tables, and enter them in the bookkeeping table with the fence of that moment."""
        if not shapes:
            return
        for _ in range(TRIES):
            state = self._bookkeeping.read()
            build = self._build(state)
            made = [self._make(state, shape) for name, shape in shapes.items() if name not in build.tables]
            if self._enter(made, build.fence):
                return
        raise too_many(f"the bookkeeping table of sink {self._name!r}")

    def _make(self, state: CatalogueState, shape: Shape) -> _Held:
        """Make a table. Its fence is at least that of the catalogue state."""
        from sinks.delta.values import rows_of

        name = shape.table.name
        path = state.path_for(f"{self._prefix}_g{self._generation}/{delta_name(name)}")
        partitions = self._partitions(shape.table)
        hours, fence = self._settings.retention_hours, self._build(state).fence
        table = self._lake.create(
            path,
            rows_of(shape, partitions).schema,
            partitions=partitions,
            configuration={
                _SHAPE: shape.to_json(),
                _FENCE: str(fence),
                # Versions whose files are gone are of no use, and every batch makes one.
                "delta.logRetentionDuration": f"interval {hours} hours",
                "delta.deletedFileRetentionDuration": f"interval {hours} hours",
            },
        )
        # It may be what a prepare has left that was killed before it entered the table, or another one has just entered.
        held = _Held(name, path, table)
        self._widen(held, held.rows().shape.evolve(shape.table), {})
        self._repeat(held, lambda held: self._raise_fence(held, fence))
        return held

    def _enter(self, made: Sequence[_Held], fence: int) -> bool:
        """False when the fence of the bookkeeping table was another one than the tables have: then nothing is entered."""
        highest = max([fence, *(held.fence for held in made)])

        def enter(state: CatalogueState, _live: int | None) -> CatalogueState:
            build = self._build(state)
            if build.fence == highest == fence:
                build = replace(build, tables={**{held.name: held.path for held in made}, **build.tables})
            elif build.fence < highest:  # a table that was left over from a writer of before
                build = replace(build, fence=highest)
            return state.with_build(self._generation, build)

        entered = self._build(self._bookkeeping.change(enter)).tables
        return all(held.name in entered for held in made)

    def _begin_bulk_of(self, held: _Held) -> None:
        if not held.is_bulk and not _has_rows(held):
            self._lake.set_properties(held.path, held.table, {_BULK: "yes"})

    def _end_bulk_of(self, held: _Held) -> None:
        """Keep the newest version of each row, and let merges begin."""
        from deltalake import write_deltalake

        if not held.is_bulk:
            return
        if _has_rows(held):
            with talking():
                newest = _newest(held)
            version = held.table.version()
            self._lake.commit(
                held.path,
                held.table,
                lambda properties: write_deltalake(
                    held.table,
                    newest,
                    mode="overwrite",
                    target_file_size=self._target_bytes,
                    commit_properties=properties,
                ),
            )
            if held.table.version() != version + 1:
                raise Overtaken  # by another append
        self._lake.set_properties(held.path, held.table, {_BULK: "no"})

    def _raise_fence(self, held: _Held, fence: int) -> int:
        """Let writers of this fence in and older ones out. Returns the table's fence, which may be a newer one."""
        if held.fence < fence:
            self._lake.set_properties(held.path, held.table, {_FENCE: str(fence)})
        return held.fence

    def _apply_to(self, held: _Held, events: Sequence[RowEvent], batch: Batch) -> tuple[int, list[Rejection]]:
        """Rows written, and rejections. One commit."""
        rows: Rows | None = None
        data: Any = None
        rejections: list[Rejection] = []

        def write(held: _Held) -> int:
            nonlocal rows, data, rejections
            if held.fence != batch.fence:
                raise self._fenced_off()
            if rows is not held.rows():
                rows = held.rows()
                data, rejections = rows.encode(events)
            if not data.num_rows:
                return 0
            return self._write(held, _fit(data, held.columns()), batch)

        return self._repeat(held, write), rejections

    def _write(self, held: _Held, data: "pa.Table", batch: Batch) -> int:
        """Append or merge rows. Raises Overtaken."""
        offsets = {
            f"{_OFFSET}{topic}:{partition}": next_offset
            for (topic, partition), next_offset in batch.next_offsets.items()
        }
        if held.is_bulk:
            self._lake.commit(held.path, held.table, lambda properties: _append(held, data, properties), offsets)
            return data.num_rows  # type: ignore[no-any-return]  # pyarrow has no types
        key = held.rows().shape.table.key
        before = held.table.version()
        metrics = self._lake.commit(
            held.path,
            held.table,
            lambda properties: _merge(held, data, key, properties, overwrite_equal_tags=batch.overwrite_equal_tags),
            offsets,
        )
        every = self._settings.optimize_every_commits
        if before // every != held.table.version() // every:
            self._tidy(held)
        return int(metrics["num_target_rows_inserted"] + metrics["num_target_rows_updated"])

    def _tidy(self, held: _Held) -> None:
        """Put small files together, and delete what nobody reads any more."""
        from deltalake.exceptions import CommitFailedError

        before = held.table.version()
        with talking():
            with suppress(
                CommitFailedError
            ):  # another task has just replaced one of these files; the next time will do
                held.table.optimize.compact(target_size=self._target_bytes)
            refresh(held.table)
        # Before anything is deleted that was put together just now.
        self._lake.sync(held.path, range(before + 1, held.table.version() + 1))
        before = held.table.version()
        with talking():
            held.table.vacuum(
                retention_hours=self._settings.retention_hours,
                dry_run=False,
                enforce_retention_duration=False,
                full=True,  # also what killed and overtaken writers have left
            )
            refresh(held.table)
        self._lake.sync(held.path, range(before + 1, held.table.version() + 1))

    @property
    def _target_bytes(self) -> int:
        return self._settings.target_file_mb * 1024 * 1024

    def _partitions(self, table: Table) -> tuple[str, ...]:
        named = {TableName.parse(text): columns for text, columns in self._settings.partition_by.items()}
        return tuple(named.get(table.name, ()))

    def _repeat(self, held: _Held, step: Callable[[_Held], _Result]) -> _Result:
        """Do a step on a table as it is now, until no other commit comes in between."""
        for _ in range(TRIES):
            held.refresh()
            try:
                return step(held)
            except Overtaken:
                continue
        raise too_many(held.path)

    def _opened(self, name: TableName) -> _Held:
        """A table of this generation. Raises LockstepError when it wasn't prepared."""
        held = self._held.get(name)
        if held is None:
            path = self._build(self._bookkeeping.read()).tables.get(name)
            table = None if path is None else self._lake.open(path)
            if path is None or table is None:
                raise unprepared(name)
            held = self._held[name] = _Held(name, path, table)
        return held

    def _build(self, state: CatalogueState) -> GenerationState:
        try:
            return state.builds[self._generation]
        except KeyError:
            raise LockstepError(
                f"generation {self._generation} of sink {self._name!r} doesn't exist",
                hint="it was never prepared, or it was dropped",
            ) from None

    def _delete_doomed(self) -> None:
        """Delete the files of this generation's tables that are gone from the bookkeeping table."""
        doomed = {path for path, (number, _) in self._bookkeeping.read().doomed.items() if number == self._generation}
        for path in sorted(doomed):
            self._lake.remove(path)
        self._bookkeeping.change(
            lambda state, _: replace(
                state, doomed={path: of for path, of in state.doomed.items() if path not in doomed}
            )
        )

    def _fenced_off(self) -> Fenced:
        return Fenced(
            f"another job has become the writer of sink {self._name!r}, generation {self._generation}",
            hint="stop one of the two jobs",
        )


def _append(held: _Held, data: "pa.Table", properties: "CommitProperties") -> None:
    from deltalake import write_deltalake

    write_deltalake(held.table, data, mode="append", commit_properties=properties)


def _merge(
    held: _Held, data: "pa.Table", key: Sequence[str], properties: "CommitProperties", *, overwrite_equal_tags: bool
) -> Mapping[str, Any]:
    """Insert or replace rows by their tags; returns deltalake's figures."""
    newer = f"{_quoted('_tag', of='s')} {'>=' if overwrite_equal_tags else '>'} {_quoted('_tag', of='t')}"
    return (
        held.table.merge(
            data,
            " and ".join(f"{_quoted(name, of='t')} = {_quoted(name, of='s')}" for name in key),
            source_alias="s",
            target_alias="t",
            # A batch is in memory anyway, and then files that can't hold one of its keys aren't read.
            streamed_exec=False,
            commit_properties=properties,
        )
        .when_matched_update_all(newer)
        .when_not_matched_insert_all()
        .execute()
    )


def _newest(held: _Held) -> "pa.RecordBatchReader":
    """The newest version of each row in the order of the keys, so that merges find most files out of reach. Read as it is asked for."""
    import pyarrow as pa
    from deltalake import QueryBuilder

    table, rows = held.table, held.rows()
    key = ", ".join(map(_quoted, rows.shape.table.key))
    columns = ", ".join(map(_quoted, held.columns().names))

    def query(text: str) -> "pa.RecordBatchReader":
        return pa.RecordBatchReader.from_stream(QueryBuilder().register("held", table).execute(text))

    def newest() -> "Iterator[pa.RecordBatch]":
        for where in _portions(rows, min(_PORTIONS_MAX, -(-table.count() // _ROWS_AT_ONCE)), query):
            yield from query(
                f"select {columns} from (select *, row_number() over (partition by {key} order by {_quoted('_tag')} desc) "
                f"as lockstep_rank from held where {where}) where lockstep_rank = 1 order by {key}"
            )

    batches = _ahead(newest())
    first = next(batches)
    return pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))


def _ahead(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """The same batches, made in a thread, a few ahead: deltalake can't begin a query while it asks for what to write."""
    made: Queue[pa.RecordBatch | Exception | None] = Queue(_BATCHES_AHEAD)
    is_over = Event()

    def hand_over(batch: "pa.RecordBatch | Exception | None") -> None:
        while not is_over.is_set():
            with suppress(Full):
                made.put(batch, timeout=1)
                return

    def make() -> None:
        try:
            for batch in batches:
                hand_over(batch)
                if is_over.is_set():
                    return
            hand_over(None)
        except Exception as error:  # raised again where the batches are used
            hand_over(error)

    thread = Thread(target=make, daemon=True, name="lockstep-newest")
    thread.start()
    try:
        while (batch := made.get()) is not None:
            if isinstance(batch, Exception):
                raise batch
            yield batch
    finally:
        is_over.set()
        thread.join()


def _portions(rows: "Rows", count: int, query: Callable[[str], "pa.RecordBatchReader"]) -> Iterator[str]:
    """Conditions that divide the rows by their keys, so that a query never has to hold all of a large table."""
    import pyarrow as pa

    leading = rows.schema.field(rows.shape.table.key[0])
    if count <= 1:
        yield "true"
        return
    if pa.types.is_integer(leading.type):
        name = _quoted(leading.name)
        cuts = ", ".join(f"approx_percentile_cont({name}, {part / count})" for part in range(1, count))
        bounds = sorted(set(query(f"select {cuts} from held").read_all().to_pylist()[0].values()))
        conditions = [f"{name} >= {low} and {name} < {high}" for low, high in pairwise(bounds)]
        yield from (f"{name} < {bounds[0]}", *conditions, f"{name} >= {bounds[-1]}")
        return
    texts = [
        f"encode({_quoted(name)}, 'hex')"
        if pa.types.is_binary(rows.schema.field(name).type)
        else f"cast({_quoted(name)} as varchar)"
        for name in rows.shape.table.key
    ]
    digits = f"substr(md5(concat_ws('/', {', '.join(texts)})), 1, 2)"
    hexadecimal = [f"'{_PORTIONS_MAX * part // count:02x}'" for part in range(count)]
    yield from (f"{digits} >= {low} and {digits} < {high}" for low, high in pairwise(hexadecimal))
    yield f"{digits} >= {hexadecimal[-1]}"


def _among(name: str, values: "pa.Array") -> Any:
    """The condition that a column has one of these values. Files that can't have one aren't read where these are integers."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        # deltalake gives pyarrow the files' ranges as views of text, which it can't compare with text.
        large = pa.large_string() if pa.types.is_string(values.type) else pa.large_binary()
        return ds.field(name).cast(large).isin(values.unique().cast(large))
    return ds.field(name).isin(values.unique())


def _fit(data: "pa.Table", columns: "pa.Schema") -> "pa.Table":
    """The rows with all columns that the table has."""
    import pyarrow as pa

    for field in columns:
        if field.name not in data.column_names:
            data = data.append_column(field, pa.nulls(data.num_rows, field.type))
    return data.select(columns.names)


def _fields(schema: "pa.Schema", names: Iterable[str]) -> Any:
    import pyarrow as pa
    from deltalake import Schema

    return Schema.from_arrow(pa.schema([schema.field(name) for name in names])).fields


def _has_rows(held: _Held) -> bool:
    return bool(held.table.file_uris())


def _quoted(name: str, *, of: str = "") -> str:
    quoted = '"' + name.replace('"', '""') + '"'
    return f"{of}.{quoted}" if of else quoted


def _check_columns(table: Table) -> None:
    """Raise LockstepError for columns that a Delta table can't have."""
    way_out = "rename the column at the source, or leave it out with exclude of this sink"
    taken: dict[str, str] = {}
    for column in table.columns:
        if column.name.lower() in _OURS:
            raise LockstepError(
                f"table {table.name} has a column {column.name!r}, a name that the Delta sink needs for itself",
                hint=way_out,
            )
        if "`" in column.name:
            raise LockstepError(
                f"table {table.name} has a column {column.name!r}, and deltalake can't merge by names with a backtick",
                hint=way_out,
            )
        other = taken.setdefault(column.name.lower(), column.name)
        if other != column.name:
            raise LockstepError(
                f"table {table.name} has the columns {other!r} and {column.name!r}, which are the same for Delta",
                hint=way_out,
            )


def _check_partitions(table: Table, partitions: Sequence[str]) -> None:
    """Raise LockstepError for columns that a Delta table can't be divided by."""
    from sinks.delta.values import may_partition

    columns = {column.name: column for column in table.columns}
    for name in partitions:
        if name not in columns:
            raise LockstepError(
                f"table {table.name} has no column {name!r} to be partitioned by", hint="mend partition_by of this sink"
            )
        if not may_partition(columns[name], is_key=name in table.key):
            raise LockstepError(
                f"table {table.name} can't be partitioned by {name!r}, which is {columns[name].type_name}",
                hint="partition by a boolean, integer, date or text column: mend partition_by of this sink",
            )


def _check_names_differ(names: Iterable[TableName]) -> None:
    taken: dict[str, TableName] = {}
    for name in sorted(set(names)):
        other = taken.setdefault(delta_name(name), name)
        if other != name:
            raise LockstepError(
                f"tables {other} and {name} would both be called {delta_name(name)!r} in the lake",
                hint="give one of them to another sink with another prefix: set tables of both sinks",
            )
