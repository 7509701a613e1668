"""Lockstep's bookkeeping in a SQL warehouse: schema ``lockstep``, with Alembic's numbered migrations."""

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, text

from sinks.warehouse.bookkeeping_format import SCHEMA

# Any number that all processes share: two jobs that start together must not migrate at once.
MIGRATION_LOCK: Final = 0x10C5_7E90


def upgrade(connection: Connection) -> None:
    """Migrate the bookkeeping to the newest version, if necessary, in the connection's transaction."""
    from alembic import command
    from alembic.config import Config

    if connection.dialect.name == "duckdb":
        # Alembic supports a database once this class is defined. A transaction has the file to itself.
        import migrations.warehouse.duckdb  # noqa: F401

        connection.execute(text(f"create schema if not exists {SCHEMA}"))
    else:
        connection.execute(text("select pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
        if connection.scalar(text("select to_regnamespace(:schema) is null"), {"schema": SCHEMA}):
            connection.execute(text(f"create schema {SCHEMA}"))
    config = Config()
    # Alembic interpolates "%" in its options.
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
