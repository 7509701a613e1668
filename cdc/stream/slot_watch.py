"""Watches how much WAL the slot makes the server keep, and warns before PostgreSQL removes it. The decision is pure:
``Warnings`` decides about a ``SlotLook``. ``SlotWatch`` asks PostgreSQL."""

import collections
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

import psycopg

from cdc.model.lsn import Lsn, parse_lsn
from cdc.postgres.connection import connection_error
from cdc.postgres.slot import find_slot

_LOOK_EVERY_S: Final = 10.0
_SAY_EVERY_S: Final = 60.0
"""How often an ongoing warning is repeated."""

_RATE_WINDOW_S: Final = 300.0
"""The time over which the WAL's rate is measured."""

WARN_MINUTES: Final = 60.0
"""A slot is warned about if it would be lost within this time at the present rate."""


@dataclass(frozen=True, slots=True)
class SlotLook:
    """The slot at one moment. After ``safe_wal_bytes`` more, PostgreSQL may take WAL from it; None: no limit. ``at_s``
    is on any monotonic clock. ``limit_bytes`` is ``max_slot_wal_keep_size``, None if that is off."""

    at_s: float
    wal_end: Lsn
    retained_bytes: int
    wal_status: str
    safe_wal_bytes: int | None
    limit_bytes: int | None = None


def wal_rate(*, bytes_written: int, seconds: float) -> float | None:
    """Bytes of WAL per second between two looks; None if they can't be compared."""
    return bytes_written / seconds if seconds > 0 and bytes_written >= 0 else None


def minutes_until_full(safe_wal_bytes: int | None, rate: float | None) -> float | None:
    """When the slot is lost if WAL continues at this rate; None if it isn't known to be at risk."""
    if safe_wal_bytes is None or not rate:
        return None
    return max(0, safe_wal_bytes) / rate / 60


@dataclass(frozen=True, slots=True)
class HeldWal:
    """The WAL that a slot makes the server keep, for displays. ``limit_bytes`` is ``max_slot_wal_keep_size``, None if
    that is off. ``bytes_per_s`` is the rate of WAL, None if unknown. After ``minutes_until_full`` the slot is lost;
    None if it isn't known to be at risk."""

    retained_bytes: int
    limit_bytes: int | None
    bytes_per_s: float | None
    minutes_until_full: float | None

    @classmethod
    def of(cls, look: SlotLook, bytes_per_s: float | None) -> Self:
        minutes = minutes_until_full(look.safe_wal_bytes, bytes_per_s)
        return cls(look.retained_bytes, look.limit_bytes, bytes_per_s, minutes)

    def __str__(self) -> str:
        limit = "" if self.limit_bytes is None else f" of {wal_size(self.limit_bytes)} at most"
        rate = "" if not self.bytes_per_s else f", {wal_size(self.bytes_per_s)}/s more"
        minutes = "" if self.minutes_until_full is None else f", full in {self.minutes_until_full:.0f} minutes"
        return f"the slot makes the server keep {wal_size(self.retained_bytes)} of WAL{limit}{rate}{minutes}"


class Warnings:
    """Decides the warnings for a series of looks."""

    def __init__(self, slot: str) -> None:
        self._slot = slot
        self._looks: collections.deque[SlotLook] = collections.deque()
        self._is_near = False
        self._said_s = 0.0

    def decide(self, look: SlotLook) -> tuple[str, HeldWal]:
        """A sentence for people, empty if there is nothing new, and the figures for displays."""
        rate = self._rate(look)
        held = HeldWal.of(look, rate)
        minutes = held.minutes_until_full
        before = self._is_near
        self._is_near = look.wal_status == "unreserved" or (minutes is not None and minutes < WARN_MINUTES)
        if not self._is_near and not before:
            return "", held
        if self._is_near == before and look.at_s - self._said_s < _SAY_EVERY_S:
            return "", held
        self._said_s = look.at_s
        return self._sentence(look, rate, minutes), held

    def _rate(self, look: SlotLook) -> float | None:
        """The rate of WAL over the last minutes: a shorter time would warn at each burst."""
        self._looks.append(look)
        while len(self._looks) > 2 and look.at_s - self._looks[0].at_s > _RATE_WINDOW_S:
            self._looks.popleft()
        first = self._looks[0]
        return wal_rate(bytes_written=look.wal_end - first.wal_end, seconds=look.at_s - first.at_s)

    def _sentence(self, look: SlotLook, rate: float | None, minutes: float | None) -> str:
        holds = f"slot {self._slot} makes the server keep {wal_size(look.retained_bytes)} of WAL"
        if not self._is_near:
            return f"{holds}, which is no more than it should"
        grows = "" if not rate else f", which grows by {wal_size(rate)} a second"
        if look.wal_status == "unreserved":
            lost = "PostgreSQL may take it away at the next checkpoint, and the slot is lost then"
        else:
            lost = f"the slot is lost in {minutes:.0f} minutes"
        return f"warning: {holds}{grows}; {lost}"


class SlotWatch:
    """Looks at a slot every few seconds, when called, over the given connection."""

    def __init__(
        self, slot: str, say: Callable[[str], None], looked: Callable[[HeldWal], None] = lambda _: None
    ) -> None:
        """``looked`` gets the result of each look."""
        self._slot = slot
        self._warnings = Warnings(slot)
        self._say = say
        self._looked = looked
        self._due_s = 0.0
        self._is_lost = False

    def look_if_due(self, sql: psycopg.Connection[Any]) -> None:
        """Safe to call all the time. Raises as ``connection_error`` if PostgreSQL doesn't answer."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + _LOOK_EVERY_S
        try:
            look = look_at_slot(sql, self._slot, at_s=now_s)
            slot = look or find_slot(sql, self._slot)
        except psycopg.Error as error:
            raise connection_error(error) from error
        was_lost, self._is_lost = self._is_lost, slot is not None and slot.wal_status == "lost"
        if self._is_lost and not was_lost:
            # While nobody reads the slot, in the first copy and while Kafka is away, nothing else notices.
            self._say(
                f"warning: slot {self._slot} is lost: PostgreSQL no longer keeps the changes that capture hasn't read."
                " Stop capture, then run `lockstep recover`"
            )
        if look is None or self._is_lost:
            return
        sentence, held = self._warnings.decide(look)
        self._looked(held)
        if sentence:
            self._say(sentence)


def look_at_slot(sql: psycopg.Connection[Any], slot: str, *, at_s: float) -> SlotLook | None:
    """The slot now; None if none holds anything. Raises psycopg's errors."""
    row = sql.execute(
        "select pg_current_wal_insert_lsn()::text,"
        " pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)::bigint,"
        " coalesce(wal_status, 'reserved'), safe_wal_size,"
        " nullif(pg_size_bytes(current_setting('max_slot_wal_keep_size')), -1) from pg_replication_slots"
        " where slot_name = %s and restart_lsn is not null",
        (slot,),
    ).fetchone()
    if row is None:
        return None
    wal_end, *rest = row
    return SlotLook(at_s, parse_lsn(wal_end), *rest)


def wal_size(count: float) -> str:
    """A number of bytes in PostgreSQL's units."""
    if count < 1024:
        return f"{count:.0f} B"
    units = ["TB", "GB", "MB", "kB"]
    while count >= 1024 and units:
        count, unit = count / 1024, units.pop()
    return f"{count:.1f} {unit}"
