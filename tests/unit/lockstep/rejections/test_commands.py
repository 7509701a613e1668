"""Which rejections a command means, and how they are shown."""

import io
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from cdc.model.errors import ConfigurationError
from cdc.model.event import Position
from cdc.model.table import TableName
from jobs.dead_letters.record import DeadLetter, UnreadableDeadLetter
from lockstep.cli.main import exit_code
from lockstep.rejections.commands import (
    Rejection,
    Selection,
    is_called,
    readable_age,
    rejections_json,
    rejections_table,
    selection_of,
    unreadable_text,
)

ORDERS = TableName("public", "orders")


def rejection(
    key: bytes = b'{"id":42}',
    *,
    reason: str = "no room for 3 bytes",
    generation: int = 1,
    partition: int = 2,
    offset: int = 17,
    table: TableName | None = ORDERS,
) -> Rejection:
    position = Position("shop.public.orders", partition, offset)
    return Rejection(DeadLetter("search", generation, position, key, "0" * 28, reason, 5_000, b"", 0), table)


@pytest.mark.parametrize(
    "text", ['{"id":42}', ' { "id" : 42 }', "42", "2:17", "public.orders:2:17", "shop.public.orders:2:17"]
)
def test_a_rejection_is_found_by_its_key_or_its_position(text: str) -> None:
    assert is_called(rejection(), text)


@pytest.mark.parametrize(
    "text", ['{"id":43}', '{"id":"42"}', '{"id":42,"n":1}', "43", "4", "2:18", "1:17", "public.x:2:17", "42:", ""]
)
def test_another_key_or_position_is_another_rejection(text: str) -> None:
    assert not is_called(rejection(), text)


def test_a_key_of_several_columns_is_told_as_json() -> None:
    two = rejection(b'{"account":1,"line":"a"}')
    assert is_called(two, '{"line":"a","account":1}')
    assert not is_called(two, "1")
    assert not is_called(two, "a")


def test_a_text_as_key_is_told_without_quotes_too() -> None:
    assert is_called(rejection(b'{"name":"a b"}'), "a b")
    assert is_called(rejection(b'{"name":"a b"}'), '"a b"')
    # It looks like a position, and is a key all the same.
    assert is_called(rejection(b'{"at":"12:30"}'), "12:30")


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
    assert selection.takes(rejection(), "shop") is is_taken


def test_a_table_that_is_captured_no_more_can_still_be_named() -> None:
    assert Selection(tables=("public.orders",)).takes(rejection(table=None), "shop")


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


def shown(found: Sequence[Rejection], now_ms: int) -> str:
    screen = Console(file=io.StringIO(), width=300)
    screen.print(rejections_table(found, now_ms))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_the_table_has_the_facts_and_the_counts() -> None:
    found = [
        rejection(),
        rejection(b'{"id":"[bold]x"}', reason="no room for 4 bytes"),
        rejection(generation=2, table=None, reason="old"),
    ]
    text = shown(found, 65_000)
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    assert ["search", "1", "public.orders", '{"id":42}', "0" * 28, "2:17", "no room for 3 bytes", "1 min"] in lines
    # Square brackets of a key aren't markup.
    assert any(line[3:4] == ['{"id":"[bold]x"}'] for line in lines)
    assert any(line[2:4] == ["shop.public.orders", '{"id":42}'] for line in lines)
    assert ["search", "1", "2", "no room for N bytes"] in lines
    assert ["search", "2", "1", "old"] in lines


def test_a_key_that_is_the_reason_itself_is_cut() -> None:
    text = shown([rejection(orjson.dumps({"id": "x" * 3000}))], 0)
    assert "x" * 40 in text
    assert "x" * 100 not in text.replace(" ", "")


def test_programs_get_the_same() -> None:
    found = [rejection(), rejection(b'{"id":43}', reason="no room for 4 bytes"), rejection(generation=2, table=None)]
    document = rejections_json(found, [UnreadableDeadLetter(b"k", 9, "search", "it lacks tag")])
    assert document["rejections"][0] == {
        "sink": "search",
        "generation": 1,
        "table": "public.orders",
        "topic": "shop.public.orders",
        "partition": 2,
        "offset": 17,
        "key": {"id": 42},
        "tag": "0" * 28,
        "reason": "no room for 3 bytes",
        "rejected_at_ms": 5_000,
    }
    assert document["rejections"][2]["table"] is None
    assert document["reasons"] == [
        {"sink": "search", "generation": 1, "reason": "no room for N bytes", "count": 2},
        {"sink": "search", "generation": 2, "reason": "no room for N bytes", "count": 1},
    ]
    assert document["unreadable"] == [{"sink": "search", "offset": 9, "why": "it lacks tag"}]


def test_letters_that_cant_be_read_are_told_with_the_way_out() -> None:
    text = unreadable_text(
        [UnreadableDeadLetter(b"k", 9, None, "it lacks tag"), UnreadableDeadLetter(b"l", 9, "search", "")]
    )
    assert "offset 9: it lacks tag" in text
    assert "lockstep rejections discard search --all" in text
    assert "discard" not in unreadable_text([UnreadableDeadLetter(b"k", 9, None, "it lacks tag")])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (59.4, "59 s"), (60, "1 min"), (3599, "59 min"), (3600, "1 h"), (86_400 * 2.5, "2 d")],
)
def test_an_age_has_one_unit(seconds: float, text: str) -> None:
    assert readable_age(seconds) == text


def test_without_a_terminal_nothing_is_discarded_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert exit_code(["rejections", "discard", "search", "--all", "--config", str(tmp_path / "none")]) == 2
    assert "--yes" in capsys.readouterr().err
