"""SQL for the captured database: the role that Lockstep connects as, the publication, and an event trigger.

Shown before it is run.
"""

from collections.abc import Sequence
from importlib.resources import files

from cdc.model.table import TableName, sql_identifier
from cdc.postgres.versions import GENERATED_COLUMNS


def role_sql(role: str, database: str, tables: Sequence[TableName]) -> str:
    """What an administrator runs once: a role with the least privileges that capture needs."""
    schemas = sorted({table.schema for table in tables})
    return _template("0001_role.sql").format(
        role=sql_identifier(role),
        database=sql_identifier(database),
        schemas=", ".join(sql_identifier(schema) for schema in schemas),
        tables=", ".join(table.sql for table in tables),
    )


def rights_sql(role: str, database: str, tables: Sequence[TableName]) -> str:
    """The same for a role that is there."""
    return "\n".join(line for line in role_sql(role, database, tables).splitlines() if line.startswith("grant "))


def publication_sql(publication: str, tables: Sequence[TableName], *, version: int) -> str:
    """What the tables' owner runs once, or capture itself where its role may. ``version`` is the server's."""
    return _template("0002_publication.sql").format(
        publication=sql_identifier(publication),
        tables=", ".join(table.sql for table in tables),
        generated=", publish_generated_columns = stored" if version >= GENERATED_COLUMNS else "",
    )


def ddl_messages_sql() -> str:
    """What a superuser may run once, so that the stream tells when the catalogue is to be looked at."""
    return _template("0004_ddl_messages.sql")


def messages_sql(role: str, functions: Sequence[str]) -> str:
    """What a superuser runs once, so that not every role may ask capture for copies. ``functions`` are SQL."""
    return _template("0003_messages.sql").format(functions=", ".join(functions), role=sql_identifier(role))


def _template(name: str) -> str:
    lines = files("migrations.source").joinpath(name).read_text().splitlines()
    return "\n".join(line for line in lines if not line.startswith("--")).strip()
