"""``lockstep init``: looks at a database and writes a commented ``lockstep.toml`` for it. Changes nothing there."""

import re
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from pydantic import ValidationError

from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.printable import toml_text
from cdc.model.table import Table, TableName, sql_identifier
from cdc.postgres.catalogue import load_tables
from cdc.postgres.connection import connect
from cdc.postgres.dsn import files_below, holds_secret, parse_dsn
from cdc.postgres.preflight.endpoint import refusal
from cdc.postgres.settings import SourceSettings
from cdc.postgres.slot import emit_functions
from lockstep.config import NAME, PipelineSettings, load
from lockstep.extension import installed
from lockstep.init_examples import NO_KEY, FoundTables, NewSink, secret_columns
from migrations.source import messages_sql, publication_sql, rights_sql
from sinks.registry import KINDS

_FILE = Template("""\
# Lockstep: PostgreSQL -> Kafka -> OpenSearch, Redis, SQL warehouse, Delta tables.
# Check it with `lockstep doctor`; paths count from this file. No secret belongs in here.

[pipeline]
# Prefix of all topics, of the slot and the publication. Another name is another pipeline with a snapshot of its own.
name = $name
# data_directory = ".lockstep"             # this machine's files; a systemd unit has its own

[source]
# libpq connection string without a password: that comes from $$LOCKSTEP_SOURCE_PASSWORD, password_file or ~/.pgpass.
dsn = $dsn
# password_file = "/run/secrets/source"
tables = [
$tables
]
# Or patterns, which take in tables that come later as well: tables = ["public.*"]; exclude_tables = ["public.*_old"]
# leaves some of them out.
$skipped${secrets}# publication = "lockstep_$plain_name"
# An idle database gets a heartbeat message so often, so that its slot doesn't hold WAL back.
# heartbeat_interval_s = 10.0
# Logical messages (pg_logical_emit_message) of these prefixes go to <pipeline>.__messages.
# messages = ["audit"]
# New rows of an outbox (id, aggregatetype, aggregateid, type, payload) go to <pipeline>.__outbox.<aggregatetype>.
# outbox = "public.outbox"
# Leave out what was itself replicated into this server (PostgreSQL 16 and later).
# origin = "none"

# Tables without a primary key: a unique index over columns that are not null, or every event for ever. The latter go
# to those warehouses and Delta sinks that name them in tables.
# [source.options."public.orders"]
# key = ["code"]
# [source.options."public.log"]
# append_only = true

[kafka]
bootstrap_servers = "127.0.0.1:9092"
# sasl_mechanism = "SCRAM-SHA-512"         # PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER
# username = "lockstep"
# password_file = "/run/secrets/kafka"     # or $$LOCKSTEP_KAFKA_PASSWORD
# TLS, with the system's authorities where it is empty:
# tls = { ca_file = "/tls/kafka-ca.pem", certificate_file = "/tls/me.pem", key_file = "/tls/me.key" }
# librdkafka = { "client.rack" = "eu-1a" } # more of the client's settings that belong to the connection

# How topics are created; one that exists is never changed.
[kafka.topics]
# Fixed for the life of a topic: another number would move keys to other partitions.
partitions = 4
replication_factor = 3                     # 1 for a single broker
# How long a sink may be away before a delete it missed may have been compacted away.
# delete_retention_ms = 604800000
# min_compaction_lag_ms = 0                # records younger than this are not compacted
# max_message_bytes = 16777216             # a larger event stops capture, unless capture.large_rows says otherwise

# [capture]
# commit_interval_ms = 80                  # the least time between two commits to Kafka; 10 is sooner and costs more
# large_rows = "stop"                      # "reject": each sink rejects a row that is too large for Kafka

# [snapshot]
# workers = 0                              # processes that take the first copy; 0: capture itself takes it
# rows_per_s = 0                           # the most that is copied a second, by all together; 0: no limit

# [metrics]
# capture = "127.0.0.1:9464"               # where Prometheus finds capture's metrics; none by default
# apply = "127.0.0.1:9465"                 # and the jobs'

[spark]
master = "local[2]"
# checkpoint_directory = ".lockstep/checkpoints"    # of Spark's own queries; on a cluster, a URL that all reach
# view_directory = ".lockstep/views"       # states of views; a lost one is built from the log again
# trigger_ms = 200                         # shortest time between two batches
# small_batch_rows = 2000                  # up to so many, one task reads all partitions
# retry_s = 30.0                           # a task waits so long for a sink before its batch is begun again later
# package = "lockstep-package.zip"         # on a cluster: what `lockstep package` has made
# conf = { "spark.local.dir" = "/data/spark" }    # further settings of Spark's, which win

# [conditions]
# lag_s = 300.0                            # readers of a sink may be so far behind
# standby = false                          # true: a `lockstep capture --standby` is meant to wait

# [dashboard]
# listen = "127.0.0.1:8642"                # the web page; where others reach it, LOCKSTEP_DASHBOARD_TOKEN must be set

${sinks}# One section per sink, of any name. Every sink may have these. A change of a setting with (rebuild) takes
# effect with `lockstep rebuild SINK`, of any other with the next start.

# [sinks.NAME]
# tables = ["public.orders", "public.items"]    # else all that have a key; append-only ones only by name (rebuild)
# exclude = ["public.orders.secret"]       # columns that never get there (rebuild)
# where = { "public.orders" = "amount > 0" }    # rows that don't meet it aren't there; SQL (rebuild)
# computed = { "public.orders.tax" = { sql = "amount * 0.2", type = "numeric" } }    # more columns; SQL (rebuild)
# rename = { "public.orders.note" = "remark" }    # a column's name there (rebuild)
# mask = { "public.orders.phone" = "hash", "public.orders.name" = { truncate = 1 } }    # or "drop" (rebuild)
# mask_salt_file = "/run/secrets/salt"     # for hashes, or $$LOCKSTEP_SINK_<NAME>_SALT
# schema_changes = "stop"                  # at a column's new name; "keep": it keeps the name it has here
# consistent = false                       # true: readers see whole transactions; only in PostgreSQL
# apply = true                             # false: it gets no table, and only says where the store of views is
# max_open_rejections = 10000              # rejected rows that wait for you; before there are more, its job stops
# login = { user = "lockstep", password_file = "/run/secrets/sink" }    # or $$LOCKSTEP_SINK_<NAME>_PASSWORD

${kinds}
# A view: the result of a query over captured tables, kept up to date change by change. It is one more sink.
# `lockstep views check` says whether a query can be kept, by which key, and what it would cost.
# [views.latest]
# sink = "cache"                           # the section whose store, address and login it takes
# key = ["id"]                             # columns that tell the result's rows apart (rebuild)
# sql = "select id, region from public.orders where region is not null"    # (rebuild)
# top = { per = ["region"], order = "id desc", n = 10 }    # only the first rows per these columns (rebuild)
# retain = [ { table = "orders", column = "created_at", age = "90d" } ]    # rows count so long (rebuild)
# tasks = 1                                # how many keep it side by side, in Redis or OpenSearch (rebuild)
# topic = true                             # the result is on a topic as well, for GET /views/latest/changes
""")


def write_config(*, dsn: str, path: Path, name: str | None = None, sinks: Sequence[str] = ()) -> list[str]:
    """Write the file; returns what to tell the user, line by line. ``sinks`` are like ``search=https://host:9200``.

    Raises ConfigurationError if the file exists or can't be created, and if another argument is unfit. Raises
    LockstepError if the database can't be reached, or has no table that can be captured.
    """
    new_sinks = [NewSink.parse(text) for text in sinks]
    _check(path, name, new_sinks)
    source = source_of(dsn)
    with connect_to(source) as connection:
        tables = tables_of(connection)
        if not tables.captured:
            raise LockstepError(
                "no table there can be captured" + "".join(f"\n  {table}: {why}" for table, why in tables.skipped),
                hint="capture needs tables with a primary key, or ones that [source.options] gives a key or"
                " append_only",
            )
        database = connection.info.dbname
        chosen = name or re.sub(r"[^a-z0-9_]", "_", database.lower()).lstrip("_0123456789") or "pipeline"
        rights = _missing_rights(connection, f"lockstep_{chosen}", tables)
    # In the file, paths count from the file; here, from where the command runs.
    here = files_below(Path.cwd(), make_conninfo("", **parse_dsn(dsn)))
    path.write_text(config_text(chosen, here, tables, new_sinks), encoding="utf-8")
    try:
        load(path)  # What we write must be valid.
    except ConfigurationError:
        path.unlink()
        raise
    left_out = f", {len(tables.skipped)} left out" if tables.skipped else ""
    below = tables.all_partitions
    of_partitions = f", {len(below)} partitions come with theirs" if below else ""
    lines = [f"wrote {path}: {len(tables.captured)} tables{left_out}{of_partitions}"]
    if hidden := secret_columns(tables.captured.values()):
        way = "each sink in the file excludes them" if new_sinks else "exclude or mask them in each sink"
        lines.append(f"these look like secrets; {way}: {', '.join(hidden)}")
    next_step = f"next: fill in Kafka{'' if new_sinks else ' and the sinks'}, then `lockstep doctor`"
    return [*lines, *rights, next_step]


def _missing_rights(connection: psycopg.Connection[Any], publication: str, tables: FoundTables) -> list[str]:
    """What somebody else has to run before our role can capture the tables; empty if it already can."""
    captured = list(tables.captured)
    if _may_publish(connection, captured):
        return []
    user, database = connection.info.user, connection.info.dbname
    return [
        f"role {user} doesn't own the tables; their owner, or an administrator, runs once:",
        *([] if _may_replicate(connection) else [f"alter role {sql_identifier(user)} replication;"]),
        rights_sql(user, database, [*captured, *tables.all_partitions]),
        publication_sql(publication, captured, version=connection.info.server_version),
        "and a superuser, so that no other role may ask for copies of tables:",
        messages_sql(user, emit_functions(connection)),
    ]


def _check(path: Path, name: str | None, sinks: Sequence[NewSink]) -> None:
    """Raise ConfigurationError early for what would fail at the end."""
    if path.exists():
        raise ConfigurationError(f"{path} exists already", hint="remove it, or name another with --config")
    if not path.absolute().parent.is_dir():
        raise ConfigurationError(f"{path.parent} isn't a directory", hint="make it, or name another with --config")
    if name is not None:
        try:
            PipelineSettings(name=name)
        except ValidationError as error:
            raise ConfigurationError(f"--name: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
    names = [sink.name for sink in sinks]
    problems = [f"--sink {name!r}: this can't be a name" for name in names if not NAME.fullmatch(name)]
    problems += [f"--sink {name}: the name is given twice" for name in sorted(set(names)) if names.count(name) > 1]
    if problems:
        raise ConfigurationError(
            "these sinks can't be written",
            problems=problems,
            hint="a name is a lower-case letter, and up to 40 lower-case letters, digits and underscores",
        )


def config_text(name: str, dsn: str, tables: FoundTables, sinks: Sequence[NewSink] = ()) -> str:
    """The file for a pipeline of these tables, with every setting in it, most of them commented. Examples use these
    tables where they fit. Sinks leave out what may be a secret."""
    hidden = secret_columns(tables.captured.values())
    listed = ", ".join(map(toml_text, hidden))
    excluded = "the sinks below leave them out" if sinks else f"exclude = [{listed}] in each sink"
    secrets = f"# These look like secrets: {excluded}, or mask them.\n" if hidden else ""
    # Before anything is filled in: a user's table may have the name of one in an example.
    template = _FILE.template.replace("${kinds}", "\n".join(kind.example for kind in KINDS.values()))
    text = Template(tables.with_real_names(template)).substitute(
        name=toml_text(name),
        plain_name=name,
        dsn=toml_text(dsn),
        tables="\n".join(f"    {toml_text(str(table))}," for table in tables.captured),
        skipped="".join(f"{line}\n" for line in tables.left_out),
        secrets=secrets,
        sinks="".join(f"{sink.section(hidden)}\n" for sink in sinks),
    )
    return "\n".join((text, *(tables.with_real_names(each.example) for each in installed() if each.example)))


def source_of(dsn: str) -> SourceSettings:
    """The database that ``--dsn`` names, with all of its tables. Raises ConfigurationError for an invalid one, and for
    a password in it."""
    try:
        parameters = parse_dsn(dsn)
    except ValueError as error:
        raise ConfigurationError(f"--dsn {error}") from None
    if holds_secret(parameters):
        raise ConfigurationError(
            "--dsn holds a password", hint="put it into $LOCKSTEP_SOURCE_PASSWORD: arguments show in process lists"
        )
    return SourceSettings(dsn=dsn, tables=("*.*",))


def connect_to(source: SourceSettings, *, application: str = "lockstep init") -> psycopg.Connection[Any]:
    """A connection. Raises LockstepError with the way out: without a file, ``lockstep doctor`` can't look."""
    try:
        return connect(source, application=application)
    except LockstepError as refused:
        way_out = refusal(refused.message, source).fix.replace("source.dsn", "--dsn")
        raise LockstepError(refused.message, hint=way_out) from refused


def _may_replicate(connection: psycopg.Connection[Any]) -> bool:
    row = connection.execute(
        "select rolreplication or rolsuper or exists (select from pg_roles m where m.rolname = 'rds_replication'"
        " and pg_has_role(m.oid, 'member')) from pg_roles where rolname = current_user"
    ).fetchone()
    return bool(row and row[0])


def tables_of(connection: psycopg.Connection[Any]) -> FoundTables:
    rows = connection.execute(
        "select n.nspname, c.relname, c.relpersistence::text, c.relispartition,"
        " (select array[s.nspname::text, r.relname::text] from pg_class r join pg_namespace s on s.oid = r.relnamespace"
        " where r.oid = pg_partition_root(c.oid)) from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where c.relkind in ('r', 'p') and c.relpersistence <> 't' and n.nspname <> 'information_schema'"
        " and n.nspname !~ '^pg_' order by 1, 2"
    ).fetchall()
    shapes = load_tables(connection, [TableName(row[0], row[1]) for row in rows], None)
    tables: dict[TableName, Table] = {}
    skipped: list[tuple[TableName, str]] = []
    partitions: dict[TableName, list[TableName]] = {}
    for schema, table, persistence, is_partition, root in rows:
        name = TableName(schema, table)
        if name not in shapes or (is_partition and root is None):
            continue  # it was dropped meanwhile
        if is_partition:
            partitions.setdefault(TableName(*root), []).append(name)
        elif persistence == "u":
            skipped.append((name, "unlogged: not in the WAL"))
        elif not shapes[name].key:
            skipped.append((name, NO_KEY))
        else:
            tables[name] = shapes[name]
    return FoundTables(tables, skipped, partitions)


def _may_publish(connection: psycopg.Connection[Any], tables: list[TableName]) -> bool:
    """Whether our role can create the publication: it owns the tables and may create in the database."""
    row = connection.execute(
        "select bool_and(pg_has_role(c.relowner, 'usage')) and has_database_privilege(current_database(), 'create')"
        " from unnest(%s::text[], %s::text[]) as t(schema, name) join pg_namespace n on n.nspname = t.schema"
        " join pg_class c on c.relnamespace = n.oid and c.relname = t.name",
        ([table.schema for table in tables], [table.name for table in tables]),
    ).fetchone()
    return bool(row and row[0])
