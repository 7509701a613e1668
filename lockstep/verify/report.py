"""What ``lockstep verify`` found, for people and programs: keys, columns and tags, no other value of a row. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import orjson
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from cdc.model.lsn import format_lsn
from cdc.model.table import TableName
from monitor.verification import VerifyOutcome

BY_TOPIC: Final = "compared with its topic: it is append-only, so its rows have no key in the source"
"""The note of such a table."""

_SHOWN_MAX: Final = 100
"""Differences shown to people; ``--json`` has all."""


class Kind(StrEnum):
    """``MISSING``: the sink lacks the row. ``EXTRA``: it has one too many. ``DIFFERENT``: it has other values."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Difference:
    """One key. ``topic_tag`` is that of the newest event on the topic, None if there is none or nobody looked. ``note``
    is what else is known, in words."""

    kind: Kind
    key: bytes
    columns: tuple[str, ...] = ()
    sink_tag: str | None = None
    topic_tag: str | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "key": orjson.loads(self.key),
            "columns": list(self.columns),
            "sink_tag": self.sink_tag,
            "topic_tag": self.topic_tag,
            "note": self.note or None,
        }


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table. Each side's row count is as of its own pass, so under traffic counts may differ where rows don't.

    With chosen keys there is no pass: ``keys`` is how many were compared, and counts and ranges are None. Neither side
    has the ``absent`` keys. ``undecided`` rows changed at every look. ``is_complete`` is False if there were too many
    differences to look into. ``left_out`` are columns that were not compared, with the reason. With ``may_lack_rows``
    the sink may lack rows, and its missing rows aren't counted. ``repaired`` rows were different before.
    ``unreadable_dead_letters`` may hold the reason of a difference. ``note`` is a remark on the comparison. If
    ``not_compared`` is set, there was no comparison, for this reason.
    """

    table: TableName
    expected_rows: int | None = None
    sink_rows: int | None = None
    ranges: int | None = None
    differing_ranges: int | None = None
    keys: int | None = None
    absent: tuple[bytes, ...] = ()
    differences: tuple[Difference, ...] = ()
    undecided: tuple[bytes, ...] = ()
    is_complete: bool = True
    left_out: tuple[tuple[str, str], ...] = ()
    repaired: tuple[bytes, ...] = ()
    unreadable_dead_letters: int = 0
    note: str = ""
    not_compared: str = ""
    may_lack_rows: bool = False

    @property
    def is_equal(self) -> bool:
        return self.is_complete and not self.differences and not self.undecided

    def count(self, kind: Kind) -> int:
        return sum(1 for difference in self.differences if difference.kind is kind)

    def to_json(self) -> dict[str, Any]:
        return {
            "table": str(self.table),
            "equal": self.is_equal,
            "complete": self.is_complete,
            "rows": {"expected": self.expected_rows, "sink": self.sink_rows},
            "ranges": {"compared": self.ranges, "differing": self.differing_ranges},
            "keys": self.keys,
            "absent": [orjson.loads(key) for key in self.absent],
            "missing": self.count(Kind.MISSING),
            "extra": self.count(Kind.EXTRA),
            "different": self.count(Kind.DIFFERENT),
            "differences": [difference.to_json() for difference in self.differences],
            "undecided": [orjson.loads(key) for key in self.undecided],
            "left_out": dict(self.left_out),
            "repaired": [orjson.loads(key) for key in self.repaired],
            "unreadable_dead_letters": self.unreadable_dead_letters,
            "note": self.note or None,
            "not_compared": self.not_compared or None,
            "may_lack_rows": self.may_lack_rows,
        }


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """All tables of one generation. ``lsn`` is where the source was at the beginning; None if it wasn't asked.
    ``epoch`` is capture's, to which that LSN belongs; it stayed the same until everything was compared."""

    sink: str
    generation: int
    against: str
    lsn: int | None
    tables: tuple[TableReport, ...]
    epoch: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether nothing was found in what was compared. ``outcome`` is about everything."""
        return all(table.is_equal for table in self.tables)

    @property
    def outcome(self) -> VerifyOutcome:
        """The verdict. A comparison that left out a table or a row can't end as equal."""
        if any(table.differences for table in self.tables):
            return VerifyOutcome.DIFFERENT
        is_whole = bool(self.tables) and all(table.is_equal and not table.not_compared for table in self.tables)
        return VerifyOutcome.EQUAL if is_whole else VerifyOutcome.INCOMPLETE

    def to_json(self) -> dict[str, Any]:
        return {
            "sink": self.sink,
            "generation": self.generation,
            "against": self.against,
            "lsn": None if self.lsn is None else format_lsn(self.lsn),
            "equal": self.outcome is VerifyOutcome.EQUAL,
            "outcome": self.outcome.value,
            "tables": [table.to_json() for table in self.tables],
        }


def verify_table(report: VerifyReport) -> RenderableType:
    """For people: a line per table, and below it the differences."""
    parts: list[RenderableType] = [_summary(report)]
    differences = [(table.table, difference) for table in report.tables for difference in table.differences]
    if differences:
        parts += ["", *_differences(differences[:_SHOWN_MAX]), ""]
    if len(differences) > _SHOWN_MAX:
        parts.append(Text(f"and {len(differences) - _SHOWN_MAX:,} more: --json shows all", style="dim"))
    parts += [Text(sentence, style="yellow") for table in report.tables for sentence in sentences(table)]
    parts.append(Text(_verdict(report), style="green" if report.outcome is VerifyOutcome.EQUAL else "red"))
    return Group(*parts)


def _summary(report: VerifyReport) -> RichTable:
    """A line per table, with what fits into 80 columns."""
    table = RichTable()
    table.add_column("table", overflow="fold")
    for heading in (f"rows in\n{report.against}", f"rows in\n{report.sink}", *(kind.value for kind in Kind)):
        table.add_column(heading, justify="right", no_wrap=True)
    for compared in report.tables:
        table.add_row(
            Text(str(compared.table)),
            *map(_number, (compared.expected_rows, compared.sink_rows)),
            *(_number(compared.count(kind)) for kind in Kind),
        )
    return table


def _differences(differences: list[tuple[TableName, Difference]]) -> Iterator[RenderableType]:
    """A paragraph for each, since a key and its two tags alone take a line of 80 columns."""
    for name, difference in differences:
        yield Text(f"{name}: {difference.kind.value} {difference.key.decode()}")
        facts = {
            "columns": ", ".join(difference.columns),
            "tag in the sink": difference.sink_tag,
            "newest tag on the topic": difference.topic_tag,
            "note": difference.note,
        }
        for fact, text in facts.items():
            if text:
                yield Padding(Text(f"{fact}: {text}"), (0, 0, 0, 4), expand=False)


def sentences(table: TableReport) -> Iterator[str]:
    if table.not_compared:
        yield f"{table.table} was not compared: {table.not_compared}"
    if table.note:
        yield f"{table.table}: {table.note}"
    if table.may_lack_rows:
        yield f"{table.table}: rows that the sink lacks weren't counted: they expire, or come when they are asked for"
    for column, reason in table.left_out:
        yield f"{table.table}: column {column!r} was not compared: {reason}"
    if table.absent:
        keys = ", ".join(key.decode() for key in table.absent)
        yield f"{table.table}: neither side has a row with the key {keys}"
    if table.undecided:
        keys = ", ".join(key.decode() for key in table.undecided[:5])
        yield (
            f"{table.table}: {rows_text(len(table.undecided))} changed at every look, so whether they are equal isn't"
            f" known ({keys}{', ...' if len(table.undecided) > 5 else ''}); run it again with --keys"
        )
    if table.repaired:
        yield f"{table.table}: repaired {rows_text(len(table.repaired))}"
    if not table.is_complete:
        yield (
            f"{table.table}: more rows may differ than were looked into; repair these and run it again, or rebuild the"
            " sink"
        )
    if table.differences and table.unreadable_dead_letters:
        yield (
            f"{table.table}: {table.unreadable_dead_letters:,} dead letters can't be read, and may hold the reason of a"
            " difference; `lockstep rejections list` shows more"
        )


def _verdict(report: VerifyReport) -> str:
    where = f"generation {report.generation} of {report.sink}"
    if report.tables and all(table.not_compared for table in report.tables):
        return f"nothing of {where} was compared"
    if report.is_equal:
        if any(table.not_compared for table in report.tables):
            where = f"the compared part of {where}"
        return (
            f"{where} equals the {report.against}"
            if report.lsn is None
            else (f"{where} equals the {report.against} (as of {format_lsn(report.lsn)} or later)")
        )
    count = sum(len(table.differences) for table in report.tables)
    return (
        f"{where} differs from the {report.against} in {rows_text(count)}"
        if count
        else f"{where} was not compared completely"
    )


def rows_text(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _number(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"
