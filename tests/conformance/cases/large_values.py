"""Values that PostgreSQL stores apart (TOAST) and doesn't send again when an update leaves them as they were."""

from tests.conformance.case import Case

_LONG = "(select string_agg(md5(i::text || '{}'), '') from generate_series(1, {}) i)"


def _long(seed: str, pieces: int = 320) -> str:
    """Text of 32 characters a piece that doesn't compress; the same whenever it is asked for."""
    return _LONG.format(seed, pieces)


_KINDS = (
    "create table t (id int primary key, n int, a text, b varchar(20000), c char(12000), d bytea, e json, f jsonb,"
    " g text[],"
    " h bigint[])"
)
_FILL = (
    f"insert into t select i, 0, {_long('a')}, {_long('b')}, {_long('c')}, decode({_long('d')}, 'hex'),"
    f" json_build_object('x', {_long('e')}), jsonb_build_object('x', {_long('f')}),"
    f" array[{_long('g')}, null, {_long('h')}],"
    " (select array_agg(hashint8(x)::bigint * 1000000007) from generate_series(1, 2000) x) from"
    " generate_series({}, {}) i"
)
_XPTO = "create table t (id int primary key, toasted_col1 text, rand1 float8, toasted_col2 text, rand2 float8)"

CASES = (
    Case(
        id="MZ-toast",
        about="32 kB untouched by an update, replica identity full",
        setup=("create table t (id int primary key, a int, big text)", "alter table t replica identity full"),
        before=(f"insert into t select i, 0, {_long('mz', 1000)} from generate_series(1, 2) i",),
        after=("update t set a = 3", "update t set id = 30 where id = 2"),
        expect={"select array_agg(length(big)) from t": ([32000, 32000],)},
    ),
    Case(
        id="PG-td-big",
        about="an old row of over 64 kB, replica identity full",
        setup=("create table t (id int primary key, a text, b text)", "alter table t replica identity full"),
        before=(f"insert into t values (1, {_long('big', 3000)}, {_long('more', 3000)})",),
        after=("update t set a = 'short' where id = 1", "update t set id = 2"),
        transactions=(("t c 1",), ("t u 1",), ("t d 1", "t c 2")),
        expect={"select length(b) from t": (96000,)},
    ),
    Case(
        id="DBZ-toast-f",
        about="large values of ten types, replica identity full",
        setup=(_KINDS, "alter table t replica identity full"),
        before=(_FILL.format(1, 2), "update t set n = 1"),
        after=(_FILL.format(3, 4), "update t set n = 2", "update t set a = 'short', id = 10 where id = 3"),
        expect={"select count(*), min(n), min(length(b)) from t": (4, 2, 10240)},
    ),
    Case(
        id="DBZ-toast",
        about="large values of ten types, only the key as identity",
        setup=(_KINDS,),
        before=(_FILL.format(1, 2), "update t set n = 1"),
        after=(_FILL.format(3, 4), "update t set n = 2", "update t set a = 'short' where id = 3"),
        expect={"select count(*), min(n), min(length(b)) from t": (4, 2, 10240)},
    ),
    Case(
        id="PG-td-toast",
        about="update beside large values; COPY of many; upsert",
        setup=(_XPTO,),
        before=(
            f"insert into t select i, case when i % 2 = 0 then {_long('one')} else 'short' end, i, {_long('two')}, i"
            " from generate_series(1, 203) i",
        ),
        after=(
            "update t set rand1 = 0.5 where id <= 20",
            f"update t set toasted_col1 = {_long('three')} where id = 1",
            "begin; update t set rand2 = 1 where id = 2; update t set toasted_col2 = 'short' where id = 2;"
            " update t set rand2 = 2 where id = 2; commit",
            f"insert into t values (3, {_long('four')}, 3, 'upsert', 3)"
            " on conflict (id) do update set toasted_col1 = excluded.toasted_col1",
        ),
        expect={"select count(*), min(length(toasted_col2)) from t": (203, 5)},
    ),
    Case(
        id="DBZ-resel",
        about="the key changes beside a large value",
        setup=("create table t (id int primary key, n int, big text)",),
        before=(f"insert into t select i, 0, {_long('resel')} || i from generate_series(1, 4) i",),
        after=(
            "update t set id = 10 where id = 1",
            "begin; update t set id = 20 where id = 2; update t set n = 1 where id = 20;"
            " update t set id = 2 where id = 20; commit",
            "begin; delete from t where id = 3; update t set id = 3 where id = 4; commit",
        ),
        expect={"select string_agg(id || right(big, 1), ',' order by id) from t": ("22,34,101",)},
    ),
    Case(
        id="PDB-toast",
        about="many updates beside large values in one transaction",
        setup=("create table t (id int, c1 int, c2 int, t text, t2 text, primary key (id, t))",),
        before=(f"insert into t select i, i, i, 'key ' || i, {_long('pdb')} || i from generate_series(1, 10) i",),
        after=(
            "begin; update t set c1 = c1 + 1 where c2 % 2 = 1; delete from t where c2 % 2 = 0;"
            f" update t set t2 = {_long('new')} where id = 1; update t set c1 = 100 where id = 1; commit",
            "update t set c1 = c1 + 1",
            f"begin; insert into t values (20, 0, 1, 'key', {_long('in')}); update t set c1 = 1 where id = 20; commit",
        ),
        expect={"select count(*), min(length(t2)) from t": (6, 10240)},
    ),
    Case(
        id="DBZ-toast-d",
        about="the table changes, then an update beside a large value",
        setup=("create table t (id int primary key, n int, big text)",),
        before=(f"insert into t select i, 0, {_long('ddl')} from generate_series(1, 3) i",),
        after=(
            "alter table t add column extra text",
            "update t set n = 1 where id = 1",
            "alter table t rename column big to large",
            "update t set n = 2 where id = 2",
        ),
        expect={"select array_agg(length(large)) from t": ([10240, 10240, 10240],)},
    ),
    Case(
        id="OWN-toastkey",
        about="rows with large values change places in one transaction",
        setup=("create table t (id int primary key, n int, big text)",),
        before=(f"insert into t select i, 0, {_long('key')} || i from generate_series(1, 4) i",),
        after=(
            "begin; update t set id = 30 where id = 1; update t set id = 1 where id = 2;"
            " update t set id = 2 where id = 30; commit",
            "begin; update t set id = 5 where id = 3; update t set n = 1 where id = 5;"
            " update t set id = 3 where id = 4;"
            " update t set id = 4 where id = 5; update t set n = n + 1; commit",
        ),
        expect={"select string_agg(id || right(big, 1) || n, ',' order by id) from t": ("121,211,341,432",)},
    ),
    Case(
        id="OWN-toastdef",
        about="rows with large values swap a deferrable key, replica identity full",
        setup=(
            "create table t (id int primary key deferrable, n int, big text)",
            "alter table t replica identity full",
        ),
        before=(f"insert into t select i, 0, {_long('def')} || i from generate_series(1, 3) i",),
        after=("update t set id = 3 - id where id < 3", "update t set id = id + 1, n = 1", "update t set id = id - 1"),
        expect={"select string_agg(id || right(big, 1), ',' order by id) from t": ("12,21,33",)},
    ),
    Case(
        id="OWN-toastold",
        about="a key is deleted or truncated and comes again with other values",
        setup=("create table t (id int primary key, n int, a text, b text)",),
        before=(f"insert into t select i, 0, {_long('a1')}, {_long('b1')} from generate_series(1, 4) i",),
        after=(
            f"delete from t where id = 1; insert into t values (1, 0, 'short', {_long('b2')})",
            "update t set n = 1",
            f"begin; truncate t; insert into t select i, 0, {_long('a3')} || i, 'short' from generate_series(1, 3) i;"
            " update t set n = 2 where id < 3; commit",
            "update t set n = n + 10",
            f"update t set a = null, b = {_long('b4')} where id = 2",
            "update t set n = n + 10",
        ),
        expect={
            "select string_agg(id || coalesce(right(a, 1), '-') || n, ',' order by id) from t": ("1122,2-22,3320",)
        },
    ),
    Case(
        id="OWN-toastcol",
        about="a column of large values is dropped and one of its name comes",
        setup=("create table t (id int primary key, n int, big text)",),
        before=(f"insert into t select i, 0, {_long('col')} from generate_series(1, 3) i",),
        after=(
            "alter table t drop column big",
            "update t set n = 1 where id = 1",
            f"alter table t add column big text; update t set big = {_long('again')} || id where id > 1",
            "update t set n = 2",
        ),
        expect={"select string_agg(id || coalesce(right(big, 1), '-'), ',' order by id) from t": ("1-,22,33",)},
    ),
    Case(
        id="OWN-toasttype",
        about="the type of a column of large values changes",
        setup=("create table t (id int primary key, n int, big varchar(20000), doc text)",),
        before=(
            f"insert into t select i, 0, {_long('type')}, json_build_object('x', {_long('doc')}) from"
            " generate_series(1, 3) i",
        ),
        after=(
            "alter table t alter column big type text",
            "update t set n = 1 where id = 1",
            "alter table t alter column doc type jsonb using doc::jsonb",
            "update t set n = 2 where id = 2",
        ),
        unseen=True,
        expect={"select count(*), min(length(doc->>'x')) from t": (3, 10240)},
    ),
)
