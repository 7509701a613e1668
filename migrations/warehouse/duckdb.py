"""What Alembic has to know of DuckDB."""

from alembic.ddl.impl import DefaultImpl


class DuckDbImpl(DefaultImpl):
    """DDL is part of the transaction that it stands in."""

    __dialect__ = "duckdb"
    transactional_ddl = True
