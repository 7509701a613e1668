"""Who writes a generation, what has been applied, how far it is, and which generation readers see."""

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    # A sink is known here by the schema of its views: two pipelines may have sinks of one name in one database.
    # live_generation: which generation's schema the views read from.
    op.execute("""
        create table lockstep.sink (
            view_schema text primary key,
            live_generation integer
        )
    """)
    # The fence grows with every job that takes over; a batch with an older one is refused.
    op.execute("""
        create table lockstep.writer (
            view_schema text not null,
            generation integer not null,
            fence bigint not null,
            claimed_at timestamptz not null default now(),
            primary key (view_schema, generation)
        )
    """)
    # The shape each table was prepared for: type changes are refused by it, and columns are known without the source.
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
