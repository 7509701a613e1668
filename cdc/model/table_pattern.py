"""Patterns of table names: ``public.*``, ``sales.order_*``, ``"My Schema".*``."""

import re
from dataclasses import dataclass
from typing import Final, Self

from cdc.model.table import TableName

_ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class TablePattern:
    """A schema and a name in each of which ``*`` stands for any characters, none as well.

    Everything else stands for itself, capitals as they are. In double quotes so does ``*``, so that a name that has one
    can be written.
    """

    text: str
    schema: re.Pattern[str]
    name: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> Self:
        """``schema.table``, each of which may be quoted. Raises ValueError for anything else."""
        literal = TableName.parse(text)
        schema, name = (
            _expression(part, is_quoted=is_quoted)
            for part, is_quoted in zip((literal.schema, literal.name), _quoted(text), strict=True)
        )
        return cls(text, schema, name)

    def matches(self, name: TableName) -> bool:
        return self.schema.fullmatch(name.schema) is not None and self.name.fullmatch(name.name) is not None


def is_pattern(text: str) -> bool:
    """Whether a text that ``TablePattern.parse`` takes may stand for several tables."""
    return _ANY in re.sub(r'"(?:[^"]|"")*"', "", text)


def _quoted(text: str) -> tuple[bool, bool]:
    """Whether the schema and the name are in quotes: between them stands the only dot that isn't."""
    return text.startswith(('"', 'U&"')), text.endswith('"')


def _expression(part: str, *, is_quoted: bool) -> re.Pattern[str]:
    pieces = [part] if is_quoted else part.split(_ANY)
    return re.compile(".*".join(map(re.escape, pieces)), re.DOTALL)
