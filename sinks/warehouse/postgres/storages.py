"""Where a generation's relations are stored, by the numbers of a PostgreSQL server."""

from collections.abc import Collection
from typing import Any

from sinks.warehouse.bookkeeping_format import SCHEMA, VERSION_TABLE
from sinks.warehouse.dialect import Storage
from sinks.warehouse.postgres.connection import WarehouseConnection
from sinks.warehouse.stored_table import GenerationSchema


class PostgresStorages:
    def __init__(self, connection: WarehouseConnection, schema: GenerationSchema) -> None:
        self._connection = connection
        self._schema = schema

    def of(self, relations: Collection[str]) -> dict[str, Storage]:
        return self._storages(self._schema.name, relations)

    def keeps_rows(self, relation: str) -> bool:
        # The transaction that gave the relation its file wrote its catalogue entry, and those of its indexes. Later
        # transactions rewrite some of these, for example by GRANT. So the oldest entry counts.
        target = self._schema.qualified(relation)
        began = self._connection.execute(
            "select xmin::text from pg_class where oid = to_regclass(:name)"
            " or oid in (select indexrelid from pg_index where indrelid = to_regclass(:name))"
            " order by age(xmin) desc limit 1",
            name=target,
        )
        older = f"select exists (select from {target} as held where age(held.xmin) > age('{began.scalar_one()}'::xid))"
        return bool(self._connection.run(older).scalar())

    def of_bookkeeping(self) -> Storage:
        return self._storages(SCHEMA, [VERSION_TABLE]).get(VERSION_TABLE, Storage())

    def _storages(self, schema: str, relations: Collection[str]) -> dict[str, Storage]:
        found: Any = self._connection.execute(
            "select c.relname, c.oid::bigint, coalesce(pg_relation_filenode(c.oid), 0)::bigint"
            " from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            " where n.nspname = :schema and c.relname = any (:relations) and c.relkind in ('r', 'p')",
            schema=schema,
            relations=list(relations),
        )
        return {str(name): Storage(*map(int, numbers)) for name, *numbers in found}
