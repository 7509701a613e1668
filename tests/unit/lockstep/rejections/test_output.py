"""How rejections are shown."""

import io
from collections.abc import Sequence

import orjson
import pytest
from rich.console import Console

from cdc.model.table import TableName
from jobs.dead_letters.record import DeadLetter, UnreadableDeadLetter
from lockstep.rejections.output import (
    Tables,
    readable_age,
    rejection_json,
    rejections_json,
    rejections_table,
    unreadable_text,
)
from tests.dead_letters import rejected

TABLES = {"shop.public.orders": TableName("public", "orders")}


def shown(dead_letters: Sequence[DeadLetter], tables: Tables, now_ms: int, width: int = 300) -> str:
    screen = Console(file=io.StringIO(), width=width)
    screen.print(rejections_table(dead_letters, tables, now_ms))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_the_table_has_the_facts_and_the_counts() -> None:
    rejections = [
        rejected(),
        rejected(b'{"id":"[bold]x"}', reason="no room for 4 bytes"),
        rejected(generation=2, reason="old"),
    ]
    text = shown(rejections, TABLES, 65_000)
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    paragraph = ['search, generation 1: public.orders {"id":42} at 2:17, 1 min ago', "    tag: " + "0" * 28]
    assert "\n".join([*paragraph, "    reason: no room for 3 bytes"]) in text
    # Square brackets of a key aren't markup.
    assert '{"id":"[bold]x"}' in text
    assert ["search", "1", "2", "no room for N bytes"] in lines
    assert ["search", "2", "1", "old"] in lines


def test_of_a_table_that_is_not_captured_the_topic_is_shown() -> None:
    assert " shop.public.orders {" in shown([rejected()], {}, 0)
    assert rejection_json(rejected(), {})["table"] is None


def test_a_key_that_is_the_reason_itself_is_cut() -> None:
    text = shown([rejected(orjson.dumps({"id": "x" * 3000}))], TABLES, 0)
    assert "x" * 40 in text
    assert "x" * 100 not in text.replace(" ", "")


def test_programs_get_the_same() -> None:
    rejections = [rejected(), rejected(b'{"id":43}', reason="no room for 4 bytes"), rejected(generation=2)]
    document = rejections_json(rejections, [UnreadableDeadLetter(b"k", 9, "search", "it lacks tag")], TABLES)
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
    assert document["reasons"] == [
        {"sink": "search", "generation": 1, "reason": "no room for N bytes", "count": 2},
        {"sink": "search", "generation": 2, "reason": "no room for N bytes", "count": 1},
    ]
    assert document["unreadable"] == [{"sink": "search", "offset": 9, "why": "it lacks tag"}]


def test_dead_letters_that_cant_be_read_are_reported_with_the_way_out() -> None:
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
