"""Preflight against a real server: problems are found, and the finding's SQL mends them."""

import re
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import psycopg
import pytest

from cdc.model.finding import Finding, Severity
from cdc.model.table import TableName
from cdc.postgres.preflight import check_source
from cdc.postgres.versions import GENERATED_COLUMNS, PUBLICATION_LISTS
from migrations import source as migrations
from tests.databases import PUBLICATION, Database

pytestmark = pytest.mark.live

T = TableName("public", "t")
WHOLE = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"
GOOD = (
    "create table t (id int primary key, v varchar(20))",
    f"create publication {PUBLICATION} for table t with ({WHOLE})",
)


def findings(
    database: Database, *tables: TableName, user: str | None = None, slot: str = "lockstep_free", **more: Any
) -> list[Finding]:
    with closing(database.pinned(user=user)) as connection:
        connection.execute("set default_transaction_read_only = on")
        names = tables or (T,)
        return check_source(
            connection,
            tables=names,
            publication=PUBLICATION,
            slot=slot,
            create_publication=migrations.publication_sql(PUBLICATION, names, version=connection.info.server_version),
            **more,
        )


def wrong(database: Database, *tables: TableName, **more: Any) -> list[Finding]:
    return [finding for finding in findings(database, *tables, **more) if finding.severity is not Severity.OK]


def whats(findings: Sequence[Finding]) -> list[str]:
    return [finding.what for finding in findings]


def fixes(text: str) -> list[str]:
    """The statements of a fix: every line that isn't a remark is one."""
    return [re.sub(r"\s+--.*$", "", line) for line in text.splitlines() if not line.startswith("--")]


def mend(database: Database, finding: Finding) -> None:
    database.execute(*fixes(finding.fix))


def make(database: Database, *statements: str) -> None:
    """Run statements with features of publications since 15; skips the test on a server without them."""
    try:
        database.execute(*statements)
    except psycopg.errors.SyntaxError:
        if database.connection.info.server_version >= PUBLICATION_LISTS:
            raise
        pytest.skip("publications of this version have neither filters nor column lists")


def refused(database: Database, statement: str) -> bool:
    """Whether PostgreSQL itself refuses the application's statement because of the publication."""
    try:
        database.execute(statement)
    except (psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.InvalidColumnReference):
        return True
    return False


def assert_mended(database: Database, what: str, severity: Severity, *tables: TableName, **more: Any) -> Finding:
    """The finding is there; its SQL runs, and it is gone without another in its place."""
    before = wrong(database, *tables, **more)
    (finding,) = [candidate for candidate in before if candidate.what == what]
    assert finding.severity is severity
    mend(database, finding)
    assert [
        remaining.what
        for remaining in wrong(database, *tables, **more)
        if remaining not in before or remaining == finding
    ] == []
    return finding


def test_a_source_that_is_ready_has_nothing_wrong(database: Database) -> None:
    database.execute(*GOOD)
    assert wrong(database) == []


def test_the_publication_of_the_migration_has_nothing_wrong(database: Database) -> None:
    database.execute(
        GOOD[0], "create table p (id int primary key) partition by list (id)", "create table p1 partition of p default"
    )
    tables = (T, TableName("public", "p"))
    database.execute(migrations.publication_sql(PUBLICATION, tables, version=database.connection.info.server_version))
    assert wrong(database, *tables) == []


@pytest.mark.parametrize(
    ("spoiled", "what", "severity"),
    [
        (
            (*GOOD, "alter table t replica identity nothing"),
            "has replica identity NOTHING: PostgreSQL refuses UPDATE and DELETE",
            Severity.ERROR,
        ),
        (
            (
                "create table t (id int primary key, code int not null, constraint other unique (code))",
                "alter table t replica identity using index other",
                GOOD[1],
            ),
            "its replica identity (INDEX) doesn't deliver id of the key id",
            Severity.ERROR,
        ),
        (
            (
                "create table t (id int primary key, code int not null)",
                "create unique index other on t (code)",
                "alter table t replica identity using index other",
                "drop index other",
                GOOD[1],
            ),
            "has lost the index that was its replica identity: PostgreSQL refuses UPDATE and DELETE",
            Severity.ERROR,
        ),
        (
            (*GOOD, "alter table t drop constraint t_pkey, add primary key (id) deferrable"),
            "has a deferrable primary key",
            Severity.ERROR,
        ),
        (("create unlogged table t (id int primary key)",), "is unlogged", Severity.ERROR),
        (
            ("create table t (a int not null, \"B c\" int not null, unique (a, \"B c\"))", GOOD[1]),
            "has no primary key",
            Severity.ERROR,
        ),
        (("create table t (v varchar(10))", GOOD[1]), "has no primary key", Severity.ERROR),
        (
            (*GOOD, f"alter publication {PUBLICATION} set (publish = 'insert, update')"),
            "leaves out some kinds of changes",
            Severity.ERROR,
        ),
        (
            (
                GOOD[0],
                "create table other (id int primary key)",
                f"create publication {PUBLICATION} for table other with ({WHOLE})",
            ),
            "lacks public.t",
            Severity.ERROR,
        ),
        (
            (*GOOD, "create table other (id int primary key)", f"alter publication {PUBLICATION} add table other"),
            "holds tables that aren't captured: public.other",
            Severity.WARNING,
        ),
        (
            (
                "create table t (id int, part int, v int, primary key (id, part))",
                f"create publication {PUBLICATION} for table t (id, v) where (id > 0) with ({WHOLE})",
            ),
            "leaves out key columns of public.t: part",
            Severity.ERROR,
        ),
        (
            (
                "create table t (id int primary key, v int)",
                "alter table t replica identity full",
                f"create publication {PUBLICATION} for table t (v) with ({WHOLE})",
            ),
            "has a column list for public.t, whose replica identity is FULL",
            Severity.ERROR,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_the_sql_of_a_finding_mends_it(
    database: Database, spoiled: tuple[str, ...], what: str, severity: Severity
) -> None:
    make(database, *spoiled)
    assert_mended(database, what, severity)


# Keys.


KEYED = (
    "create table t (id int, a int not null, b int not null, v int)",
    f"create publication {PUBLICATION} for table t with ({WHOLE})",
)
KEY = {T: ("a", "b")}


def test_a_configured_key_within_the_primary_key_is_fine(database: Database) -> None:
    database.execute(*KEYED, "create unique index k on t (a, b)", "alter table t add primary key (a, b, id)")
    assert wrong(database, keys=KEY) == []


def test_all_that_a_configured_key_lacks_is_found_at_once(database: Database) -> None:
    database.execute("create table t (id int primary key, a int, b int)", KEYED[1])
    findings = wrong(database, keys=KEY)
    assert whats(findings) == [
        "the configured key can be null: a, b",
        "no unique index covers exactly the configured key a, b",
        "its replica identity (DEFAULT) doesn't deliver a, b of the key a, b",
    ]
    for finding in findings:
        mend(database, finding)
    assert wrong(database, keys=KEY) == []


@pytest.mark.parametrize(
    ("index", "why"),
    [
        ("create index k on t (a, b)", "k is not unique"),
        ("create unique index k on t (a, b) where v > 1", "k is partial or over expressions"),
        ("create unique index k on t (a, b, (v + 1))", "k is partial or over expressions"),
        ("create unique index k on t (a, b, v)", ""),
        ("create unique index k on t (a) include (b)", ""),
    ],
)
@pytest.mark.soak
def test_an_index_that_does_not_make_the_key_unique_is_not_taken(database: Database, index: str, why: str) -> None:
    database.execute(*KEYED, index, "alter table t replica identity full")
    what = f"no unique index covers exactly the configured key a, b{f' ({why})' if why else ''}"
    assert_mended(database, what, Severity.ERROR, keys=KEY)


def test_columns_that_a_configured_key_names_and_the_table_lacks_are_found(database: Database) -> None:
    database.execute(*KEYED)
    (finding,) = wrong(database, keys={T: ("a", "c", "d")})
    assert finding.what == "the configured key names columns that it doesn't have: c, d"
    assert "the columns are id, a, b, v" in finding.fix


def test_a_deferrable_configured_key_needs_the_full_identity(database: Database) -> None:
    database.execute(*KEYED, "alter table t add unique (a, b) deferrable")
    assert_mended(database, "has a deferrable unique constraint over a, b", Severity.ERROR, keys=KEY)


def test_a_deferrable_primary_key_is_refused_by_postgresql_without_it(database: Database) -> None:
    database.execute("create table t (id int primary key deferrable)", GOOD[1], "insert into t values (1)")
    assert refused(database, "update t set id = 2")


def test_replica_identity_by_an_index_that_holds_the_key_is_fine(database: Database) -> None:
    database.execute(*GOOD, "alter table t replica identity using index t_pkey")
    assert wrong(database) == []


def test_a_table_without_a_key_shows_the_key_that_it_could_have(database: Database) -> None:
    database.execute(*KEYED, "create unique index k on t (a, b)")
    (finding,) = wrong(database)
    assert """[source.options.'public.t'] key = ["a", "b"]""" in finding.fix


@pytest.mark.soak
def test_a_not_null_that_was_never_validated_does_not_count(database: Database) -> None:
    if database.connection.info.server_version < GENERATED_COLUMNS:
        pytest.skip("constraints of that kind came with 18")
    database.execute(
        "create table t (a int, v int)",
        "alter table t add constraint strict not null a not valid",
        "create unique index k on t (a)",
        "alter table t replica identity full",
        KEYED[1],
    )
    assert_mended(database, "the configured key can be null: a", Severity.ERROR, keys={T: ("a",)})


def test_an_append_only_table_needs_no_key(database: Database) -> None:
    database.execute("create table t (v int)", KEYED[1], "alter table t replica identity full")
    assert wrong(database, append_only=[T]) == []


def test_an_append_only_table_without_identity_is_pointed_out(database: Database) -> None:
    database.execute("create table t (v int)", KEYED[1], "insert into t values (1)")
    assert refused(database, "update t set v = 2")
    what = "it has no key and no replica identity: PostgreSQL refuses UPDATE and DELETE"
    assert_mended(database, what, Severity.WARNING, append_only=[T])
    assert not refused(database, "update t set v = 2")


def test_append_only_on_a_table_with_a_key_is_found(database: Database) -> None:
    database.execute(*GOOD)
    assert whats(wrong(database, append_only=[T])) == ["is configured as append_only, and it has a primary key"]


def test_odd_names_are_quoted_in_every_fix(database: Database) -> None:
    odd = TableName('Odd "S".', "T; drop--")
    database.execute(
        'create schema "Odd ""S""."',
        f'create table {odd.sql} ("a;b" int, "C""" int, v text)',
        f"create publication {PUBLICATION} for table {odd.sql} with (publish = 'insert')",
    )
    role = database.role()
    key = {odd: ("a;b", 'C"')}
    for _ in range(4):
        for finding in wrong(database, odd, keys=key, user=role):
            mend(database, finding)
    assert wrong(database, odd, keys=key, user=role) == []


# What PostgreSQL refuses because of the publication.


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (
            (
                "create table t (id int primary key, v int)",
                f"create publication {PUBLICATION} for table t where (v > 0) with ({WHOLE})",
            ),
            "filters the rows of public.t by v, which its replica identity doesn't hold",
        ),
        (
            (
                "create table t (id int primary key, v int)",
                "alter table t replica identity full",
                f"create publication {PUBLICATION} for table t (id, v) with ({WHOLE})",
            ),
            "has a column list for public.t, whose replica identity is FULL",
        ),
        (
            (
                "create table t (id int primary key, v int, code int not null unique default 7)",
                "alter table t replica identity using index t_code_key",
                f"create publication {PUBLICATION} for table t (id, v) with ({WHOLE})",
            ),
            "leaves out columns of the replica identity of public.t: code",
        ),
    ],
    ids=["filter", "list and FULL", "list and index"],
)
def test_what_postgresql_would_refuse_is_found_and_mended(database: Database, made: tuple[str, ...], what: str) -> None:
    make(database, *made, "insert into t (id, v) values (1, 1)")
    assert refused(database, "update t set v = 2")
    assert_mended(database, what, Severity.WARNING if what.startswith("filters") else Severity.ERROR)
    assert not refused(database, "update t set v = 2")


@pytest.mark.parametrize("kind", ["stored", "virtual"])
@pytest.mark.soak
def test_a_generated_column_that_is_not_published_is_said(database: Database, kind: str) -> None:
    if database.connection.info.server_version < GENERATED_COLUMNS and kind == "virtual":
        pytest.skip("virtual columns came with 18")
    database.execute(f"create table t (id int primary key, d int generated always as (id * 2) {kind})", GOOD[1])
    assert wrong(database) == []
    (finding,) = [each for each in findings(database) if each.what == "generated columns that aren't published: d"]
    if finding.fix:
        mend(database, finding)
        assert finding.what not in whats(findings(database))
    is_sent = kind == "stored" and database.connection.info.server_version >= GENERATED_COLUMNS
    assert bool(finding.fix) == is_sent


@pytest.mark.parametrize("kind", ["stored", "virtual"])
@pytest.mark.parametrize("published", [True, False], ids=["published", "planned"])
@pytest.mark.soak
def test_a_generated_column_in_the_full_identity_is_found(database: Database, kind: str, published: bool) -> None:
    if database.connection.info.server_version < GENERATED_COLUMNS:
        pytest.skip("earlier servers send such a row without the column")
    database.execute(
        f"create table t (id int primary key, v int, d int generated always as (v * 2) {kind})",
        "alter table t replica identity full",
        "insert into t (id, v) values (1, 1)",
    )
    if published:
        database.execute(GOOD[1])
        assert refused(database, "update t set v = 2")
    if not published and kind == "stored":  # capture's own publication has it
        assert wrong(database) == []
        return
    assert_mended(database, "its replica identity holds generated columns that aren't published: d", Severity.ERROR)
    if published:
        assert not refused(database, "update t set v = 2")


def test_a_generated_key_has_to_be_published(database: Database) -> None:
    database.execute(
        "create table t (v int, d int generated always as (v * 2) stored primary key)",
        GOOD[1],
        "insert into t (v) values (1)",
    )
    what = "its key holds generated columns that aren't published: d"
    if database.connection.info.server_version < GENERATED_COLUMNS:
        assert what in whats(wrong(database))
    else:
        assert_mended(database, what, Severity.ERROR)
        assert not refused(database, "update t set v = 2")


# Partitions.


P = TableName("public", "p")
PARTITIONED = (
    "create table p (id int, v int, primary key (id)) partition by list (id)",
    "create table p1 partition of p for values in (1)",
    "create table p2 partition of p default partition by list (id)",
    "create table p21 partition of p2 default",
)
VIA_ROOT = f"create publication {PUBLICATION} for table p with ({WHOLE})"


def test_a_partitioned_table_published_as_itself_is_fine(database: Database) -> None:
    database.execute(*PARTITIONED, VIA_ROOT)
    assert wrong(database, P) == []
    assert "key id, 2 partitions" in whats(findings(database, P))


@pytest.mark.parametrize("scope", ["for table p", "for all tables"])
@pytest.mark.soak
def test_a_partitioned_table_published_as_its_partitions_is_found(database: Database, scope: str) -> None:
    database.execute(*PARTITIONED, f"create publication {PUBLICATION} {scope}")
    what = "sends changes of public.p under the names of the partitions"
    assert_mended(database, what, Severity.ERROR, P)
    assert wrong(database, P) == []


@pytest.mark.soak
def test_a_partition_published_as_its_root_is_found(database: Database) -> None:
    database.execute(*PARTITIONED, VIA_ROOT)
    leaf = TableName("public", "p21")
    what = "sends changes of public.p21 under the name of public.p"
    findings = wrong(database, leaf)
    (finding,) = [finding for finding in findings if finding.what == what]
    mend(database, finding)
    assert what not in whats(wrong(database, leaf))


@pytest.mark.soak
def test_partitions_of_another_identity_are_found(database: Database) -> None:
    database.execute(*PARTITIONED, VIA_ROOT, "alter table p replica identity full")
    what = "partitions have another replica identity than the table: public.p1, public.p21"
    assert_mended(database, what, Severity.ERROR, P)
    database.execute("alter table p replica identity default")
    assert_mended(database, what, Severity.ERROR, P)


def test_a_partitioned_table_has_to_say_how_its_old_rows_look(database: Database) -> None:
    database.execute(*PARTITIONED, VIA_ROOT, "alter table p replica identity nothing")
    what = "its replica identity (NOTHING) doesn't deliver id of the key id"
    assert_mended(database, what, Severity.ERROR, P)
    assert wrong(database, P) == []


@pytest.mark.soak
def test_an_identity_by_index_is_asked_of_every_partition(database: Database) -> None:
    database.execute(
        *PARTITIONED,
        VIA_ROOT,
        "create unique index k on p (id)",
        "alter table p replica identity using index k",
        "alter table p1 replica identity nothing",
    )
    what = "partitions have another replica identity than the table: public.p1"
    assert_mended(database, what, Severity.ERROR, P)
    assert wrong(database, P) == []


@pytest.mark.soak
def test_foreign_and_unlogged_partitions_are_found(database: Database) -> None:
    database.execute(
        "create table p (id int) partition by list (id)",
        "create foreign data wrapper w",
        "create server s foreign data wrapper w",
        "create foreign table pf partition of p for values in (1) server s",
        "create unlogged table pu partition of p for values in (2)",
    )
    findings = [finding for finding in wrong(database, P) if "partitions" in finding.what]
    assert whats(findings) == ["has foreign tables as partitions: public.pf", "has unlogged partitions: public.pu"]
    for finding in findings:
        mend(database, finding)
    assert [what for what in whats(wrong(database, P)) if "partitions" in what] == []


@pytest.mark.soak
def test_a_table_that_others_inherit_from_is_pointed_out(database: Database) -> None:
    database.execute(
        GOOD[0],
        "create table heir () inherits (t)",
        f"create publication {PUBLICATION} for table only t with ({WHOLE})",
    )
    assert whats(wrong(database)) == ["other tables inherit from it"]


# Scopes of publications.


def test_preflight_changes_nothing(database: Database) -> None:
    # It runs in read-only transactions here, so anything that it wrote would fail.
    database.execute("create table t (id int, v text)", f"create publication {PUBLICATION} with (publish = 'insert')")
    assert wrong(database, T, TableName("public", "missing")) != []


# Roles.


def least_privileged(database: Database) -> str:
    """A role as our own migration makes it."""
    role = database.role()
    database.execute(f"drop role {role}", migrations.role_sql(role, database=database.name, tables=[T]))
    database.let_in(role)
    return role


def test_the_role_of_the_migration_has_all_that_capture_needs(database: Database) -> None:
    database.execute(*GOOD)
    assert wrong(database, user=least_privileged(database)) == []


def test_a_role_that_may_not_read_gets_the_grants_that_it_lacks(database: Database) -> None:
    database.execute(
        "create schema shop",
        "create table shop.t (id int primary key)",
        f"create publication {PUBLICATION} for table shop.t with ({WHOLE})",
    )
    role, table = database.role(), TableName("shop", "t")
    assert_mended(database, f"role {role} can't read it", Severity.ERROR, table, user=role)
    assert wrong(database, table, user=role) == []


def test_a_role_needs_to_read_the_published_columns_only(database: Database) -> None:
    make(
        database,
        "create table t (id int primary key, v int, secret int)",
        f"create publication {PUBLICATION} for table t (id, v) with ({WHOLE})",
    )
    role = database.role()
    finding = assert_mended(database, f"role {role} can't read it", Severity.ERROR, user=role)
    assert finding.fix == f'grant select ("id", "v") on "public"."t" to "{role}";'
    assert wrong(database, user=role) == []


def test_partitions_are_to_be_read_too(database: Database) -> None:
    database.execute(*PARTITIONED, VIA_ROOT)
    role = database.role()
    database.execute(f"grant select on p to {role}")
    assert_mended(database, f"role {role} can't read 2 of 2 partitions by themselves", Severity.WARNING, P, user=role)


def test_a_role_without_replication_gets_it(database: Database) -> None:
    database.execute(*GOOD)
    role = database.role(login="login")
    database.execute(f"grant select on t to {role}")
    assert_mended(database, "lacks REPLICATION", Severity.ERROR, user=role)
    assert wrong(database, user=role) == []


@pytest.mark.soak
def test_rows_hidden_from_the_role_are_found(database: Database) -> None:
    database.execute(*GOOD)
    role = least_privileged(database)
    database.execute("alter table t enable row level security")
    what = f"row level security hides rows of it from role {role}"
    assert_mended(database, what, Severity.ERROR, user=role)
    assert wrong(database, user=role) == []


def test_a_missing_publication_is_the_owners_to_create(database: Database) -> None:
    database.execute(GOOD[0])
    role = least_privileged(database)
    finding = assert_mended(database, "doesn't exist", Severity.ERROR, user=role)
    assert finding.fix.endswith("-- as postgres")


def test_a_missing_publication_that_our_role_can_create_is_fine(database: Database) -> None:
    database.execute(GOOD[0])
    role = least_privileged(database)
    database.execute(f"alter table t owner to {role}")
    finding = assert_mended(database, "doesn't exist", Severity.ERROR, user=role)
    assert finding.fix == f'grant create on database "{database.name}" to "{role}";'
    assert any(
        what.startswith("doesn't exist yet; capture creates it: create publication")
        for what in whats(findings(database, user=role))
    )
    database.execute(
        f"alter table t owner to {database.connection.info.user}", f"revoke all on database {database.name} from {role}"
    )


def test_a_fix_says_who_has_to_run_it(database: Database) -> None:
    database.execute(*GOOD, f"alter publication {PUBLICATION} set (publish = 'insert')")
    (finding,) = wrong(database, user=least_privileged(database))
    assert finding.fix.endswith(";  -- as postgres")


def test_settings_of_the_role_hinder_nobody(database: Database) -> None:
    database.execute(*GOOD)
    role = least_privileged(database)
    database.execute(
        f"alter role {role} set statement_timeout = '5ms'",
        f"alter role {role} set lock_timeout = '5ms'",
        f"alter database {database.name} set idle_session_timeout = '5ms'",
        f"alter database {database.name} set row_security = on",
        f"alter database {database.name} set quote_all_identifiers = on",
    )
    if database.connection.info.server_version >= 170000:
        database.execute(f"alter role {role} set transaction_timeout = '5ms'")
    assert wrong(database, user=role) == []
    with database.pinned(user=role) as connection:
        names = "statement_timeout", "lock_timeout", "idle_session_timeout", "transaction_timeout"
        limits = connection.execute("select setting from pg_settings where name = any(%s)", (list(names),)).fetchall()
        assert {limit for (limit,) in limits} == {"0"}


# Slots.


def test_a_slot_of_ours_is_fine(database: Database) -> None:
    database.execute(*GOOD)
    name, _ = database.create_slot()
    assert [finding.what for finding in findings(database, slot=name) if finding.subject == f"slot {name}"] == [
        "exists"
    ]
