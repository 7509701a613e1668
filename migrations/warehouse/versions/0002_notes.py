"""Notes by which jobs and commands of one sink agree."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.execute("""
        create table lockstep.note (
            view_schema text not null,
            name text not null,
            note text not null,
            updated_at timestamptz not null default now(),
            primary key (view_schema, name)
        )
    """)
