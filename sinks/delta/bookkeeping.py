"""The bookkeeping table of a Delta sink, ``<root>/<name>_live``: generations, fences, tables, coordination records."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from sinks.delta.lake import TRIES, Lake, Overtaken, talking, too_many
from sinks.stored_format import STORED_FORMAT, check_stored_format

if TYPE_CHECKING:
    from deltalake import DeltaTable

_STATE: Final = "lockstep.state"
# Coordination records are written several times a second. Earlier versions are useless, so the log is cut often.
_LOG_RETENTION: Final = "interval 1 hours"


@dataclass(frozen=True, slots=True)
class GenerationState:
    fence: int = 0
    is_bulk: bool = False
    tables: Mapping[TableName, str] = field(default_factory=dict)
    """Where each table is, below the root."""
    progress: str | None = None
    """As JSON."""


@dataclass(frozen=True, slots=True)
class CatalogueState:
    """Everything stored besides the rows."""

    builds: Mapping[int, GenerationState] = field(default_factory=dict)
    records: Mapping[str, str] = field(default_factory=dict)
    reuses: Mapping[str, int] = field(default_factory=dict)
    """How often a table in this directory was removed. A new one gets another, without late writers' files."""
    doomed: Mapping[str, tuple[int, TableName]] = field(default_factory=dict)
    """Directories whose files are still to be deleted -> the generation and table that they belonged to."""

    def with_build(self, number: int, build: GenerationState) -> "CatalogueState":
        return replace(self, builds={**self.builds, number: build})

    def without(self, number: int, tables: Collection[TableName]) -> "CatalogueState":
        """The state without these tables of a generation. Their files are deleted later."""
        build = self.builds[number]
        kept = {name: path for name, path in build.tables.items() if name not in tables}
        reuses, doomed = dict(self.reuses), dict(self.doomed)
        for name in tables:
            path = build.tables[name]
            directory, _, reuse = path.partition("-")
            reuses[directory] = int(reuse or 0) + 1
            doomed[path] = (number, name)
        return replace(self, reuses=reuses, doomed=doomed).with_build(number, replace(build, tables=kept))

    def path_for(self, directory: str) -> str:
        """The directory of a new table. No directory's own name has a hyphen."""
        reuse = self.reuses.get(directory, 0)
        return f"{directory}-{reuse}" if reuse else directory

    def to_json(self) -> str:
        return orjson.dumps(
            {
                "format": STORED_FORMAT,
                "builds": [
                    {
                        "generation": number,
                        "fence": build.fence,
                        "bulk": build.is_bulk,
                        "tables": [[name.schema, name.name, path] for name, path in build.tables.items()],
                        "progress": build.progress,
                    }
                    for number, build in self.builds.items()
                ],
                "coordination_records": dict(self.records),
                "reuses": dict(self.reuses),
                "doomed": [[path, number, name.schema, name.name] for path, (number, name) in self.doomed.items()],
            }
        ).decode()

    @classmethod
    def from_json(cls, text: str, *, sink: str) -> "CatalogueState":
        """Raises LockstepError for a state with another stored format."""
        fields: dict[str, Any] = orjson.loads(text)
        check_stored_format(sink, fields.get("format", 1), elsewhere="prefix or root")
        builds = {
            build["generation"]: GenerationState(
                build["fence"],
                build["bulk"],
                {TableName(schema, name): path for schema, name, path in build["tables"]},
                build["progress"],
            )
            for build in fields["builds"]
        }
        doomed = {path: (number, TableName(schema, name)) for path, number, schema, name in fields["doomed"]}
        return cls(builds, fields["coordination_records"], fields["reuses"], doomed)


class DeltaBookkeeping:
    """The bookkeeping table of one sink. Every call reads its present state.

    Its *rows* are for readers: the live generation's tables and where they are. Everything else is one JSON document in
    its metadata, under ``lockstep.state``. Each change is one commit that no other commit overtakes (``lake``). So
    readers see all of a change or nothing, even on object stores, which can't rename.
    """

    def __init__(self, lake: Lake, path: str, name: str) -> None:
        self._lake = lake
        self._name = name
        self._path = path
        self._table: DeltaTable | None = None
        self._known: tuple[str, CatalogueState] = ("", CatalogueState())

    def read(self) -> CatalogueState:
        """The state; empty without a bookkeeping table. Raises LockstepError for a foreign table or stored format."""
        table = self._refreshed()
        return CatalogueState() if table is None else self._state(table)

    def live(self) -> int | None:
        """The generation that readers see. Raises LockstepError as ``read`` does."""
        table = self._refreshed()
        if table is None:
            return None
        self._state(table)  # a foreign table has no generation
        return _live(table)

    def change(self, step: Callable[[CatalogueState, int | None], CatalogueState]) -> CatalogueState:
        """Replace the catalogue state by what ``step`` makes of it and the live generation. The same state: no change.

        ``step`` may be called again, after others have changed something. Its exceptions end the change. Raises
        Unavailable if others interfered too often.
        """
        for _ in range(TRIES):
            table = self._refreshed() or self._create()
            known = self._state(table)
            wanted = step(known, _live(table))
            if wanted == known:
                return known
            try:
                self._write(table, wanted)
            except Overtaken:
                continue
            return wanted
        raise too_many(self._path)

    def expose(self, choose: Callable[[CatalogueState, int | None], int | None]) -> None:
        """Make the chosen generation live, and show its tables to readers. None: no change. Raises Unavailable."""
        for _ in range(TRIES):
            table = self._refreshed() or self._create()
            known, live = self._state(table), _live(table)
            number = choose(known, live)
            if number is None:
                return
            wanted = _exposed(number, known.builds[number])
            if live == number and _rows(table) == wanted:
                return
            try:
                self._expose(table, wanted)
            except Overtaken:
                continue
            return
        raise too_many(self._path)

    def close(self) -> None:
        self._table = None

    def _write(self, table: "DeltaTable", state: CatalogueState) -> None:
        self._lake.set_properties(self._path, table, {_STATE: state.to_json()})

    def _expose(self, table: "DeltaTable", rows: list[dict[str, Any]]) -> None:
        import pyarrow as pa
        from deltalake import write_deltalake

        data = pa.Table.from_pylist(rows, schema=_schema())
        self._lake.commit(
            self._path,
            table,
            lambda properties: write_deltalake(table, data, mode="overwrite", commit_properties=properties),
        )

    def _refreshed(self) -> "DeltaTable | None":
        if self._table is None:
            self._table = self._lake.open(self._path)
        else:
            self._table = self._lake.refresh(self._path, self._table)
        return self._table

    def _create(self) -> "DeltaTable":
        self._table = self._lake.create(
            self._path,
            _schema(),
            partitions=["generation"],
            configuration={_STATE: CatalogueState().to_json(), "delta.logRetentionDuration": _LOG_RETENTION},
        )
        return self._table

    def _state(self, table: "DeltaTable") -> CatalogueState:
        text = table.metadata().configuration.get(_STATE)
        if text is None:
            raise LockstepError(
                f"the Delta table {self._path!r} isn't this sink's",
                hint="something else has that name: give the sink another root or prefix",
            )
        if text != self._known[0]:
            self._known = (text, CatalogueState.from_json(text, sink=self._name))
        return self._known[1]


def _exposed(number: int, build: GenerationState) -> list[dict[str, Any]]:
    """The rows for readers of a generation. One without tables has a single row, so that it can be live."""
    tables: list[tuple[str | None, str | None, str | None]] = [
        (name.schema, name.name, path) for name, path in sorted(build.tables.items())
    ]
    return [
        {"table_schema": schema, "table_name": name, "path": path, "generation": number}
        for schema, name, path in tables or [(None, None, None)]
    ]


def _live(table: "DeltaTable") -> int | None:
    """The generation whose rows these are, read from the log alone."""
    with talking():
        partitions = table.partitions()
    return int(partitions[0]["generation"]) if partitions else None


def _rows(table: "DeltaTable") -> list[dict[str, Any]]:
    with talking():
        rows: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["table_schema"], row["table_name"]))


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        [("table_schema", pa.string()), ("table_name", pa.string()), ("path", pa.string()), ("generation", pa.int64())]
    )
