"""Inserts, updates and deletes, and how transactions put them in order."""

from tests.conformance.case import Case, On, Way

CASES = (
    Case(
        id="PG-001a",
        about="a publication of inserts alone is refused",
        tables=("tab_ins",),
        setup=("create table tab_ins (a int primary key)", "insert into tab_ins select generate_series(1, 1002)"),
        after=(
            "insert into tab_ins select generate_series(2001, 2050)",
            "delete from tab_ins where a > 2020",
            "update tab_ins set a = -a",
        ),
        ways=(Way.HANDOFF,),
        published=("table $schema.tab_ins",),
        publication_with="publish = 'insert'",
        stops="leaves out some kinds of changes",
    ),
    Case(
        id="PG-001b",
        about="insert, delete, change of every key",
        tables=("tab_rep",),
        setup=("create table tab_rep (a int primary key)",),
        before=("insert into tab_rep select generate_series(1, 50)",),
        after=("delete from tab_rep where a > 20", "update tab_rep set a = -a"),
        expect={"select count(*), min(a), max(a) from tab_rep": (20, -20, -1)},
    ),
    Case(
        id="PG-001c",
        about="columns go by name, not by index",
        tables=("tab_mixed",),
        setup=("create table tab_mixed (a int primary key, b text)",),
        before=("insert into tab_mixed values (1, 'foo')",),
        after=("insert into tab_mixed (b, a) values ('bar', 2)",),
        expect={"select string_agg(a || b, ',' order by a) from tab_mixed": ("1foo,2bar",)},
    ),
    Case(
        id="PG-001d",
        about="rows without a key that are equal can't be keyed: refused",
        tables=("tab_full",),
        setup=(
            "create table tab_full (a int)",
            "alter table tab_full replica identity full",
            "insert into tab_full select generate_series(1, 10) from generate_series(1, 2)",
        ),
        after=("update tab_full set a = a * a",),
        ways=(Way.HANDOFF,),
        stops="primary key",
    ),
    Case(
        id="PG-001e",
        about="two equal old rows of a table without a key: refused",
        tables=("tab_full2",),
        setup=(
            "create table tab_full2 (x text)",
            "alter table tab_full2 replica identity full",
            "insert into tab_full2 values ('a'), ('b'), ('b')",
        ),
        after=("update tab_full2 set x = 'bb' where x = 'b'",),
        ways=(Way.HANDOFF,),
        stops="primary key",
    ),
    Case(
        id="PG-001f",
        about="a table that isn't published gives no event",
        tables=("tab_rep",),
        setup=("create table tab_rep (a int primary key)", "create table tab_notrep (a int primary key)"),
        before=("insert into tab_notrep select generate_series(1, 10)", "insert into tab_rep values (1)"),
        after=("delete from tab_notrep where a > 5", "insert into tab_rep values (2)"),
        expect={"select array_agg(a order by a) from tab_rep": ([1, 2],)},
    ),
    Case(
        id="PG-001g",
        about="the publication's operations change while running: stops",
        setup=("create table t (a int primary key)",),
        before=("insert into t values (1), (2)",),
        after=(
            "alter publication $publication set (publish = 'insert, delete')",
            "update t set a = 3 where a = 1",
            "delete from t where a = 2",
        ),
        ways=(Way.HANDOFF,),
        stops="publication",
    ),
    Case(
        id="PG-100a",
        about="replica identity moves to another index",
        setup=(
            "create table t (a int not null, b int not null)",
            "create unique index idx_a on t (a, b)",
            "create unique index idx_b on t (b)",
            "alter table t replica identity using index idx_a",
        ),
        before=("insert into t values (1, 1), (2, 2), (3, 3)", "update t set a = -1, b = 10 where a = 1"),
        after=(
            "alter table t replica identity using index idx_b; drop index idx_a",
            "update t set a = -2 where b = 2",
            "update t set b = 30 where b = 3",
            "delete from t where b = 10",
        ),
        options={"t": 'key = ["b"]'},
        expect={"select array_agg(a || '/' || b order by b) from t": (["-2/2", "3/30"],)},
    ),
    Case(
        id="PG-100b",
        about="the schema is renamed in the transaction of an insert, and back",
        setup=("create table t (a int primary key)",),
        before=("insert into t values (1)",),
        after=(
            "begin; alter schema $schema rename to $schema_renamed; insert into $schema_renamed.t values (2); commit",
            "insert into $schema_renamed.t values (3)",
            "alter schema $schema_renamed rename to $schema",
            "insert into t values (4)",
        ),
        transactions=(("t c 1",), ("t c 2",), ("t c 3",), ("t c 4",)),
    ),
    Case(
        id="PG-100c",
        about="a dropped column under replica identity full",
        setup=(
            "create table t (a int primary key, gone text, b int)",
            "alter table t replica identity full",
            "insert into t values (1, 'x', 1), (2, 'y', 2), (3, 'z', 3)",
            "alter table t drop column gone",
        ),
        before=("update t set b = 20 where a = 2",),
        after=("update t set b = 10 where b = 1", "delete from t where b = 20"),
        expect={"select array_agg(a || '/' || b order by a) from t": (["1/10", "3/3"],)},
    ),
    Case(
        id="PG-100e",
        about="temporary and unlogged tables are passed over",
        setup=("create table t (a int primary key)", "create unlogged table quick (a int primary key)"),
        before=("insert into quick values (1)", "insert into t values (1)"),
        after=(
            "create temp table passing (a int primary key); insert into passing values (1)",
            "begin; insert into quick values (2); insert into passing values (2); insert into t values (2); commit",
            "drop table passing",
        ),
        transactions=(("t c 1",), ("t c 2",)),
    ),
    Case(
        id="DBZ-ord",
        about="one multi-insert of 20 rows, a restart in its middle",
        setup=("create table t (id int primary key, v text)",),
        before=("insert into t values (0, 'first')",),
        after=(
            "insert into t select i, 'row ' || i from generate_series(1, 20) i",
            "update t set v = 'last' where id = 20",
        ),
        restarts=True,
        ways=(Way.STREAM, Way.HANDOFF),
        transactions=(("t c 0",), tuple(f"t c {i}" for i in range(1, 21)), ("t u 20",)),
    ),
    Case(
        id="GPC-ord",
        about="the order is that of commits, not of begins",
        setup=("create table t (id int primary key, v text)", "insert into t values (1, 'start')"),
        before=(
            On("a", "begin"),
            On("a", "insert into t values (600, 'A')"),
            On("b", "begin; insert into t values (601, 'B'); update t set v = 'B' where id = 1; commit"),
            On("a", "update t set v = v || 'A' where id = 1"),
            On("a", "commit"),
        ),
        after=("insert into t values (602, 'C')",),
        transactions=(("t c 601", "t u 1"), ("t c 600", "t u 1"), ("t c 602",)),
        expect={"select v from t where id = 1": ("BA",)},
    ),
    Case(
        id="DBZ-snap",
        about="a transaction that is open while the slot is created",
        setup=("create table t (id int primary key, v text)", "insert into t values (1, 'old')"),
        # The slot waits for transactions that have written; one that only reads yet writes after the handoff.
        before=(On("a", "begin isolation level repeatable read"), On("a", "select count(*) from t")),
        after=(On("a", "insert into t values (2, 'open')"), On("a", "commit"), "update t set v = 'new' where id = 1"),
        expect={"select string_agg(v, ',' order by id) from t": ("new,open",)},
    ),
    Case(
        id="OWN-pk1",
        about="a key change as the last statement before a restart",
        setup=("create table t (id int primary key, v text)",),
        before=("insert into t values (1, 'one'), (2, 'two')", "update t set id = id + 100"),
        after=("update t set id = id + 100",),
        restarts=True,
        ways=(Way.STREAM, Way.HANDOFF),
        transactions=(
            ("t c 1", "t c 2"),
            ("t d 1", "t c 101", "t d 2", "t c 102"),
            ("t d 101", "t c 201", "t d 102", "t c 202"),
        ),
    ),
    Case(
        id="OWN-pk2",
        about="a deferrable key is swapped and shifted",
        setup=(
            "create table t (id int primary key deferrable, v text, n int)",
            "alter table t replica identity full",
            "insert into t values (1, 'one', 0), (2, 'two', 0), (5, 'same', 0), (6, 'same', 0)",
        ),
        before=(
            "update t set id = 3 - id where id < 3",
            "begin; truncate t; insert into t values (1, 'new', 0); delete from t; commit",
            "begin; insert into t values (1, 'new', 0); update t set v = 'touched'; truncate t;"
            " insert into t values (1, 'new', 0); update t set id = 9; update t set id = 2; delete from t where id = 2;"
            " insert into t values (3, 'last', 0); commit",
            "delete from t; insert into t select i, 'r' || i, 0 from generate_series(1, 6) i",
            "insert into t values (7, 'same', 0), (8, 'same', 0)",
        ),
        after=(
            "update t set id = id + 1",
            "update t set id = id - 1",
            "update t set id = 3 - id where id < 3",
            "update t set id = case id when 1 then 2 when 2 then 3 else 1 end where id <= 3",
            "begin; set constraints all deferred; update t set id = 2 where id = 1;"
            " update t set id = 1 where v = 'r2'; commit",
            "begin; set constraints all deferred; update t set id = 5, v = 'four' where id = 4;"
            " update t set v = 'touched' where v = 'r5'; update t set id = 4 where v = 'touched';"
            " delete from t where id = 6; insert into t values (6, 'new', 1); commit",
            "begin; set constraints all deferred; insert into t values (1, 'guest', 0);"
            " delete from t where v = 'guest'; commit",
            "begin; set constraints all deferred; insert into t values (4, 'guest', 0);"
            " delete from t where v = 'touched'; commit",
            "begin; delete from t where id = 5; insert into t values (5, 'again', 2); commit",
            "begin; update t set id = 9 - id; alter table t drop n; update t set id = 9 - id where id in (1, 8);"
            " commit",
        ),
        expect={"select string_agg(id || v, ',' order by id) from t": ("1r2,2same,3new,4again,5guest,6r1,7r3,8same",)},
    ),
    Case(
        id="PDB-softdel",
        about="insert, update and delete of one row in one transaction",
        setup=("create table t (id int primary key, v text)",),
        before=(
            "begin; insert into t values (1, 'a'); update t set v = 'b' where id = 1; delete from t where id = 1;"
            " commit",
            "insert into t values (2, 'a')",
            "insert into t values (3, 'a')",
        ),
        after=(
            "begin; update t set v = 'b' where id = 2; delete from t where id = 2; commit",
            "begin; delete from t where id = 3; insert into t values (3, 'again'); commit",
            "insert into t values (2, 'back')",
        ),
        transactions=(
            ("t c 1", "t u 1", "t d 1"),
            ("t c 2",),
            ("t c 3",),
            ("t u 2", "t d 2"),
            ("t d 3", "t c 3"),
            ("t c 2",),
        ),
        expect={"select string_agg(id || v, ',' order by id) from t": ("2back,3again",)},
    ),
    Case(
        id="PG-016",
        about="savepoints, released and not",
        setup=("create table t (a int primary key, b text)", "insert into t values (1, 'foo'), (2, 'bar')"),
        before=("insert into t values (100, 'x')",),
        after=(
            "begin; insert into t values (3, 'a'), (4, 'b'), (5, 'c'); update t set b = md5(b) where a % 2 = 0;"
            " delete from t where a % 3 = 0;"
            " savepoint s1; insert into t values (6, 'a'), (7, 'b'), (8, 'c'); update t set b = md5(b) where a % 2 = 0;"
            " delete from t where a % 3 = 0;"
            " savepoint s2; insert into t values (9, 'a'), (10, 'b'), (11, 'c'); rollback to s2;"
            " savepoint s3; insert into t values (12, 'a'), (13, 'b'), (14, 'c'); delete from t where a % 3 = 0;"
            " commit",
        ),
        expect={"select array_agg(a order by a) from t": ([1, 2, 4, 5, 7, 8, 13, 14, 100],)},
    ),
    Case(
        id="GPC-166",
        about="a large savepoint is rolled back, the rest comes",
        setup=("create table t (id int primary key)",),
        after=(
            "begin; insert into t select generate_series(1, 500); savepoint s;"
            " insert into t select generate_series(1001, 1500); rollback to s;"
            " insert into t select generate_series(501, 505);"
            " commit",
        ),
        transactions=(tuple(f"t c {i}" for i in range(1, 506)),),
    ),
    Case(
        id="GPC-rb",
        about="nothing of a large transaction that was rolled back",
        setup=("create table t (id int primary key)",),
        before=("begin; insert into t select generate_series(1, 2000); rollback",),
        after=("begin; insert into t select generate_series(1, 2000); rollback", "insert into t values (7)"),
        transactions=(("t c 7",),),
    ),
    Case(
        id="OWN-2pc",
        about="a prepared transaction comes when it is committed",
        setup=("create table t (id int primary key)",),
        before=(
            "begin; insert into t values (11); prepare transaction '$schema 11'",
            "begin; insert into t values (12); prepare transaction '$schema 12'",
            "insert into t values (1)",
            "commit prepared '$schema 11'",
            "rollback prepared '$schema 12'",
        ),
        after=(
            "begin; insert into t values (21); savepoint s; insert into t values (22); rollback to s;"
            " prepare transaction '$schema 21'",
            "insert into t values (2)",
            "commit prepared '$schema 21'",
            "begin; prepare transaction '$schema none'",
            "commit prepared '$schema none'",
        ),
        transactions=(("t c 1",), ("t c 11",), ("t c 2",), ("t c 21",)),
    ),
)
