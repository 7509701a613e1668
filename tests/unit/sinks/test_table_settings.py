"""sinks.table_settings"""

from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from cdc.model.errors import LockstepError
from cdc.model.table import TableName
from sinks.registry import SinkSettings
from sinks.table_settings import TableSettings
from sinks.wrappers.masks import Truncation

ORDERS = TableName("public", "orders")
WAREHOUSE = {"type": "warehouse", "url": "postgresql://w"}


def test_settings_become_what_a_sink_sees() -> None:
    settings = TableSettings.model_validate(
        {
            "exclude": ["public.orders.a"],
            "rename": {"public.orders.b": "bee"},
            "mask": {"public.orders.c": "drop", "public.orders.d": {"truncate": 3}},
            "computed": {"public.orders.e": {"sql": "b + 1", "type": "int8"}},
            "where": {"public.orders": "b > 1", "public.items": "true"},
        }
    )
    projection = settings.projection()
    assert projection.excluded == {ORDERS: {"a", "c"}}
    assert projection.masks == {ORDERS: {"d": Truncation(truncate=3)}}
    assert [(held.name, held.value_type) for held in projection.computed[ORDERS]] == [("e", "int8")]
    assert projection.evaluated == {ORDERS, TableName("public", "items")}
    assert settings.renaming().names == {ORDERS: {"b": "bee"}}
    expressions = settings.expressions()
    assert (expressions[ORDERS].where, expressions[ORDERS].columns["e"].sql) == ("b > 1", "b + 1")
    assert expressions[TableName("public", "items")].columns == {}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"rename": {"orders.b": "x"}}, "not a column: 'orders.b'"),
        ({"rename": {"public.orders.b": "x", "public.orders.c": "x"}}, "would both have the name 'x'"),
        ({"rename": {"public.orders.b": ""}}, "no name is given"),
        ({"mask": {"public.orders.b": "hash"}}, "a hash needs a salt"),
        ({"mask": {"public.orders.b": {"truncate": -1}}}, "greater than or equal to 0"),
        ({"mask": {"public.orders.b": "blur"}}, "'drop' or 'hash'"),
        (
            {"exclude": ["public.orders.b"], "rename": {"public.orders.b": "x"}},
            r"rename: public\.orders\.b is left out",
        ),
        (
            {"mask": {"public.orders.b": "drop"}, "computed": {"public.orders.b": {"sql": "1"}}},
            "computed: .* is left out",
        ),
        ({"computed": {"public.orders.b": {"sql": ""}}}, "at least 1 character"),
        ({"computed": {"public.orders.b": {"sql": "1", "type": "point"}}}, "Input should be 'bool'"),
        ({"where": {"orders": "true"}}, "not a table name"),
        ({"where": {"public.orders": " "}}, "no condition is given for public.orders"),
        ({"mask_salt": "a", "mask_salt_file": "b"}, "exclude each other"),
        ({"type": "redis", "schema_changes": "follow"}, 'has no "follow"'),
    ],
)
def test_what_does_not_fit_is_reported(values: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        TableSettings.model_validate(values)


def test_the_salt_is_read_from_its_file(tmp_path: Path) -> None:
    def settings(text: str) -> TableSettings:
        path = tmp_path / "salt"
        path.write_text(text)
        return TableSettings.model_validate({"mask": {"public.orders.b": "hash"}, "mask_salt_file": str(path)})

    salt = settings("abc\n").salt()
    assert salt is not None
    assert salt.secret == b"abc"
    with pytest.raises(LockstepError, match="is empty"):
        settings("\n").salt()
    (tmp_path / "salt").unlink()
    with pytest.raises(LockstepError, match="can't be read"):
        TableSettings.model_validate(
            {"mask": {"public.orders.b": "hash"}, "mask_salt_file": str(tmp_path / "salt")}
        ).salt()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"type": "redis"}, "one by one"),
        ({"type": "opensearch"}, "no transaction over several documents"),
        ({"type": "delta", "root": "/nowhere/lake"}, "commits of its own"),
        ({"type": "warehouse", "url": "duckdb:////nowhere/w.duckdb"}, "a DuckDB file"),
        ({**WAREHOUSE, "history": True}, "not with history"),
        ({**WAREHOUSE, "view": {"name": "open", "sql": "select 1", "key": ["id"]}}, "a view has no such setting"),
    ],
)
def test_a_sink_that_cannot_be_consistent_says_why(settings: dict[str, object], reason: str) -> None:
    adapter: TypeAdapter[SinkSettings] = TypeAdapter(SinkSettings)
    with pytest.raises(ValidationError, match=f"consistent: .*{reason}"):
        adapter.validate_python({**settings, "consistent": True})
    assert not adapter.validate_python(settings).consistent
    assert adapter.validate_python({**WAREHOUSE, "consistent": True}).consistent
