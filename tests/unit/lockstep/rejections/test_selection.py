"""Which rejections a command means."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cdc.model.errors import ConfigurationError
from cdc.model.event import Position
from lockstep.rejections.selection import Selection, is_named, selection_of
from tests.dead_letters import rejected


@pytest.mark.parametrize(
    "text", ['{"id":42}', ' { "id" : 42 }', "42", "2:17", "public.orders:2:17", "shop.public.orders:2:17"]
)
def test_a_rejection_is_found_by_its_key_or_its_position(text: str) -> None:
    assert is_named(rejected(), text, "shop")


@pytest.mark.parametrize(
    "text",
    [
        '{"id":43}',
        '{"id":"42"}',
        '{"id":42,"n":1}',
        "43",
        "4",
        "2:18",
        "1:17",
        "public.x:2:17",
        "42:",
        "",
        f"{'9' * 5000}:1",
    ],
)
def test_another_key_or_position_is_another_rejected(text: str) -> None:
    assert not is_named(rejected(), text, "shop")


def test_a_key_of_several_columns_is_told_as_json() -> None:
    two = rejected(b'{"account":1,"line":"a"}')
    assert is_named(two, '{"line":"a","account":1}', "shop")
    assert not is_named(two, "1", "shop")
    assert not is_named(two, "a", "shop")


def test_a_row_of_a_view_has_no_position_that_names_it() -> None:
    of_view = replace(rejected(), sink="timeline", position=Position("shop.views.timeline", 0, 0))
    assert not is_named(of_view, "0:0", "shop")
    assert is_named(of_view, '{"id":42}', "shop")


@pytest.mark.parametrize(
    ("selection", "is_taken"),
    [
        (Selection(), True),
        (Selection(tables=("public.x", "public.orders")), True),
        (Selection(tables=("public.x",)), False),
        (Selection(generation=1), True),
        (Selection(generation=2), False),
        (Selection(keys=("1", "42")), True),
        (Selection(keys=("1",)), False),
        (Selection(reason="NO ROOM"), True),
        (Selection(reason="for N bytes"), True),
        (Selection(reason="too old"), False),
        (Selection(tables=("public.orders",), generation=1, keys=("42",), reason="other"), False),
    ],
)
def test_a_selection_takes_what_fits_all_of_it(selection: Selection, is_taken: bool) -> None:
    assert selection.takes(rejected(), "shop") is is_taken


@pytest.mark.parametrize("selection", [Selection(tables=("orders",)), Selection(keys=('{"id":',))])
def test_what_can_be_no_table_and_no_key_is_refused(selection: Selection) -> None:
    with pytest.raises(ConfigurationError):
        selection.check()


def selected(*, everything: bool = False, keys: Sequence[str] = (), reason: str | None = None) -> Selection:
    return selection_of(tables=None, generation=None, keys=keys, reason=reason, everything=everything)


def test_a_command_that_changes_something_is_told_what() -> None:
    with pytest.raises(ConfigurationError):
        selected()
    with pytest.raises(ConfigurationError):
        selected(everything=True, reason="x")
    with pytest.raises(ConfigurationError):
        selected(everything=True, keys=["1"])
    assert selected(everything=True).is_unlimited
    assert not selected(keys=["1"]).is_unlimited
    assert not selected(reason="").is_unlimited
