"""Logical messages, transactions over several tables, and changes that came from elsewhere (origins)."""

from tests.conformance.case import Case, On, Way

CASES = (
    Case(
        id="PG-020",
        about="messages in a transaction, outside, and rolled back",
        setup=("create table t (id int primary key)",),
        after=(
            "begin; insert into t values (1); select pg_logical_emit_message(true, 'wanted', 'in transaction'); commit",
            "select pg_logical_emit_message(false, 'wanted', 'outside')",
            "begin; select pg_logical_emit_message(true, 'wanted', 'undone');"
            " select pg_logical_emit_message(false, 'wanted', 'undone outside'); rollback",
            "insert into t values (2)",
        ),
        source='messages = ["wanted"]',
        # What lies before the handoff is not in the stream.
        ways=(Way.STREAM,),
        messages=(("wanted", "in transaction"), ("wanted", "outside"), ("wanted", "undone outside")),
    ),
    Case(
        id="DBZ-msg2",
        about="only messages of wanted prefixes, the content intact",
        setup=("create table t (id int primary key)",),
        after=(
            "select pg_logical_emit_message(true, 'other', 'no')",
            "select pg_logical_emit_message(true, 'wanted', E'\\u20ac \"quoted\" \\\\ back')",
            "select pg_logical_emit_message(true, 'wanted.not', 'no')",
            "insert into t values (1)",
        ),
        source='messages = ["wanted"]',
        # What lies before the handoff is not in the stream.
        ways=(Way.STREAM,),
        messages=(("wanted", '\u20ac "quoted" \\ back'),),
    ),
    Case(
        id="OWN-msg",
        about="messages that nobody asked for change nothing",
        setup=("create table t (id int primary key)",),
        before=("insert into t values (1)", "select pg_logical_emit_message(true, 'other', 'before')"),
        after=(
            "begin; insert into t values (2); select pg_logical_emit_message(true, 'other', repeat('x', 100000));"
            " insert into t values (3); commit",
            "select pg_logical_emit_message(false, 'other', 'after')",
        ),
        transactions=(("t c 1",), ("t c 2", "t c 3")),
    ),
    Case(
        id="DBZ-tx",
        about="two tables in one transaction, counted as one",
        tables=("a", "b"),
        setup=("create table a (id int primary key)", "create table b (id int primary key, v text)"),
        before=("begin; insert into a values (1); insert into b values (1, 'x'), (2, 'y'); commit",),
        after=("begin; delete from a; update b set v = 'z' where id = 2; insert into a values (9); commit",),
        transactions=(("a c 1", "b c 1", "b c 2"), ("a d 1", "b u 2", "a c 9")),
    ),
    Case(
        id="GPC-tx",
        about="committed, rolled back, deleted",
        setup=("create table t (id int primary key, v text)",),
        before=("begin; insert into t values (1, 'kept'), (2, 'kept'); commit",),
        after=(
            "begin; insert into t values (3, 'undone'); update t set v = 'undone'; rollback",
            "delete from t where id = 1",
        ),
        transactions=(("t c 1", "t c 2"), ("t d 1",)),
    ),
    Case(
        id="DBZ-origin",
        about="changes of different origins, one after the other",
        setup=(
            "create table t (id int primary key, v text)",
            "select pg_replication_origin_create('$pipeline $schema one'),"
            " pg_replication_origin_create('$pipeline $schema two')",
        ),
        before=(
            On("replicated", "select pg_replication_origin_session_setup('$pipeline $schema one')"),
            On("replicated", "insert into t values (1, 'one')"),
            "insert into t values (2, 'here')",
            On("replicated", "select pg_replication_origin_session_reset()"),
        ),
        after=(
            On("replicated", "select pg_replication_origin_session_setup('$pipeline $schema two')"),
            On("replicated", "insert into t values (3, 'two')"),
            On("replicated", "select pg_replication_origin_session_reset()"),
            On("replicated", "insert into t values (4, 'here')"),
        ),
        transactions=(("t c 1",), ("t c 2",), ("t c 3",), ("t c 4",)),
    ),
)
