"""The pages of ``docs/examples`` as programs: tables, a view, its reader, and statements with what is read after them.

Blocks are run in the page's order. ``sql`` under "Tables" makes the tables, and any other one is one transaction.
``toml`` is the view's section, ``python`` defines how an application reads it, and ``pycon`` says what that gives then.
"""

import doctest
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import psycopg

from tests.docs.generated import DOCS

EXAMPLES: Final = DOCS / "examples"
_TABLES: Final = "Tables"
_PART: Final = re.compile(r"^## +(.+?) *$|^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code: its language, its text, and the line of the page that it begins at."""

    language: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class ExamplePage:
    """One page. ``tables`` are the statements that make its tables, empty where another page's are used."""

    name: str
    tables: str
    view: str
    steps: tuple[Block, ...]
    """What follows the view: ``sql``, ``python`` and ``pycon``."""

    @classmethod
    def read(cls, path: Path) -> "ExamplePage":
        """Raises ValueError where the page has other than one ``toml`` block."""
        text = path.read_text(encoding="utf-8")
        part = ""
        tables: list[str] = []
        views: list[str] = []
        steps: list[Block] = []
        for found in _PART.finditer(text):
            heading, language, body = found.groups()
            if heading is not None:
                part = heading
            elif language == "toml":
                views.append(body)
            elif part == _TABLES:
                tables.append(body)
            else:
                steps.append(Block(language, body, text[: found.start()].count("\n") + 1))
        (view,) = views
        return cls(path.stem, "\n".join(tables), view, tuple(steps))

    def run(
        self,
        source: psycopg.Connection[Any],
        names: Mapping[str, Any],
        wait: Callable[[], None],
        others: Mapping[str, Callable[[str], None]] = MappingProxyType({}),
    ) -> None:
        """Run the steps. ``names`` are what the reader finds, ``wait`` returns when the view has what is committed.

        ``others`` take the text of blocks in other languages.

        Raises AssertionError with the difference where the view gives something else than the page says.
        """
        known = dict(names)
        for step in self.steps:
            if step.language == "python":
                exec(compile(step.text, f"{self.name}.md", "exec"), known)
            elif step.language == "sql":
                with source.transaction():
                    source.execute(step.text.encode())
                wait()
            elif step.language in others:
                others[step.language](step.text)
            else:
                self._check(step, known)

    def _check(self, step: Block, known: Mapping[str, Any]) -> None:
        test = doctest.DocTestParser().get_doctest(step.text, dict(known), self.name, f"{self.name}.md", step.line)
        said: list[str] = []
        doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.append)
        assert said == [], "".join(said)


_OF_ANOTHER_FORM: Final = (
    "README.md",
    "abandoned-carts.md",
    "page-views.md",
    "profile-search.md",
    "search-clicks.md",
    "sessions.md",
)
"""Page views has several views, over a table without a key: ``tests/live/test_page_views.py`` runs it. The profile
search has none: ``tests/live/test_search_example.py`` runs it. The others have streams:
``tests/live/test_stream_examples.py`` does."""


def pages() -> list[ExamplePage]:
    """All examples with one view, by name."""
    return [ExamplePage.read(path) for path in sorted(EXAMPLES.glob("*.md")) if path.name not in _OF_ANOTHER_FORM]


# --- transactions at random ---

_TEXTS: Final = ("EUR", "USD", "full", "reduced", "ä", "z")
_VALUES: Final[Mapping[str, Callable[[random.Random], Any]]] = {
    "bigint": lambda chance: chance.randrange(6),
    "integer": lambda chance: chance.randrange(4),
    "text": lambda chance: chance.choice(_TEXTS),
    "numeric": lambda chance: chance.choice(("0.00", "1.10", "0.25", "7.5")),
    "timestamp with time zone": lambda chance: f"2026-03-0{chance.randint(1, 3)} {chance.randrange(24)}:00+00",
}
"""Few values of each type, so that rows meet."""

_COLUMNS: Final = """
    select c.column_name, c.data_type, k.column_name is not null
    from information_schema.columns c
    left join information_schema.table_constraints p
        on (p.table_schema, p.table_name, p.constraint_type) = ('public', c.table_name, 'PRIMARY KEY')
    left join information_schema.key_column_usage k
        on (k.constraint_name, k.table_name, k.column_name) = (p.constraint_name, p.table_name, c.column_name)
    where c.table_schema = 'public' and c.table_name = %s order by c.ordinal_position"""


class RandomTraffic:
    """Transactions at random over some tables: rows that come, change, move to another key and go."""

    def __init__(self, source: psycopg.Connection[Any], tables: list[str], *, seed: int) -> None:
        self._source = source
        self._chance = random.Random(seed)
        self._columns = {table: source.execute(_COLUMNS, (table,)).fetchall() for table in tables}

    def write(self, transactions: int) -> None:
        for _ in range(transactions):
            with self._source.transaction():
                for _ in range(self._chance.randint(1, 5)):
                    self._change(self._chance.choice(list(self._columns)))

    def _change(self, table: str) -> None:
        chance, columns = self._chance, self._columns[table]
        row = {name: _VALUES[of](chance) for name, of, _ in columns}
        key = [name for name, _, is_key in columns if is_key]
        same_key = " and ".join(f"{name} = %({name})s" for name in key)
        match chance.randrange(8):
            case 0 | 1:
                statement = f"delete from {table} where {same_key}"
            case 2:
                moved, of = chance.choice([(name, of) for name, of, is_key in columns if is_key])
                row["other"] = _VALUES[of](chance)
                there = same_key.replace(f"%({moved})s", "%(other)s")
                statement = (
                    f"update {table} set {moved} = %(other)s"
                    f" where {same_key} and not exists (select 1 from {table} where {there})"
                )
            case _:
                values = ", ".join(f"%({name})s" for name in row)
                changes = ", ".join(f"{name} = excluded.{name}" for name in row)
                statement = (
                    f"insert into {table} values ({values}) on conflict ({', '.join(key)}) do update set {changes}"
                )
        self._source.execute(statement.encode(), row)
