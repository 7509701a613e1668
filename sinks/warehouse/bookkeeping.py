"""The bookkeeping tables in a SQL warehouse, schema ``lockstep``: writers, tables and progress of one generation."""

from collections.abc import Collection, Iterable
from typing import Any, Final

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from sinks.generation_errors import missing_generation, replaced_writer
from sinks.stored_format import check_stored_format
from sinks.warehouse.bookkeeping_format import HEAD, SCHEMA, VERSION_TABLE
from sinks.warehouse.dialect import Connection
from sinks.warehouse.names import warehouse_name
from sinks.warehouse.stored_table import StoredTable, relations_of

OF_GENERATION: Final = "where view_schema = :view_schema and generation = :generation"
"""The condition for rows of this generation."""


class WarehouseBookkeeping:
    """The bookkeeping of one generation. Every method is called inside a transaction."""

    def __init__(self, connection: Connection, name: str, generation: int) -> None:
        self._execute = connection.execute
        self._locking = connection.locking
        self._connection = connection
        self._name = name
        self._generation = generation
        self._are_current = False

    def create(self) -> None:
        """Create the bookkeeping tables. Raises LockstepError for those of another version."""
        # Alembic takes time, and its lock makes all sinks of a warehouse wait for one sink's longest transaction.
        if self.stored_format() < HEAD:
            from migrations.warehouse import upgrade

            upgrade(self._connection.connected)

    def exist(self) -> bool:
        """Whether the bookkeeping tables exist. Raises LockstepError for those of another version."""
        if self._are_current:
            return True
        self._are_current = self.stored_format() == HEAD
        return self._are_current

    def stored_format(self) -> int:
        """0 if nothing is stored yet. Raises LockstepError for another version."""
        if not self._connection.has_relation(SCHEMA, VERSION_TABLE):
            return 0
        stored = int(self._execute(f"select version_num from {SCHEMA}.{VERSION_TABLE}").scalar() or 0)
        check_stored_format(self._name, stored, known=HEAD, elsewhere="url")
        return stored

    def require(self) -> None:
        """Raise LockstepError when the bookkeeping tables are missing, or of another version."""
        if not self.exist():
            raise self.missing()

    def missing(self) -> LockstepError:
        return missing_generation(self._generation, self._name)

    # Generations

    def enter(self) -> tuple[int | None, bool]:
        """Register this sink and this generation. Returns the live generation, and whether this one is new."""
        self._execute("insert into lockstep.sink (view_schema) values (:view_schema) on conflict do nothing")
        # Only one at a time: two jobs that start together would both create the same table.
        live = self.live(is_held=True)
        is_new = self._generation not in self.generations()
        self._execute(
            "insert into lockstep.writer (view_schema, generation, fence) values (:view_schema, :generation, 0) on "
            "conflict do nothing"
        )
        return live, is_new

    def live(self, *, is_held: bool = False) -> int | None:
        """The live generation. ``is_held`` locks it until the transaction ends; other prepares and switches wait."""
        lock = self._locking("for update") if is_held else ""
        live = self._execute(
            f"select live_generation from lockstep.sink where view_schema = :view_schema {lock}"
        ).scalar()
        return None if live is None else int(live)

    def make_live(self) -> None:
        self._execute("update lockstep.sink set live_generation = :generation where view_schema = :view_schema")

    def generations(self) -> list[int]:
        rows: Iterable[Any] = self._execute(
            "select generation from lockstep.writer where view_schema = :view_schema order by generation"
        )
        return [int(row[0]) for row in rows]

    def is_bulk(self, lock: str) -> bool | None:
        """Whether this generation is loaded in bulk, locked with this clause; None when it doesn't exist."""
        is_bulk = self._execute(f"select is_bulk from lockstep.writer {OF_GENERATION} {self._locking(lock)}").scalar()
        return None if is_bulk is None else bool(is_bulk)

    def set_bulk(self, is_bulk: bool) -> None:
        self._execute(f"update lockstep.writer set is_bulk = :is_bulk {OF_GENERATION}", is_bulk=is_bulk)

    def forget_generation(self) -> None:
        for bookkeeping in ("writer", "prepared_table", "applied_offset", "progress"):
            self._execute(f"delete from lockstep.{bookkeeping} {OF_GENERATION}")
        self._execute(
            "delete from lockstep.coordination_record where view_schema = :view_schema and starts_with(name, "
            ":beginning)",
            beginning=f"g{self._generation}.",
        )

    # Tables

    def tables(self, names: Collection[TableName] | None = None) -> dict[TableName, StoredTable]:
        """All tables of the generation, or those of ``names`` that it has."""
        query = f"select source_schema, source_table, shape from lockstep.prepared_table {OF_GENERATION}"
        rows: list[Any] = []
        if names is None:
            rows = list(self._execute(query))
        for name in names or ():
            query_of_one = f"{query} and source_schema = :source_schema and source_table = :source_table"
            rows += self._execute(query_of_one, source_schema=name.schema, source_table=name.name)
        return {TableName(row[0], row[1]): StoredTable.from_json(row[2]) for row in rows}

    def save_tables(self, tables: Collection[StoredTable]) -> None:
        self._connection.execute_each(
            "insert into lockstep.prepared_table (view_schema, generation, source_schema, source_table, shape) "
            "values (:view_schema, :generation, :source_schema, :source_table, :shape) "
            "on conflict (view_schema, generation, source_schema, source_table) do update set shape = excluded.shape",
            [
                {
                    "source_schema": held.shape.table.name.schema,
                    "source_table": held.shape.table.name.name,
                    "shape": held.to_json(),
                }
                for held in tables
            ],
        )

    # Writers and progress

    def claim(self) -> int:
        """Become the writer. Returns its fence. Raises LockstepError when the generation doesn't exist."""
        return self._fence_of(
            f"update lockstep.writer set fence = fence + 1, claimed_at = now() {OF_GENERATION} returning fence"
        )

    def fence(self) -> int:
        """The fence of the writer. Raises LockstepError when the generation doesn't exist."""
        return self._fence_of(f"select fence from lockstep.writer {OF_GENERATION}")

    def _fence_of(self, statement: str) -> int:
        self.require()
        fence = self._execute(statement).scalar()
        if fence is None:
            raise self.missing()
        return int(fence)

    def check_fence(self, fence: int) -> bool:
        """Hold the right to write until the transaction ends. Returns whether the generation is in a bulk load until
        then.

        Raises Fenced when another job has the right, and LockstepError when the generation doesn't exist.
        """
        self.require()
        held = self._execute(
            f"select is_bulk from lockstep.writer {OF_GENERATION} and fence = :fence {self._locking('for share')}",
            fence=fence,
        ).scalar()
        if held is None:
            self.fence()
            raise replaced_writer(self._name, self._generation)
        return bool(held)

    def hold_writer(self, fence: int) -> bool:
        """Keep all batches out until the transaction ends. Returns False, without waiting, if one is under way."""
        held = self._execute(
            f"select 1 from lockstep.writer {OF_GENERATION} and fence = :fence "
            + self._locking("for update skip locked"),
            fence=fence,
        ).scalar()
        return held is not None


def known_relations(connection: Connection) -> dict[str, str]:
    """The names by which readers know the tables of all generations -> what each is."""
    rows: Iterable[Any] = connection.execute(
        "select distinct source_schema, source_table, shape::json ->> 'warehouse_name', "
        "coalesce(shape::json ->> 'has_history', 'false') = 'true' "
        "from lockstep.prepared_table where view_schema = :view_schema"
    )
    relations: dict[str, str] = {}
    for schema, table, chosen, has_history in rows:
        name = TableName(schema, table)
        relations |= relations_of(name, chosen or warehouse_name(name), has_history=has_history)
    return relations


def why_not_ours(connection: Connection, name: str, generation: int, schema: str) -> str | None:
    """Why a new generation can't have this schema; None if it can."""
    other = connection.execute("select 1 from lockstep.sink where view_schema = :schema", schema=schema).scalar()
    if other is not None:
        return f"schema {schema!r}, which generation {generation} needs for itself, is another sink's"
    other = connection.execute(
        "select view_schema from lockstep.writer "
        "where view_schema || '_g' || cast(generation as varchar(20)) = :view_schema"
    ).scalar()
    if other is not None:
        return f"the schema of sink {name!r} is that of a generation of another sink, whose schema is {other!r}"
    relation = connection.execute(
        "select c.relname from pg_catalog.pg_class as c "
        "join pg_catalog.pg_namespace as n on n.oid = c.relnamespace where n.nspname = :schema limit 1",
        schema=schema,
    ).scalar()
    if relation is not None:
        return (
            f"schema {schema!r}, which generation {generation} needs for itself, has {relation!r}, which "
            "Lockstep knows nothing of"
        )
    return None
