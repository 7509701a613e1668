"""Who writes a generation, its progress, which one readers see, its records, and its histories."""

from alembic import op

revision = "0005"
down_revision = None


def upgrade() -> None:
    # A sink is identified by the schema of its views: two pipelines may have sinks of one name in one database.
    # live_generation: the generation from whose schema the views read.
    op.execute("""
        create table lockstep.sink (
            view_schema text primary key,
            live_generation integer
        )
    """)
    # The fence grows with every job that takes over; a batch with an older one is refused. In a bulk load, a
    # generation's tables have no primary key, and may hold several versions of a row.
    op.execute("""
        create table lockstep.writer (
            view_schema text not null,
            generation integer not null,
            fence bigint not null,
            claimed_at timestamptz not null default now(),
            is_bulk boolean not null default false,
            primary key (view_schema, generation)
        )
    """)
    # The shape for which each table was prepared: it refuses type changes, and gives the columns without the source.
    op.execute("""
        create table lockstep.prepared_table (
            view_schema text not null,
            generation integer not null,
            source_schema text not null,
            source_table text not null,
            shape text not null,
            primary key (view_schema, generation, source_schema, source_table)
        )
    """)
    # Written in the same transaction as the rows it covers.
    op.execute("""
        create table lockstep.applied_offset (
            view_schema text not null,
            generation integer not null,
            topic text not null,
            partition integer not null,
            next_offset bigint not null,
            applied_at timestamptz not null default now(),
            primary key (view_schema, generation, topic, partition)
        )
    """)
    # numeric, since an LSN has 64 bits and bigint is signed.
    op.execute("""
        create table lockstep.progress (
            view_schema text not null,
            generation integer not null,
            watermark_lsn numeric(20, 0) not null,
            commit_time_ms bigint not null,
            updated_at_ms bigint not null,
            document text not null,
            primary key (view_schema, generation)
        )
    """)
    # The records by which jobs and commands of one sink agree.
    op.execute("""
        create table lockstep.coordination_record (
            view_schema text not null,
            name text not null,
            content text not null,
            updated_at timestamptz not null default now(),
            primary key (view_schema, name)
        )
    """)
    # complete_from is what the job reports. Without a report, a history is complete since it was begun.
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
