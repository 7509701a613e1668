"""Values of every type in a real warehouse: all come back exactly, from the newest rows and from the history."""

import uuid
from itertools import zip_longest
from pathlib import Path
from typing import Any

import duckdb
import orjson
import psycopg
import pytest
from pydantic import SecretStr

from cdc.event_format.column_types import SESSION_SETTINGS, json_encoder
from cdc.event_format.encode import TableEncoder
from cdc.model.event import Events
from cdc.model.table import Table, TableName
from cdc.postgres.replication import ReplicationConnection
from sinks.columns.shape import Shape
from sinks.contract import Batch, TableVersions
from sinks.warehouse.duckdb.values import rows_of
from sinks.warehouse.postgres.tables import column_type
from sinks.warehouse.settings import WarehouseSettings
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.tables import WarehouseTables
from snapshot.table_reader import SnapshotReader
from stack import versions
from tests.builders import delete, tag, upsert
from tests.copy_lines import snapshot_rows
from tests.databases import Database
from tests.values import ARRAYS, EXTENSIONS, SCALARS, TYPES, known

pytestmark = pytest.mark.live

ALL = known(SCALARS | ARRAYS, versions.POSTGRES_MAJOR)


def _rows(source: Database) -> tuple[Table, list[dict[str, Any]]]:
    """A table with a column per type, and its rows in the event's form."""
    source.execute(*(f"create extension {name}" for name in EXTENSIONS), TYPES, "set lc_monetary = 'C'")
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(ALL))
    source.execute(f"create table everything (id int primary key, {columns})")
    for number, values in enumerate(zip_longest(*ALL.values(), fillvalue="null")):
        source.execute(f"insert into everything values ({number}, {', '.join(values)})")
    everything = source.shape(TableName("public", "everything"))
    encoder = TableEncoder(everything, server="t", database="t", version="1")
    with ReplicationConnection(source.source()) as holder:
        snapshot = holder.create_slot(source.slot_name(), temporary=True).snapshot_name
        with SnapshotReader(source.source(), snapshot) as reader:
            return everything, [orjson.loads(encoder.row(fields)) for fields in snapshot_rows(reader, everything)]


@pytest.mark.parametrize("kind", ["postgresql", "duckdb"])
def test_values_of_every_type_come_back_exactly(database: Database, endpoints: Any, tmp_path: Path, kind: str) -> None:
    everything, rows = _rows(database)
    url = endpoints.warehouse_url if kind == "postgresql" else f"duckdb:///{tmp_path}/dwh.duckdb"
    name = f"t{uuid.uuid4().hex[:12]}"
    sink = WarehouseSink(WarehouseTables(name, WarehouseSettings(url=SecretStr(url), history=True), 1))
    try:
        sink.prepare([everything])
        events = Events.of([upsert(row, 1, of=everything) for row in rows])
        kept = [TableVersions(events.tables[0], "r" * len(rows), [0] * len(rows))]
        outcome = sink.apply(Batch(events, versions=kept))
        assert [rejection.reason for rejection in outcome.rejections] == []
        stored = {row.row["id"]: row for row in sink.scan(everything)}
        assert {row["id"]: repr(row) for row in rows} == {
            key: repr(dict(found_row.row)) for key, found_row in stored.items()
        }
        found_rows = {row.row["id"]: row for row in sink.rows(everything, [{"id": row["id"]} for row in rows])}
        assert found_rows == stored
        gone = Events.of([delete({"id": row["id"]}, tag(2), of=everything) for row in rows])
        sink.apply(Batch(gone, versions=[TableVersions(gone.tables[0], "d" * len(rows), [1] * len(rows))]))
        assert list(sink.scan(everything)) == []
        if kind == "duckdb":
            _check_history_in_file(tmp_path / "dwh.duckdb", name, everything, rows)
        else:
            _check_history(endpoints, name, everything, rows)
    finally:
        sink.close()
        if kind == "postgresql":
            with psycopg.connect(endpoints.warehouse_dsn, autocommit=True) as warehouse:
                warehouse.execute(f"drop schema {name} cascade; drop schema {name}_g1 cascade")


def _check_history(endpoints: Any, name: str, everything: Any, rows: list[dict[str, Any]]) -> None:
    """As of the time when the rows existed."""
    with psycopg.connect(endpoints.warehouse_dsn) as warehouse:
        for setting, value in SESSION_SETTINGS.items():
            warehouse.execute("select set_config(%s, %s, false)", (setting, value))
        selection = ", ".join(f'"{column.name}"' for column in everything.columns)
        cursor = warehouse.execute(
            f"select {selection} from {name}.everything_history where valid_from = 'epoch' and valid_to > 'epoch'"
            " order by id"
        )
        result = cursor.pgresult
        assert result is not None
        assert result.ntuples == len(rows)
        for number, row in enumerate(sorted(rows, key=lambda row: row["id"])):
            for field, column in enumerate(everything.columns):
                value = result.get_value(number, field)
                stored_type = column_type(column).removesuffix("[]")
                read = None if value is None else orjson.loads(json_encoder(stored_type, column.is_array)(value))
                assert repr(read) == repr(row[column.name]), column.type_name


def _check_history_in_file(file: Path, name: str, everything: Table, rows: list[dict[str, Any]]) -> None:
    """As of the time when the rows existed; values that a column can't hold are beside it."""
    stored = rows_of(Shape.of(everything))
    with duckdb.connect(str(file), read_only=True) as warehouse:
        names = ", ".join(f'kept."{column}"' for column in stored.columns_for(everything))
        data = warehouse.sql(
            f"select {names} from {name}_g1.everything_history as kept join {name}.everything_history as seen "
            "using (id, _tag) where seen.valid_from = 'epoch' and seen.valid_to > 'epoch'"
        ).to_arrow_table()
    history_rows = {
        row.row["id"]: dict(row.row) for batch in data.to_batches() for row in stored.decode(batch, everything)
    }
    assert {key: repr(row) for key, row in history_rows.items()} == {row["id"]: repr(row) for row in rows}
