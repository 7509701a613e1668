"""Values of every type that PostgreSQL has, as SQL, and how to return an event's form of a value to PostgreSQL."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Since(NamedTuple):
    """A value that servers before a major version don't know."""

    major: int
    sql: str


EXTENSIONS = ("hstore", "citext", "ltree", "isn", "cube")

TYPES = """
create type mood as enum ('calm', 'a "quoted" one', 'with, comma', '');
create domain positive as int check (value > 0);
create domain small_positive as positive check (value < 10);
create domain price as numeric(12,2);
create domain name_of_mood as mood;
create domain int_list as int[];
create domain moment as timestamptz;
create domain big_box as box;
create type pair as (a int, b text, c timestamptz);
create type nested as (p pair, list int[], m mood);
create type float_range as range (subtype = float8, subtype_diff = float8mi);
create type colons;
create function colons_in(cstring) returns colons language internal immutable strict as 'textin';
create function colons_out(colons) returns cstring language internal immutable strict as 'textout';
create type colons (input = colons_in, output = colons_out, like = text, delimiter = ':');
"""

_TEXTS = (
    "''",
    "'plain'",
    r"'\N'",
    r"'value\Ntail'",
    r"'\.'",
    "'NULL'",
    "E'tab\\t newline\\n return\\r backspace\\b feed\\f vertical\\v bell\\x07 escape\\x1b delete\\x7f'",
    """E'quote " apostrophe '' backslash \\\\ slash / braces {} comma ,'""",
    "E'\\u00e9 \\u20ac \\U0001F600 \\u2028 \\u2029 \\ufeff \\uffff'",
    "' blanks '",
)

# Type -> SQL of its values. Users add NULL.
SCALARS: dict[str, tuple[str | Since, ...]] = {
    "boolean": ("true", "false"),
    "smallint": ("-32768", "32767"),
    "int": ("-2147483648", "123456"),
    "bigint": ("-9223372036854775808", "9223372036854775807", "9007199254740993"),
    "real": ("3.3", "'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "1e-45", "3.4028235e38", "1e15", "16777216"),
    "double precision": (
        "4.44", "0.1::float8 + 0.2::float8", "'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "5e-324",
        "1.7976931348623157e308", "1e20", "123456789012345680",
    ),
    "numeric": (
        "22.2222", "1.10", "'NaN'", "'Infinity'", "'-Infinity'", "1e-200", "-1e200", "0.000", "'1e-16383'",
        "'1e131071'",
        "123456789012345678901234567890.123456789",
    ),
    "numeric(3,2)": ("1.1", "'NaN'"),
    "numeric(4)": ("10.11",),
    "numeric(2,-3)": (Since(15, "12345"),),
    "money": ("1234.11", "-1234.11", "'-92233720368547758.08'"),
    "oid": ("4000000000",),
    "date": ("'2016-11-04'", "'infinity'", "'-infinity'", "'0044-03-15 BC'", "'4713-01-01 BC'", "'5874897-12-31'"),
    "time": ("'13:51:30'", "'13:51:30.123'", "'24:00:00'", "'00:00:00'", "'23:59:59.999999'"),
    "time(3)": ("'13:51:30.1239'",),
    "timetz": ("'13:51:30.123789+02:00'", "'24:00:00+15:59'", "'00:00-15:59:59'"),
    "timestamp": (
        "'2016-11-04T13:51:30.123456'", "'1936-10-25 22:10:12.608'", "'21016-11-04 13:51:30'",
        "'294276-12-31 23:59:59.999999'", "'4713-12-31 23:59:59.999999 BC'", "'4713-01-01 00:00:00 BC'", "'infinity'",
        "'-infinity'",
    ),
    "timestamp(0)": ("'2016-11-04T13:51:30.6'",),
    "timestamptz": (
        "'2016-11-04T13:51:30.123456+02:00'", "'21016-11-04T13:51:30.000000+07:00'",
        "'294276-12-31 23:59:59.999999+00'",
        "'0044-02-01 12:00:00+02 BC'", "'4714-12-31 23:59:59.999999+00 BC'", "'infinity'", "'-infinity'",
        "'1883-11-18 12:03:57+00'",
    ),
    "interval": (
        "'P1Y2M3DT4H5M6.78S'", "'-1 year +2 days -03:04:05.000006'", "'0'", "'178000000 years'", "'1 day 02:03:04'",
        Since(17, "'infinity'"), Since(17, "'-infinity'"),
    ),
    "bit(1)": ("'0'", "'1'"),
    "bit(7)": ("'1000000'",),
    "bit varying": ("''", "'101'", "('1' || repeat('0', 63))::varbit"),
    "bit varying(24)": ("'000000110000001000000001'",),
    "bytea": (r"'\x'", r"'\x0102ff'", r"'\x5c5c4e0a09'", "decode(repeat('00ff', 5000), 'hex')"),
    "text": (*_TEXTS, "repeat('x', 1024 * 1024)", "repeat(E'\\U0001F600\\\\\"', 100000)"),
    "varchar(20)": ("'some text'",),
    "char(4)": ("'ab'", "'cdef'", "'    '"),
    '"char"': ("'x'", "''", r"'\N'", r"'\377'", "' '"),
    "name": ("'a name'", "repeat('n', 63)"),
    "citext": ("'Hello World'",),
    "json": ("""'{"bar": "baz",  "a": [1, null]}'""", """E'{"a": "\\\\u0000 \\\\\\\\ \\\\n"}'""", "'null'", "'1.10'"),
    "jsonb": (
        """'{"b": {"a": ["x\\"y", "\\\\", "\\u00e9", {}]}, "a": 1.10}'""", "'null'", "'1e400'", """'"\\t\\u0001"'""",
    ),
    "jsonpath": ("'$.a[*] ? (@ > 1)'",),
    "xml": ("'<foo>bar &amp; \"x\"</foo>'", "'<a/><b/>'", "'text'"),
    "uuid": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",),
    "inet": ("'192.168.2.0/12'", "'192.168.2.1'", "'2001:db8::1/64'"),
    "cidr": ("'192.168.100.128/25'", "'::/0'"),
    "macaddr": ("'08:00:2b:01:02:03'",),
    "macaddr8": ("'08:00:2b:01:02:03:04:05'",),
    "point": ("'(1.5,-2)'", "'(NaN,Infinity)'"),
    "line": ("'{1,-1,0}'",),
    "lseg": ("'[(0,0),(1,1)]'",),
    "box": ("'(2,2),(0,0)'",),
    "path": ("'((0,0),(1,1))'", "'[(0,0),(1,1)]'"),
    "polygon": ("'((0,0),(1,1),(2,0))'",),
    "circle": ("'<(0,0),1.5>'",),
    "int4range": ("'[1,10]'", "'empty'", "'(,)'", "'[1000,6000)'"),
    "int8range": ("'[11,9999999]'",),
    "numrange": ("'[5.3,6.3)'", "'(5.30,]'"),
    "daterange": ("'[2019-03-31,infinity)'", "'[2019-03-31,]'"),
    "tsrange": ("'[2019-03-31 15:30:00, infinity)'",),
    "tstzrange": ("'[2017-06-05 11:29:12.549426+00,)'", "tstzrange('2014-08-04 00:00+02', 'infinity')"),
    "float_range": ("'[-0,NaN)'",),
    "nummultirange": ("'{[1,2),[3.5,7]}'", "'{}'"),
    "datemultirange": ("'{[2019-03-31,2019-04-01],(2020-01-01,)}'",),
    "tsvector": ("""to_tsvector('simple', 'fat cats ''quoted'' back\\slash')""", "'''a b'':1A,2'"),
    "tsquery": ("'fat <-> cat'", "'!(a | b:*)'"),
    "pg_lsn": ("'16/B374D848'",),
    "xid8": ("'18446744073709551615'",),
    "xid": ("'4294967295'",),
    "tid": ("'(1,2)'",),
    "pg_snapshot": ("'10:20:10,14'",),
    "int2vector": ("'1 2 3'", "''"),
    "oidvector": ("'4 5 4000000000'",),
    "regclass": ("'pg_class'",),
    "regtype": ("'int4'",),
    "hstore": ('\'"key" => "val", "k#1" => NULL, "a ""b" => "c\\\\d"\'' .replace('""', '\\"'), "''"),
    "ltree": ("'Top.Collections.Pictures.Astronomy.Galaxies'",),
    "isbn": ("'978-0-393-04002-9'",),
    "cube": ("'(1,2),(3,4)'",),
    "mood": ("'calm'", """'a "quoted" one'""", "'with, comma'", "''"),
    "positive": ("5",),
    "small_positive": ("5",),
    "price": ("1.5",),
    "name_of_mood": ("'with, comma'",),
    "moment": ("'2016-11-04T13:51:30.123456+02:00'",),
    "int_list": ("'{1,NULL}'", "'{}'", "'{{1},{2}}'"),
    "pair": ("row(null, null, null)", """row(5, 'a "b", (c) \\', '2016-11-04 13:51+02')""", "row(1, '', null)"),
    "nested": ("""row(row(1, 'x,"y"', null), '{1,NULL}', 'with, comma')""", "row(null, '{}', '')"),
    "colons": ("'a:b'",),
}  # fmt: skip

ARRAYS: dict[str, tuple[str | Since, ...]] = {
    "boolean[]": ("'{t,f,NULL}'",),
    "smallint[]": ("'{1,NULL}'",),
    "int[]": ("'{5,NULL,3}'", "'{}'", "'[0:1]={7,8}'", "'{{1,2},{3,NULL}}'", "'[2:2][-1:0]={{1,2}}'",
        "'{{{1}},{{2}}}'"),
    "bigint[]": ("'{9223372036854775807,-9223372036854775808}'",),
    "oid[]": ("'{3,4000000000}'",),
    "real[]": ("'{3.3,NaN,-0,Infinity,1e-45}'",),
    "double precision[]": ("'{-0,NaN,-Infinity,1e20,5e-324}'",),
    "numeric[]": ("'{1.10,NaN,1e-20,NULL}'",),
    "numeric(5,2)[]": ("'{1.1,2}'",),
    "money[]": ("'{1234.11,-5}'",),
    "text[]": (
        r"""'{"a\"b","c\\d","{e}","f,g",NULL,"NULL",null,""," x ","y z"}'""",
        "array[E'tab\\t', E'new\\nline', E'\\U0001F600', '\\N', E'\\x01']",
        """'{{"a,b","c"},{"{","}"}}'""",
    ),
    "varchar(5)[]": ("'{abc,NULL}'",),
    "char(3)[]": ("'{a,bcd}'",),
    '"char"[]': ("array['x', '', ' ', ',']::\"char\"[]",),
    "name[]": ("'{a,\"b c\"}'",),
    "citext[]": ("'{Hello,\"World \"}'",),
    "bytea[]": (r"array['\x0102ff', '\x']::bytea[]",),
    "date[]": ("'{2016-11-04,infinity,\"0044-03-15 BC\"}'",),
    "time[]": ("'{24:00:00}'",),
    "timetz[]": ("'{13:51:30+02}'",),
    "timestamp[]": ("array['2016-11-04 13:51:30', 'infinity', '0044-02-01 10:00 BC', '21016-11-04']::timestamp[]",),
    "timestamptz[]": ("array['2016-11-04 13:51:30+02', '-infinity', '0044-02-01 10:00+00 BC']::timestamptz[]",),
    "interval[]": ("array['1 day 02:03:04', '-1 mons']::interval[]",),
    "bit(2)[]": ("'{01,10}'",),
    "varbit[]": ("array['', '101']::varbit[]",),
    "uuid[]": ("'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'",),
    "json[]": ("""array['{"a": "b,c"}', '[1]', 'null']::json[]""",),
    "jsonb[]": ("""array['{"a": {"b": "\\"}"}}', '"x"']::jsonb[]""",),
    "xml[]": ("array['<a b=\"c\"/>']::xml[]",),
    "inet[]": ("'{192.168.2.0/12}'",),
    "cidr[]": ("'{10.0.0.0/8}'",),
    "macaddr[]": ("'{08:00:2b:01:02:03}'",),
    "point[]": ("array['(1,2)', '(3,4)']::point[]",),
    "box[]": ("array['(2,2),(0,0)', null, '(1,1),(0,0)']::box[]",),
    "big_box[]": ("array['(2,2),(0,0)', '(1,1),(0,0)']::big_box[]",),
    "int4range[]": ("array['[1,10]', 'empty']::int4range[]",),
    "tstzrange[]": ("array[tstzrange('2014-08-04 00:00+02', 'infinity')]",),
    "nummultirange[]": ("array['{[1,2),[3,4]}']::nummultirange[]",),
    "tsvector[]": ("array['''a b'':1A']::tsvector[]",),
    "hstore[]": ("""array['"a"=>"b,\\"c"']::hstore[]""",),
    "mood[]": ("""array['calm', 'a "quoted" one', 'with, comma', '', null]::mood[]""",),
    "positive[]": ("'{1,NULL,3}'",),
    "small_positive[]": ("'{1,2}'",),
    "moment[]": ("'{2016-11-04 13:51:30+02}'",),
    "int_list[]": ("array['{1,2}', '{3,NULL}']::int_list[]",),
    "pair[]": ("""array[row(5, 'a "b", c', null), row(null, '', null)]::pair[]""",),
    "nested[]": ("""array[row(row(1, 'x,"y"', null), '{1,NULL}', '')]::nested[]""",),
    "int2vector[]": ("array['1 2', '3']::int2vector[]",),
    "colons[]": ("array['a,b', 'c:d', 'e']::colons[]",),
}  # fmt: skip


def known(values: Mapping[str, tuple[str | Since, ...]], major: int) -> dict[str, tuple[str, ...]]:
    """The types and values that a major version knows."""
    values_by_kind = {
        kind: tuple(
            value if isinstance(value, str) else value.sql
            for value in of_kind
            if isinstance(value, str) or value.major <= major
        )
        for kind, of_kind in values.items()
    }
    return {kind: of_kind for kind, of_kind in values_by_kind.items() if of_kind}


def literal(value: Any, delimiter: str) -> str | None:
    """A parsed JSON value, numbers as their text, -> PostgreSQL's input."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, list):
        return "{" + delimiter.join(_element(item, delimiter) for item in value) + "}"
    assert isinstance(value, str)
    return value


def _element(item: Any, delimiter: str) -> str:
    text = literal(item, delimiter)
    if text is None or isinstance(item, list):
        return text or "NULL"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
