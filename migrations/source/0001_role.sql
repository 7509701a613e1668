-- The role that capture connects as. It can read the captured tables and the WAL, and nothing else.
-- Set its password yourself: \password in psql, or alter role ... password.
create role {role} login replication;
grant connect on database {database} to {role};
grant usage on schema {schemas} to {role};
grant select on {tables} to {role};
