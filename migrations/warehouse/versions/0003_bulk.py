"""Whether a generation is loaded in bulk.

Its tables have no primary key then, and may hold several versions of a row.
"""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    if op.get_context().dialect.name == "duckdb":  # which adds no column with a constraint
        op.execute("alter table lockstep.writer add column is_bulk boolean default false")
    else:
        op.execute("alter table lockstep.writer add column is_bulk boolean not null default false")
