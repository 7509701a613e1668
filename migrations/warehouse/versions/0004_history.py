"""Which histories are kept, from when on each is complete, and which versions it couldn't take."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    # complete_from is what the job says; without its word a history is complete since it was begun.
    op.execute("""
        create table lockstep.kept_history (
            view_schema text not null,
            generation integer not null,
            source_schema text not null,
            source_table text not null,
            view_name text not null,
            begun_at timestamptz not null default now(),
            complete_from timestamptz,
            primary key (view_schema, generation, source_schema, source_table)
        )
    """)
    # A key may be too long for an index, and snapshot rows share their tag.
    op.execute("""
        create table lockstep.refused_version (
            view_schema text not null,
            generation integer not null,
            source_schema text not null,
            source_table text not null,
            tag text not null,
            key_digest text not null,
            reason text not null,
            refused_at timestamptz not null default now(),
            primary key (view_schema, generation, source_schema, source_table, tag, key_digest)
        )
    """)
    op.execute("""
        create view lockstep.history as
        select kept.view_schema, kept.view_name, kept.source_schema, kept.source_table, kept.generation,
            kept.generation is not distinct from sink.live_generation as is_live,
            coalesce(kept.complete_from, kept.begun_at) as complete_from,
            (
                select count(*)
                from lockstep.refused_version as refused
                where (refused.view_schema, refused.generation, refused.source_schema, refused.source_table)
                    = (kept.view_schema, kept.generation, kept.source_schema, kept.source_table)
            ) as refused_versions
        from lockstep.kept_history as kept
        join lockstep.sink as sink on sink.view_schema = kept.view_schema
    """)
