"""Coordination records in a table of a SQL warehouse."""

from collections.abc import Collection, Iterable
from typing import Any

from sinks.warehouse.bookkeeping import WarehouseBookkeeping
from sinks.warehouse.dialect import Connection


class WarehouseCoordination:
    def __init__(self, connection: Connection, bookkeeping: WarehouseBookkeeping) -> None:
        self._connection = connection
        self._bookkeeping = bookkeeping

    def load(self, name: str) -> str | None:
        with self._connection.looking():
            if not self._bookkeeping.exist():
                return None
            return load_record(self._connection, name)

    def load_all(self, names: Collection[str]) -> dict[str, str]:
        asked = {f"name_{number}": name for number, name in enumerate(names)}
        with self._connection.looking():
            if not asked or not self._bookkeeping.exist():
                return {}
            placeholders = ", ".join(f":{name}" for name in asked)
            rows: Iterable[Any] = self._connection.execute(
                "select name, content from lockstep.coordination_record"
                f" where view_schema = :view_schema and name in ({placeholders})",
                **asked,
            )
            return {str(row[0]): str(row[1]) for row in rows}

    def save(self, name: str, text: str | None, *, fence: int = 0) -> None:
        with self._connection.transaction():
            self._create_tables()
            if fence:
                self._bookkeeping.check_fence(fence)
            if text is None:
                self._connection.execute(
                    "delete from lockstep.coordination_record where view_schema = :view_schema and name = :name",
                    name=name,
                )
            else:
                save_record(self._connection, name, text)

    def create(self, name: str, text: str) -> bool:
        with self._connection.transaction():
            self._create_tables()
            created = self._connection.execute(
                "insert into lockstep.coordination_record (view_schema, name, content) "
                "values (:view_schema, :name, :content) on conflict (view_schema, name) do nothing",
                name=name,
                content=text,
            )
            return bool(created.rowcount)

    def _create_tables(self) -> None:
        if not self._bookkeeping.exist():
            self._bookkeeping.create()


def load_record(connection: Connection, name: str) -> str | None:
    """A record, or None when there is none of that name. Called inside a transaction."""
    content = connection.execute(
        "select content from lockstep.coordination_record where view_schema = :view_schema and name = :name", name=name
    ).scalar()
    return None if content is None else str(content)


def save_record(connection: Connection, name: str, text: str) -> None:
    """Store a record. Called inside a transaction."""
    connection.execute(
        "insert into lockstep.coordination_record (view_schema, name, content) "
        "values (:view_schema, :name, :content) "
        "on conflict (view_schema, name) do update set content = excluded.content, updated_at = now()",
        name=name,
        content=text,
    )
