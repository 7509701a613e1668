"""The results of comparing a sink with the source. ``g<n>.verified`` is a coordination record of the destination: the
last comparison of all tables of a generation, and up to where it was last equal. It goes with the generation."""

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

import orjson

from cdc.model.lsn import format_lsn
from cdc.model.times import time_text
from sinks.contract import CoordinationRecords

_FORMAT: Final = 2


class VerifyOutcome(StrEnum):
    """``EQUAL``: every table. ``INCOMPLETE``: nothing differs, but something couldn't be compared. ``FAILED``: the
    comparison ended with an error."""

    EQUAL = "equal"
    DIFFERENT = "different"
    INCOMPLETE = "incomplete"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Verification:
    """The last comparison. ``differing`` counts keys. ``error`` is why it failed.

    When it was last equal, the generation had all rows that were committed up to ``through_lsn``, as they were at the
    source at that time or later, except (``but_for``) what that comparison couldn't tell. It began at ``through_ms``; 0
    if none was ever equal. The LSN is one of capture's ``through_epoch``. Times are milliseconds since 1970.
    """

    began_ms: int
    ended_ms: int
    outcome: VerifyOutcome
    differing: int = 0
    error: str | None = None
    through_lsn: int = 0
    through_ms: int = 0
    through_epoch: int = 0
    but_for: tuple[str, ...] = ()

    def in_epoch(self, epoch: int | None) -> "Verification":
        """The verification in an epoch of capture: an LSN from before a recovery is of another line of WAL. ``epoch``
        is None if unknown; then nothing is known of the LSN either."""
        return self if self.through_epoch == epoch else replace(self, through_lsn=0, through_ms=0)

    def after(self, before: "Verification | None") -> "Verification":
        """The record to store in place of ``before``."""
        if before is None or self.outcome is VerifyOutcome.EQUAL:
            return self
        names = ("through_lsn", "through_ms", "through_epoch", "but_for")
        return replace(self, **{name: getattr(before, name) for name in names})

    def to_json(self) -> dict[str, Any]:
        return {
            "began_ms": self.began_ms,
            "ended_ms": self.ended_ms,
            "outcome": self.outcome.value,
            "differing": self.differing,
            "error": self.error,
            "verified_through": format_lsn(self.through_lsn) if self.through_lsn else None,
            "verified_through_ms": self.through_ms or None,
            "but_for": list(self.but_for),
        }

    def sentence(self, label: str, *, sink: str, generation: int | None = None) -> str:
        """One line about it. ``generation`` is given unless it is the one that readers see."""
        command = f"`lockstep verify {sink}" + ("`" if generation is None else f" --generation {generation}`")
        but_for = f" but for {'; '.join(self.but_for)}" if self.but_for else ""
        match self.outcome:
            case VerifyOutcome.EQUAL:
                what = "equal to the source" + but_for
            case VerifyOutcome.DIFFERENT:
                what = f"{self.differing:,} keys differ from the source: {command} shows them"
            case VerifyOutcome.INCOMPLETE:
                what = f"not compared completely: {command} says why"
            case VerifyOutcome.FAILED:
                what = f"the comparison failed: {self.error}"
        through = f", verified through {format_lsn(self.through_lsn)} of {time_text(self.through_ms)}"
        through += but_for if self.outcome is not VerifyOutcome.EQUAL else ""
        return f"{label}: {what}, as of {time_text(self.ended_ms)}" + (through if self.through_lsn else "")


def load_verification(records: CoordinationRecords, generation: int) -> Verification | None:
    """The record, or None. Raises what the destination raises."""
    text = records.load(_name(generation))
    fields: dict[str, Any] = {} if text is None else orjson.loads(text)
    if fields.pop("format", None) != _FORMAT:
        return None  # another version's: the next comparison replaces it
    outcome, but_for = VerifyOutcome(fields.pop("outcome")), tuple(fields.pop("but_for"))
    return Verification(**fields, outcome=outcome, but_for=but_for)


def save_verification(records: CoordinationRecords, generation: int, verification: Verification) -> None:
    """Store it, with the last equal position of the record before. Raises what the destination raises."""
    kept = verification.after(load_verification(records, generation))
    records.save(_name(generation), orjson.dumps({"format": _FORMAT, **asdict(kept)}).decode())


def _name(generation: int) -> str:
    return f"g{generation}.verified"
