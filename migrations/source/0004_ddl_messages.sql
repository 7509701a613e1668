-- Optional. A statement that creates, alters or drops tables or types, or alters a publication, writes a message into
-- the WAL, in its own transaction. Capture then compares the catalogue at that place of the stream, not seconds later.
-- Only a superuser may make event triggers. To take it out again: drop schema lockstep cascade;
create schema lockstep;
create function lockstep.tell_ddl() returns event_trigger
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if tg_event = 'sql_drop' then
        if not exists (select from pg_event_trigger_dropped_objects() where not is_temporary) then
            return;
        end if;
    elsif exists (select from pg_event_trigger_ddl_commands() where schema_name = 'pg_temp') then
        return;
    end if;
    perform pg_logical_emit_message(true, 'lockstep.ddl', tg_tag);
end
$$;
create event trigger lockstep_ddl on ddl_command_end
    when tag in ('CREATE TABLE', 'ALTER TABLE', 'CREATE SCHEMA', 'CREATE FOREIGN TABLE', 'CREATE TYPE', 'ALTER TYPE',
        'ALTER PUBLICATION')
    execute function lockstep.tell_ddl();
create event trigger lockstep_ddl_drop on sql_drop
    when tag in ('DROP TABLE', 'DROP INDEX', 'DROP SCHEMA', 'DROP OWNED')
    execute function lockstep.tell_ddl();
