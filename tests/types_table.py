"""The table of docs/types.md, made from the code that it describes: ``python -m tests.types_table`` writes it."""

from cdc.event_format.column_types import json_encoder
from cdc.model.table import Column
from sinks.opensearch.mapping import field_mapping
from sinks.warehouse.duckdb.values import stored_as
from sinks.warehouse.postgres.tables import column_type
from tests.docs.generated import DOCS, lines_between, write_between

PAGE = DOCS / "types.md"
_BEGIN, _END = "<!-- types: written by `python -m tests.types_table` -->", "<!-- /types -->"

# The catalogue's number for (10,2).
_DECIMAL = (10 << 16 | 2) + 4

# (declared type, the built-in type that its values have, PostgreSQL's text of a value)
_EXAMPLES = (
    ("bool", "bool", "t"),
    ("int2", "int2", "-7"),
    ("int4", "int4", "42"),
    ("int8", "int8", "9007199254740993"),
    ("oid", "oid", "4000000000"),
    ("float4", "float4", "3.3"),
    ("float8", "float8", "NaN"),
    ("numeric", "numeric", "1.10"),
    ("numeric(10,2)", "numeric", "1.10"),
    ("money", "money", "$1,234.11"),
    ("date", "date", "2016-11-04"),
    ("time", "time", "24:00:00"),
    ("timetz", "timetz", "13:51:30+02"),
    ("timestamp", "timestamp", "2016-11-04 13:51:30.123456"),
    ("timestamptz", "timestamptz", "0044-02-01 10:00:00+00 BC"),
    ("interval", "interval", "1 year 2 mons 3 days"),
    ("text", "text", 'a "b"'),
    ("varchar(10)", "varchar", "abc"),
    ("char(4)", "bpchar", "ab  "),
    ("uuid", "uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("bytea", "bytea", r"\x0102ff"),
    ("json", "json", '{"a":  1}'),
    ("jsonb", "jsonb", '{"a": 1}'),
    ("xml", "xml", "<a/>"),
    ("bit(3)", "bit", "101"),
    ("varbit", "varbit", "101"),
    ("inet", "inet", "192.168.2.0/12"),
    ("cidr", "cidr", "10.0.0.0/8"),
    ("macaddr", "macaddr", "08:00:2b:01:02:03"),
    ("int4range", "int4range", "[1,11)"),
    ("tstzrange", "tstzrange", '["2014-08-04 00:00:00+00",infinity)'),
    ("int4multirange", "int4multirange", "{[1,3),[5,7)}"),
    ("point", "point", "(1.5,-2)"),
    ("tsvector", "tsvector", "'a':1"),
    ("int4[]", "int4", "{{1,2},{3,NULL}}"),
    ("int4[] with bounds", "int4", "[0:1]={7,8}"),
    ("text[]", "text", '{a,NULL,"b,c"}'),
    ("an enum", "text", "calm"),
    ("a domain over int4", "int4", "5"),
    ("a composite", "text", "(5,,x)"),
    ("hstore, ltree, any other", "text", '"k"=>"v"'),
)


def rows() -> list[str]:
    lines = ["| type | example in the event | OpenSearch | warehouse | in DuckDB |", "| --- | --- | --- | --- | --- |"]
    for name, value_type, text in _EXAMPLES:
        is_array = "[]" in name
        declared = (
            name if value_type == "text" and name in ("text", "text[]") else "other" if value_type == "text" else name
        )
        column = Column("c", declared, value_type, is_array, 0, _DECIMAL if "(10,2)" in name else -1)
        event = json_encoder(value_type, is_array)(text.encode()).decode().replace("|", "\\|")
        mapping = field_mapping(column)
        index = str(mapping["type"])
        if "fields" in mapping:
            index += " and " + ", ".join(f"`.{sub}`" for sub in mapping["fields"])
        if mapping.get("index") is False:
            index += ", not indexed"
        lines.append(
            f"| {name} | `{event}` | {index} | {column_type(column)} | {stored_as(column, is_key=False).sql} |"
        )
    return lines


def in_page() -> list[str]:
    return lines_between(PAGE, _BEGIN, _END)


def main() -> None:
    write_between(PAGE, _BEGIN, _END, rows())


if __name__ == "__main__":
    main()
