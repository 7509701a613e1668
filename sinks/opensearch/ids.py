"""The id and the routing of a row's document, both made from the key alone (pure).

A key never changes: a changed one is a delete and a create. So these lead every event of a row to the same document of
the same shard.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import orjson

from cdc.model.event import JsonValue, value_text

_ID_BYTES_MAX: Final = 512
_HASHED: Final = "sha256:"

_PART: Final = re.compile(r"(?P<brace>\{\{|\}\})|\{(?P<column>[^{}]+)\}|(?P<literal>[^{}]+)")


def document_id(values: Sequence[JsonValue]) -> str:
    """A key's values as a document's id. Different keys of one table have different ids."""
    if len(values) == 1:
        text = values[0] if isinstance(values[0], str) else orjson.dumps(values[0]).decode()
    else:
        text = orjson.dumps(values).decode()
    encoded = text.encode()
    if not text or len(encoded) > _ID_BYTES_MAX or text.startswith(_HASHED):
        return _HASHED + hashlib.sha256(encoded).hexdigest()
    return text


@dataclass(frozen=True, slots=True)
class IdTemplate:
    """A template of documents' ids, such as ``order-{id}``. ``literals`` surround the values of ``columns``.

    With several columns, special characters between them are percent-encoded in the values (and ``%`` too), so that no
    two keys have the same id.
    """

    literals: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """``{column}`` is a key column's value; ``{{`` and ``}}`` are braces. Raises ValueError with all problems."""
        literals, columns, end = [""], [], 0
        for match in _PART.finditer(text):
            if match.start() != end:
                break
            end = match.end()
            if match["column"]:
                columns.append(match["column"])
                literals.append("")
            else:
                literals[-1] += match["brace"][0] if match["brace"] else match["literal"]
        problems = []
        if end != len(text):
            problems.append(f"a brace has no partner at {text[end : end + 10]!r}: for a brace itself write it twice")
        elif not columns:
            problems.append("it names no key column, as in {id}")
        problems += [f"it has {{{name}}} twice" for name in dict.fromkeys(columns) if columns.count(name) > 1]
        problems += [
            f"between {{{columns[index]}}} and {{{columns[index + 1]}}} there must be a character like '-' or ':', "
            "or different keys would have the same id"
            for index, between in enumerate(literals[1:-1])
            if not _special(between)
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return cls(tuple(literals), tuple(columns))

    def problems(self, key: Sequence[str]) -> list[str]:
        return [
            f"{name!r} isn't a column of the key ({', '.join(key)})" for name in self.columns if name not in key
        ] + [
            f"key column {name!r} is missing, so that different rows would have the same id"
            for name in key
            if name not in self.columns
        ]

    def maker(self) -> Callable[[Mapping[str, JsonValue]], str]:
        escaped = {character: _percent(character) for character in set("".join(map(_special, self.literals[1:-1])))}
        if escaped:
            escaped["%"] = _percent("%")
        table = str.maketrans(escaped)
        first, pairs = self.literals[0], tuple(zip(self.columns, self.literals[1:], strict=True))

        def make(key: Mapping[str, JsonValue]) -> str:
            # Bounded like ids, and like any other text.
            return document_id(
                [first + "".join(value_text(key[name]).translate(table) + after for name, after in pairs)]
            )

        return make


def _special(literal: str) -> str:
    # Letters and digits occur in the encoding itself, so they can't mark where a value ends.
    return "".join(character for character in literal if not character.isalnum() and character != "%")


def _percent(character: str) -> str:
    return "".join(f"%{byte:02x}" for byte in character.encode())
