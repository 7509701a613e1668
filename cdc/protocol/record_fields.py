"""Typed reads of a record's fields, since any program with access to a topic or the WAL may have written it. Pure. A
record of another program raises ForeignRecord. A record of another Lockstep version raises a different error, since it
must never be skipped."""

from enum import StrEnum
from typing import Any, Final, TypeVar

import orjson

from cdc.model.errors import ForeignRecord, LockstepError
from cdc.model.tag import LSN_MAX

FORMAT: Final = 4
"""The version of everything that capture stores or sends to itself: control records, and messages in the WAL."""

Word = TypeVar("Word", bound=StrEnum)


class RecordFields:
    """The fields of a JSON object. Each read raises ForeignRecord if the field is missing or has another type. ``what``
    names the record in errors, which never show its content. A ``default`` allows the field to be missing."""

    def __init__(self, fields: dict[str, Any], what: str) -> None:
        self._fields = fields
        self._what = what

    def foreign(self, name: str) -> ForeignRecord:
        return _foreign(self._what, f"its field {name!r} is missing, or isn't what Lockstep writes there")

    def text(self, name: str, default: str | None = None) -> str:
        value = self._fields.get(name, default)
        if type(value) is not str:
            raise self.foreign(name)
        return value

    def one_of(self, name: str, words: type[Word]) -> Word:
        try:
            return words(self.text(name))
        except ValueError:
            raise self.foreign(name) from None

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._fields.get(name, default)
        if type(value) is not bool:
            raise self.foreign(name)
        return value

    def number(self, name: str, default: int | None = None, *, least: int = 0, most: int = LSN_MAX) -> int:
        value = self._fields.get(name, default)
        if type(value) is not int or not least <= value <= most:
            raise self.foreign(name)
        return value

    def has(self, name: str) -> bool:
        """Whether the field exists, null or not."""
        return name in self._fields

    def is_null(self, name: str) -> bool:
        """Whether the field exists and is null."""
        return name in self._fields and self._fields[name] is None

    def mapping(self, name: str, default: dict[str, Any] | None = None) -> dict[str, Any]:
        """An object that can be serialized again: parsing allows deeper nesting than serializing."""
        value = self._fields.get(name, default)
        if not isinstance(value, dict) or not _can_be_written(value):
            raise self.foreign(name)
        return value

    def items(self, name: str, kind: type, default: list[Any] | None = None) -> list[Any]:
        """A list of values of one type."""
        value = self._fields.get(name, default)
        if not isinstance(value, list) or not all(type(item) is kind for item in value):
            raise self.foreign(name)
        return value

    def row(self, name: str, *kinds: type) -> list[Any] | None:
        """A list of values of these types; None if the field is missing or null."""
        return None if self._fields.get(name) is None else self._of_kinds(name, self._fields[name], kinds)

    def rows(self, name: str, *kinds: type, default: list[Any] | None = None) -> list[list[Any]]:
        """A list of lists of values of these types."""
        return [self._of_kinds(name, row, kinds) for row in self.items(name, list, default)]

    def _of_kinds(self, name: str, value: Any, kinds: tuple[type, ...]) -> list[Any]:
        if not isinstance(value, list) or tuple(map(type, value)) != kinds:
            raise self.foreign(name)
        if any(type(part) is int and part < 0 for part in value):
            raise self.foreign(name)
        return value

    def mappings(self, name: str) -> list[dict[str, Any]]:
        """A list of objects that can be serialized again."""
        mappings = self.items(name, dict)
        if not _can_be_written(mappings):
            raise self.foreign(name)
        return mappings

    def objects(self, name: str, default: list[Any] | None = None) -> "list[RecordFields]":
        return [RecordFields(fields, self._what) for fields in self.items(name, dict, default)]


def parse_record(value: bytes | None, what: str) -> RecordFields:
    """A record's fields. ``what`` names it in errors, which never show its content. Raises ForeignRecord if no Lockstep
    wrote it, and LockstepError for a format that this version doesn't know."""
    try:
        fields = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        raise _foreign(what, "it isn't JSON") from None
    if not isinstance(fields, dict):
        raise _foreign(what, "it isn't a JSON object")
    record_format = fields.get("format")
    if type(record_format) is not int:
        raise _foreign(what, "it doesn't say which format it has")
    if record_format != FORMAT:
        raise LockstepError(
            f"{what} was written by another version of Lockstep"
            f" (its format is {record_format}, this version knows {FORMAT})",
            hint="run the version that wrote it, or start a pipeline of another name (pipeline.name in lockstep.toml),"
            " which takes a new snapshot",
        )
    return RecordFields(fields, what)


def _foreign(what: str, why: str) -> ForeignRecord:
    return ForeignRecord(
        f"{what} isn't one of Lockstep's: {why}",
        hint="only Lockstep may write to its topics: find out who else does, and take the right away"
        " (docs/kafka.md). docs/troubleshooting.md has what to do about the record: a null value"
        " under the key of a state or a shape would remove what is left of it",
    )


def _can_be_written(value: Any) -> bool:
    try:
        orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return False
    return True
