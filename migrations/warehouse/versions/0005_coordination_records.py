"""What was a note is a coordination record, and those of a generation have their final names."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.execute("""
        create table lockstep.coordination_record (
            view_schema text not null,
            name text not null,
            content text not null,
            updated_at timestamptz not null default now(),
            primary key (view_schema, name)
        )
    """)
    # Copied, since DuckDB renames no table that has a key. Heartbeats and pause requests are a running job's own.
    op.execute(r"""
        insert into lockstep.coordination_record (view_schema, name, content, updated_at)
        select
            view_schema,
            case
                when not name ~ '^g[0-9]+[.](reading|basis|names|excluded)$' then name
                else split_part(name, '.', 1) || '.' || case split_part(name, '.', 2)
                    when 'reading' then 'start_position'
                    when 'basis' then 'build_inputs'
                    when 'names' then 'column_names'
                    else 'hidden_columns'
                end
            end,
            case
                when name ~ '^g[0-9]+[.]reading$'
                then replace(replace(note, '"start":', '"offsets":'), '"replays":', '"overwrite_equal_tags":')
                when name ~ '^record[.][0-9]+$'
                then regexp_replace(note, ',"shown":(true|false)}$', ',"exposed":\1}')
                else note
            end,
            updated_at
        from lockstep.note
        where not name ~ '^g[0-9]+[.](runner|hold)$'
    """)
    op.execute("drop table lockstep.note")
