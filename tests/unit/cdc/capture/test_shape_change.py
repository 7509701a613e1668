"""A Relation message against the recorded shape: what it is now, and what rows from before don't show."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from cdc.capture.shape_change import AddedValue, changed_shape
from cdc.model.errors import UnsupportedChange
from cdc.model.table import Column, Table
from cdc.protocol.control_records import ShapeChange
from cdc.protocol.pgoutput import Relation, RelationColumn
from tests import wal
from tests.builders import column, table

OID = wal.RELATION_ID


def numbered(*columns: Column, start: int = 1, **parts: Any) -> Table:
    """A table as the catalogue has it: with numbers and an oid."""
    return replace(
        table(*(replace(column, number=start + index) for index, column in enumerate(columns)), **parts), oid=OID
    )


BEFORE = numbered(column("id", "int8"), column("a"), column("b", "int4"))
ID, A, B = BEFORE.columns


def changed(
    now: Table,
    *,
    before: Table = BEFORE,
    current: Table | None = None,
    described: Relation | None = None,
    key: tuple[str, ...] | None = None,
    added: bytes | None = b"null",
    names_before: tuple[str, ...] = (),
) -> tuple[Table, ShapeChange]:
    """The change from ``before`` to what is described as ``now``, in a catalogue that has ``current``."""
    return changed_shape(
        before,
        described or wal.relation(now, now.oid),
        current=current or now,
        configured_key=key,
        resolve=lambda column: now.column(column.name),
        added_value=lambda _: AddedValue(added),
        parse=orjson.loads,
        names_before=names_before,
    )


def with_columns(*columns: Column, **parts: Any) -> Table:
    return replace(BEFORE, columns=columns, **parts)


def test_what_older_rows_have_in_an_added_column_is_recorded_and_a_value_per_row_means_a_rewrite() -> None:
    now = with_columns(ID, A, B, replace(column("c"), number=4))
    assert changed(now) == (now, ShapeChange())
    assert changed(now, added=b'"x"')[1] == ShapeChange(defaults={"c": "x"})
    assert "'c' was added with a value of its own" in changed(now, added=None)[1].rewritten


def test_a_name_of_before_a_recovery_means_a_copy_also_by_a_rename() -> None:
    """Sinks may have kept that column, with null in the rows that were copied without it."""
    now = with_columns(ID, A, B, replace(column("c"), number=4))
    told = changed(now, added=b'"x"', names_before=("a", "c"))[1]
    assert (told.rewritten, told.defaults) == ("a column 'c' was there before a recovery", {})
    renamed = with_columns(ID, A, replace(B, name="c"))
    assert changed(renamed, names_before=("c",))[1].rewritten == told.rewritten
    assert changed(BEFORE, names_before=("a", "b"))[1] == ShapeChange()


def test_a_renamed_column_is_known_by_its_number_and_one_that_was_added_again_is_another() -> None:
    assert changed(with_columns(ID, replace(A, name="z"), B))[1] == ShapeChange(renamed={"z": "a"})
    again = with_columns(ID, B, replace(A, number=4))
    assert changed(again, added=b'"new"')[1] == ShapeChange(rewritten="column 'a' was dropped and added again")


def test_two_names_that_moved_on_while_nobody_read_are_told_apart() -> None:
    """``a`` has become another name, and ``b`` is ``a``; the stream is still before that, or in the middle of it."""
    b = replace(A, name="b", number=3)
    before = with_columns(ID, A, b)
    middle = with_columns(ID, replace(A, name="a_old"), b)
    current = with_columns(ID, replace(A, name="a_old"), replace(b, name="a"))
    assert changed(before, before=before, current=current) == (before, ShapeChange())
    assert changed(middle, before=before, current=current) == (middle, ShapeChange(renamed={"a_old": "a"}))
    assert changed(current, before=middle) == (current, ShapeChange(renamed={"a": "b"}))
    assert changed(current, before=before) == (current, ShapeChange(renamed={"a_old": "a", "a": "b"}))


def test_a_column_of_which_the_catalogue_knows_nothing_means_a_rewrite() -> None:
    now = with_columns(ID, A, B, replace(column("c"), number=0))
    assert "'c' was added, and may have been dropped since" in changed(now, current=BEFORE)[1].rewritten


def test_without_numbers_names_decide() -> None:
    unknown = with_columns(*(replace(column, number=0) for column in BEFORE.columns))
    now = with_columns(ID, replace(A, name="z"), B)
    assert changed(now, before=unknown)[1].renamed == {}


@pytest.mark.parametrize(
    ("old", "new", "rewritten"),
    [
        (column("b", "varchar", type_modifier=14), column("b", "varchar", type_modifier=24), False),
        (column("b", "varchar", type_modifier=24), column("b", "varchar", type_modifier=14), True),
        (column("b", "varchar", type_modifier=14), column("b", "text"), False),
        (column("b", "text"), column("b", "varchar", type_modifier=14), True),
        (column("b", "numeric", type_modifier=(10 << 16 | 2) + 4),
         column("b", "numeric", type_modifier=(12 << 16 | 2) + 4), False),
        (column("b", "numeric", type_modifier=(10 << 16 | 2) + 4),
         column("b", "numeric", type_modifier=(12 << 16 | 1) + 4), True),
        (column("b", "numeric", type_modifier=(10 << 16 | 2) + 4), column("b", "numeric"), False),
        (column("b", "numeric"), column("b", "numeric", type_modifier=(12 << 16 | 1) + 4), True),
        (column("b", "int4"), column("b", "int8"), True),
        (column("b", "int4"), column("b", "int4", is_array=True, type_name="int4"), True),
    ],
    ids=lambda value: f"{value.type_name}{value.type_modifier}" if isinstance(value, Column) else None,
)  # fmt: skip
def test_another_type_means_a_rewrite_unless_every_text_stays(old: Column, new: Column, rewritten: bool) -> None:
    before = with_columns(ID, A, replace(old, number=3))
    now = with_columns(ID, A, replace(new, number=3))
    assert bool(changed(now, before=before)[1].rewritten) == rewritten


def test_another_key_means_a_rewrite_and_is_told_by_the_stream_or_under_full_identity_by_the_catalogue() -> None:
    assert changed(replace(BEFORE, key=("b",)))[1].rewritten == "its key is another one"
    ahead = replace(BEFORE, key=("b",))
    assert changed(BEFORE, current=ahead) == (BEFORE, ShapeChange())
    full = replace(BEFORE, replica_identity=type(BEFORE.replica_identity)("f"))
    assert changed(full, current=replace(full, key=("b",)))[0].key == ("b",)
    assert changed(BEFORE, before=ahead, key=("b",))[0].key == ("b",), "a configured one stays"


def test_a_configured_key_without_its_column_stops_the_run() -> None:
    with pytest.raises(UnsupportedChange, match="lost b of its configured key"):
        changed(with_columns(ID, A), before=replace(BEFORE, key=("b",)), key=("b",))


def test_a_table_without_any_key_stops_the_run() -> None:
    bare = (RelationColumn("a", 25, -1, in_identity=False),)
    described = Relation(OID, "public", "orders", BEFORE.replica_identity, bare)
    full = replace(BEFORE, replica_identity=type(BEFORE.replica_identity)("f"))
    for now, how in ((with_columns(A), described), (full, None)):
        with pytest.raises(UnsupportedChange, match="no primary key any more"):
            changed(now, described=how, current=replace(now, key=()))


@pytest.mark.parametrize("identity", "fd")
def test_a_key_that_an_append_only_table_gets_is_none_of_its_events(identity: str) -> None:
    """They have one key, so that they stay in order."""
    keyed = replace(BEFORE, replica_identity=type(BEFORE.replica_identity)(identity))
    assert changed(keyed, before=replace(keyed, key=()), current=keyed)[0].key == ()


def test_a_table_that_was_recreated_means_a_rewrite() -> None:
    now = replace(BEFORE, oid=OID + 1)
    assert changed(now)[1].rewritten == "it was dropped and made again"
