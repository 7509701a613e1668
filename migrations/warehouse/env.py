"""Alembic's entry: runs the migrations on the connection that ``upgrade`` passes. There is no offline mode."""

from alembic import context

from sinks.warehouse.bookkeeping_format import SCHEMA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"], version_table=VERSION_TABLE, version_table_schema=SCHEMA
)
context.run_migrations()
