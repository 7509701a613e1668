"""SQL for the captured database: Lockstep's role, the publication, and an event trigger. Shown before it is run."""

from collections.abc import Sequence
from importlib.resources import files

from cdc.model.table import TableName, sql_identifier
from cdc.postgres.versions import GENERATED_COLUMNS


def role_sql(role: str, database: str, tables: Sequence[TableName]) -> str:
    """An administrator runs it once: a role with the least privileges that capture needs."""
    schemas = sorted({table.schema for table in tables})
    return _template("0001_role.sql").format(
        role=sql_identifier(role),
        database=sql_identifier(database),
        schemas=", ".join(sql_identifier(schema) for schema in schemas),
        tables=", ".join(table.sql for table in tables),
    )


def rights_sql(role: str, database: str, tables: Sequence[TableName]) -> str:
    """The grants of ``role_sql``, for an existing role."""
    return "\n".join(line for line in role_sql(role, database, tables).splitlines() if line.startswith("grant "))


def publication_sql(publication: str, tables: Sequence[TableName], *, version: int) -> str:
    """The tables' owner runs it once, or capture itself if its role may. ``version`` is the server's."""
    return _template("0002_publication.sql").format(
        publication=sql_identifier(publication),
        tables=", ".join(table.sql for table in tables),
        generated=", publish_generated_columns = stored" if version >= GENERATED_COLUMNS else "",
    )


def ddl_messages_sql() -> str:
    """A superuser may run it once: then the stream announces changes of the catalogue."""
    return _template("0004_ddl_messages.sql")


def messages_sql(role: str, functions: Sequence[str]) -> str:
    """A superuser runs it once: then not every role may ask capture for copies. ``functions`` are SQL."""
    return _template("0003_messages.sql").format(functions=", ".join(functions), role=sql_identifier(role))


def _template(name: str) -> str:
    lines = files("migrations.source").joinpath(name).read_text().splitlines()
    return "\n".join(line for line in lines if not line.startswith("--")).strip()
