"""Values of every type. The list itself is in ``tests.values``; a server is asked only for what its version knows."""

from collections.abc import Mapping, Sequence

from tests.conformance.case import Case
from tests.values import ARRAYS, EXTENSIONS, SCALARS, TYPES, known

_EXTENSIONS = "; ".join(f"create extension if not exists {name} schema public" for name in EXTENSIONS)

# What supabase/etl rejects, alone and in arrays.
_REJECTED_ELSEWHERE = {
    "time": ("'24:00:00'",),
    "timestamp": ("'infinity'", "'-infinity'", "'0044-02-01 00:00:00 BC'", "'270000-01-01'"),
    "timestamptz": ("'infinity'", "'-infinity'", "'0044-02-01 00:00:00+00 BC'", "'270000-01-01 00:00:00+00'"),
    "date": ("'infinity'", "'-infinity'", "'0044-02-01 BC'", "'300000-01-01'"),
}
_REJECTED_ELSEWHERE |= {
    f"{kind}[]": (f"array[{', '.join(values)}, null]::{kind}[]",) for kind, values in _REJECTED_ELSEWHERE.items()
}

_NOT_NULL = {
    "smallint": "1",
    "int": "123456",
    "bigint": "1234567890123",
    "real": "3.3",
    "float8": "4.44",
    "numeric(6,4)": "22.2222",
    "boolean": "false",
    "char(4)": "'abc'",
    "varchar(5)": "'sv'",
    "text": "'some text'",
    "bytea": r"'\x010203'",
    "bit(3)": "'101'",
    "varbit(3)": "'10'",
    "money": "'$1,234.11'",
    "date": "'2016-11-04'",
    "time": "'13:51:30'",
    "timetz": "'13:51:30+02'",
    "timestamp": "'2016-11-04 13:51:30'",
    "timestamptz": "'2016-11-04 13:51:30+02'",
    "interval": "'1 year 2 mons 3 days 04:05:06.78'",
    "box": "'(1,1),(0,0)'",
    "circle": "'<(10,4),10>'",
    "line": "'{-1,0,0}'",
    "lseg": "'[(0,0),(0,1)]'",
    "path": "'((0,0),(0,1),(0,2))'",
    "point": "'(1,1)'",
    "polygon": "'((0,0),(0,1),(1,0))'",
    "xml": "'<foo>bar</foo>'",
    "json": """'{"bar": "baz"}'""",
    "uuid": "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
}


def cases(major: int) -> tuple[Case, ...]:
    """The cases with the values of a major version."""
    return (
        _all_of(
            known(SCALARS, major),
            id="DBZ-types",
            about="every type: numbers, text, times, ranges, domains, composites",
        ),
        _all_of(known(ARRAYS, major), id="PG-002", about="arrays of every type; nulls, bounds, dimensions"),
        _all_of(_REJECTED_ELSEWHERE, id="ETL-reject", about="24:00:00, infinity, BC, far years; in arrays too"),
        Case(
            id="DBZ-notnull",
            about="30 columns that are never null; a delete has their key alone",
            setup=(
                "create table t (id int primary key,"
                f" {', '.join(f'c{n} {kind} not null' for n, kind in enumerate(_NOT_NULL))})",
            ),
            before=(f"insert into t select i, {', '.join(_NOT_NULL.values())} from generate_series(1, 3) i",),
            after=(
                "update t set c1 = 0 where id = 2",
                "delete from t where id = 1",
                "update t set id = 30 where id = 3",
            ),
            transactions=(("t c 1", "t c 2", "t c 3"), ("t u 2",), ("t d 1",), ("t d 3", "t c 30")),
        ),
        Case(
            id="DBZ-quoted",
            about="names with quotes, dots, spaces and other letters",
            tables=('Quoted_" . Table', "Ünïcode"),
            setup=(
                'create table "Quoted_"" . Table" ("Quoted_"" . Text" text, "key.1" int, "ключ" text,'
                ' primary key ("ключ", "key.1"))',
                'create table "Ünïcode" ("%s" int primary key, "{}" text)',
            ),
            before=(
                """insert into "Quoted_"" . Table" values ('one', 1, 'k"1'), ('two', 2, E'k\\\\2\\n')""",
                """insert into "Ünïcode" values (1, '%s')""",
            ),
            after=(
                """update "Quoted_"" . Table" set "Quoted_"" . Text" = 'ONE' where "key.1" = 1""",
                """update "Quoted_"" . Table" set "ключ" = '{"' where "key.1" = 2""",
                """update "Ünïcode" set "{}" = '{}', "%s" = 2""",
            ),
            expect={
                """select array_agg("ключ" order by "key.1") from "Quoted_"" . Table" """: (['k"1', '{"'],),
                """select "{}" from "Ünïcode" """: ("{}",),
            },
        ),
    )


def _all_of(kinds: Mapping[str, Sequence[str]], *, id: str, about: str) -> Case:  # noqa: A002  the name of the field
    """One table with a column of each type; row n holds the n-th value of every type that has so many.

    One more row has only nulls, and is deleted in the end, for every value is to be judged.
    """
    most = max(map(len, kinds.values()))
    rows = [
        f"insert into t values ({number}, 0, "
        f"{', '.join(values[number - 1] if number <= len(values) else 'null' for values in kinds.values())})"
        for number in range(1, most + 2)
    ]
    return Case(
        id=id,
        about=about,
        setup=(
            _EXTENSIONS,
            TYPES,
            f"create table t (id int primary key, n int, {', '.join(f'v{n} {kind}' for n, kind in enumerate(kinds))})",
            # An update leaves a value of a megabyte untouched.
            "alter table t replica identity full",
        ),
        before=tuple(rows[::2]),
        after=(
            *rows[1::2],
            "update t set n = 1 where id % 3 = 0",
            "update t set id = 1000 where id = 2",
            f"delete from t where id = {most + 1}",
        ),
    )
