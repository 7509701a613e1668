"""Alembic's support for DuckDB."""

from alembic.ddl.impl import DefaultImpl


class DuckDbImpl(DefaultImpl):
    """DDL is transactional."""

    __dialect__ = "duckdb"
    transactional_ddl = True
