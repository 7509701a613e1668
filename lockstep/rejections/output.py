"""How ``lockstep rejections`` shows rejections, to people and to programs: keys, no other values of a row. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cdc.model.printable import visible
from cdc.model.table import TableName
from jobs.dead_letters.limit import count_kinds
from jobs.dead_letters.record import DeadLetter, UnreadableDeadLetter

_KEY_CHARACTERS_SHOWN: Final = 60
_AGES: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))

Tables = Mapping[str, TableName]
"""Topic -> the captured table whose events it has."""


def rejection_json(dead_letter: DeadLetter, tables: Tables) -> dict[str, Any]:
    """One rejection, for programs. ``table`` is None if its topic belongs to no captured table."""
    table = tables.get(dead_letter.position.topic)
    return {
        "sink": dead_letter.sink,
        "generation": dead_letter.generation,
        "table": None if table is None else str(table),
        "topic": dead_letter.position.topic,
        "partition": dead_letter.position.partition,
        "offset": dead_letter.position.offset,
        "key": orjson.loads(dead_letter.key),
        "tag": dead_letter.tag,
        "reason": dead_letter.reason,
        "rejected_at_ms": dead_letter.rejected_at_ms,
    }


def rejections_json(
    dead_letters: Sequence[DeadLetter], unreadable: Sequence[UnreadableDeadLetter], tables: Tables
) -> dict[str, Any]:
    return {
        "rejections": [rejection_json(dead_letter, tables) for dead_letter in dead_letters],
        "reasons": [
            {"sink": sink, "generation": generation, "reason": kind, "count": count}
            for (sink, generation), reasons in _reasons_by_generation(dead_letters).items()
            for kind, count in count_kinds(reasons)
        ],
        "unreadable": [
            {"sink": record.sink, "offset": record.record_offset, "why": record.why} for record in unreadable
        ],
    }


def rejections_table(dead_letters: Sequence[DeadLetter], tables: Tables, now_ms: int) -> Group:
    """For people: a paragraph for each, then how many there are of each kind."""
    paragraphs: list[RenderableType] = []
    for dead_letter in dead_letters:
        age = readable_age((now_ms - dead_letter.rejected_at_ms) / 1000)
        paragraphs += [
            Text(
                f"{dead_letter.sink}, generation {dead_letter.generation}: {table_text(dead_letter, tables)}"
                f" {key_text(dead_letter)} at {position_text(dead_letter)}, {age} ago"
            ),
            _indented(f"tag: {dead_letter.tag}"),
            _indented(f"reason: {dead_letter.reason}"),
        ]
    counts = Table()
    for heading in ("sink", "generation", "count", "reason"):
        counts.add_column(heading, overflow="fold", no_wrap=heading in ("generation", "count"))
    for (sink, generation), reasons in _reasons_by_generation(dead_letters).items():
        for kind, count in count_kinds(reasons):
            counts.add_row(*_plain(sink, generation, f"{count:,}", kind))
    return Group(*paragraphs, "", counts)


def _indented(text: str) -> Padding:
    return Padding(Text(text), (0, 0, 0, 4), expand=False)


def unreadable_text(unreadable: Sequence[UnreadableDeadLetter]) -> str:
    """A sentence about dead letters that this version can't read, with the way out."""
    sinks = sorted({record.sink for record in unreadable if record.sink is not None})
    first = unreadable[0]
    text = (
        f"{counted(len(unreadable), 'record')} of the dead-letter topic can't be read"
        f" (offset {first.record_offset}: {first.why}): another version of Lockstep wrote them, or another program"
    )
    if sinks:
        text += f"; `lockstep rejections discard {sinks[0]} --all` removes those of sink {sinks[0]}"
    return text


def table_text(dead_letter: DeadLetter, tables: Tables) -> str:
    """The table's name, or the topic's if it belongs to no captured table."""
    topic = dead_letter.position.topic
    return str(tables.get(topic, topic))


def position_text(dead_letter: DeadLetter) -> str:
    """``partition:offset`` of the event."""
    return f"{dead_letter.position.partition}:{dead_letter.position.offset}"


def key_text(dead_letter: DeadLetter) -> str:
    """The row's key for a table's cell, cut if it is long. Some keys are so long that they are the very reason."""
    key = dead_letter.key.decode()
    return key if len(key) <= _KEY_CHARACTERS_SHOWN else f"{key[:_KEY_CHARACTERS_SHOWN]}..."


def counted(number: int, noun: str) -> str:
    """``1 record``, ``2 records``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def readable_age(seconds: float) -> str:
    for size, unit in _AGES:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _reasons_by_generation(dead_letters: Iterable[DeadLetter]) -> dict[tuple[str, int], list[str]]:
    grouped: dict[tuple[str, int], list[str]] = {}
    for dead_letter in dead_letters:
        grouped.setdefault((dead_letter.sink, dead_letter.generation), []).append(dead_letter.reason)
    return grouped


def _plain(*cells: object) -> list[Text]:
    """Cells whose square brackets aren't taken for Rich's markup."""
    return [Text(visible(str(cell))) for cell in cells]
