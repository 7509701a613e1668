"""Patterns of table names: ``public.*``, ``sales.order_*``, ``"My Schema".*``."""

import re
from dataclasses import dataclass
from typing import Final, Self

from cdc.model.table import TableName

_ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class TablePattern:
    """A schema and a name. In each, ``*`` stands for any characters, or none. Everything else stands for itself,
    case-sensitively. ``*`` in double quotes does so too, so any name can be written."""

    text: str
    schema: re.Pattern[str]
    name: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``schema.table``, each part optionally quoted. Raises ValueError for anything else."""
        literal = TableName.parse(text)
        schema, name = (
            _expression(part, is_quoted=is_quoted)
            for part, is_quoted in zip((literal.schema, literal.name), _quoted(text), strict=True)
        )
        return cls(text, schema, name)

    def matches(self, name: TableName) -> bool:
        return self.schema.fullmatch(name.schema) is not None and self.name.fullmatch(name.name) is not None


def is_pattern(text: str) -> bool:
    """Whether a text that ``TablePattern.parse`` accepts may match several tables."""
    return _ANY in re.sub(r'"(?:[^"]|"")*"', "", text)


def _quoted(text: str) -> tuple[bool, bool]:
    """Whether schema and name are quoted. The only unquoted dot stands between them."""
    return text.startswith(('"', 'U&"')), text.endswith('"')


def _expression(part: str, *, is_quoted: bool) -> re.Pattern[str]:
    pieces = [part] if is_quoted else part.split(_ANY)
    return re.compile(".*".join(map(re.escape, pieces)), re.DOTALL)
