"""Which messages are due: when a condition opens, when it becomes critical, and when it is over. Pure.

A condition that may pass by itself must hold for ``OPEN_AFTER_S`` or for its own period before it opens. Every
condition must be gone for ``CLEAR_AFTER_S`` before it is over, so one that comes and goes is reported once. A condition
that can't be judged stays as it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from monitor.conditions import Condition, Findings, Key, Severity

OPEN_AFTER_S: Final = 30.0
"""A restart, a lost connection or a change of brokers is over by then."""

CLEAR_AFTER_S: Final = 60.0
"""A condition that returns within a minute was never over for an observer."""


class Kind(StrEnum):
    OPENED = "opened"
    WORSE = "worse"
    CLEARED = "cleared"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Message:
    """A message. ``id`` is the same for all messages about one period in which a condition was open."""

    id: str
    kind: Kind
    pipeline: str
    at_ms: int
    condition: Condition

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "kind": self.kind.value,
            "pipeline": self.pipeline,
            "at_ms": self.at_ms,
            **self.condition.to_json(),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Message":
        return cls(fields["id"], Kind(fields["kind"]), fields["pipeline"], fields["at_ms"], condition_from_json(fields))


@dataclass(frozen=True, slots=True)
class Entry:
    """A condition that holds, or that was reported and may be over. ``reported`` is the reported severity, None if none
    was. ``seen_ms`` is when it was first seen, ``gone_ms`` since when it is gone.
    """

    condition: Condition
    seen_ms: int
    reported: Severity | None = None
    gone_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        reported = None if self.reported is None else self.reported.name.lower()
        return {**self.condition.to_json(), "seen_ms": self.seen_ms, "reported": reported}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Entry":
        reported = None if fields["reported"] is None else Severity[fields["reported"].upper()]
        return cls(condition_from_json(fields), int(fields["seen_ms"]), reported)


def condition_from_json(fields: Mapping[str, Any]) -> Condition:
    return Condition(
        fields["name"],
        fields["subject"],
        Severity[fields["severity"].upper()],
        fields["sentence"],
        fields["step"],
        fields["since_ms"],
    )


def take(
    book: Mapping[Key, Entry],
    findings: Findings,
    *,
    pipeline: str,
    now_ms: int,
) -> tuple[dict[Key, Entry], list[Message]]:
    """The book after a look with these findings, and the messages that are due now."""
    following: dict[Key, Entry] = {}
    messages: list[Message] = []

    def report(kind: Kind, entry: Entry) -> None:
        messages.append(_message(kind, entry, pipeline=pipeline, now_ms=now_ms))

    found = {condition.key: condition for condition in findings.open}
    for key, condition in found.items():
        before = book.get(key)
        entry = Entry(condition, now_ms) if before is None else replace(before, condition=condition, gone_ms=None)
        if condition.since_ms is None:
            entry = replace(entry, condition=replace(condition, since_ms=entry.seen_ms))
        hold_s = max(OPEN_AFTER_S if condition.passes else 0.0, condition.hold_s)
        holds = now_ms - entry.seen_ms >= hold_s * 1000
        if holds:
            if entry.reported is None:
                report(Kind.OPENED, entry)
            elif condition.severity > entry.reported:
                report(Kind.WORSE, entry)
            entry = replace(entry, reported=max(condition.severity, entry.reported or condition.severity))
        following[key] = entry
    for key, entry in book.items():
        if key in found:
            continue
        if findings.is_unknown(*key):
            following[key] = replace(entry, gone_ms=None)
        elif entry.reported is not None:
            gone_ms = now_ms if entry.gone_ms is None else entry.gone_ms
            if now_ms - gone_ms >= CLEAR_AFTER_S * 1000:
                report(Kind.CLEARED, entry)
            else:
                following[key] = replace(entry, gone_ms=gone_ms)
    return following, messages


def opened_of(book: Mapping[Key, Entry], *, pipeline: str, now_ms: int) -> list[Message]:
    """The opening messages of all reported conditions, for a receiver that didn't get them then."""
    return [_message(Kind.OPENED, entry, pipeline=pipeline, now_ms=now_ms) for entry in book.values() if entry.reported]


def _message(kind: Kind, entry: Entry, *, pipeline: str, now_ms: int) -> Message:
    name, subject = entry.condition.key
    return Message(f"{pipeline}/{name}/{subject}/{entry.seen_ms}", kind, pipeline, now_ms, entry.condition)
