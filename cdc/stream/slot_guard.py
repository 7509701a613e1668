"""Watches how much WAL the slot makes the server keep, and does about it what the operator has allowed, step by step.

The decisions are pure: ``SlotLook`` in, ``Ladder`` decides. ``SlotGuard`` asks PostgreSQL and acts.
"""

import collections
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Self

import psycopg

from cdc.model.errors import LockstepError
from cdc.model.lsn import Lsn, parse_lsn
from cdc.postgres.connection import connection_error
from cdc.postgres.settings import SlotGuardSettings

_LOOK_EVERY_S: Final = 10.0
_SAY_EVERY_S: Final = 60.0
"""How often what goes on is said again."""

_RATE_WINDOW_S: Final = 300.0
"""Over how long the WAL's rate is measured."""

WARN_MINUTES: Final = 60.0
"""A slot that is lost within this time at the present rate is warned of, whatever is configured."""


@dataclass(frozen=True, slots=True)
class SlotLook:
    """The slot at one moment. ``safe_wal_bytes`` can be written before PostgreSQL may take WAL from it, None: no limit.

    ``at_s`` is on any clock that only goes on. ``limit_bytes`` is ``max_slot_wal_keep_size``, None where that is off.
    """

    at_s: float
    wal_end: Lsn
    confirmed: Lsn | None
    retained_bytes: int
    wal_status: str
    safe_wal_bytes: int | None
    limit_bytes: int | None = None


def wal_rate(*, bytes_written: int, seconds: float) -> float | None:
    """Bytes of WAL a second between two looks; None where they are one."""
    return bytes_written / seconds if seconds > 0 and bytes_written >= 0 else None


def minutes_until_full(safe_wal_bytes: int | None, rate: float | None) -> float | None:
    """When the slot is lost if WAL goes on to be written at this rate; None where nothing says that it will be."""
    if safe_wal_bytes is None or not rate:
        return None
    return max(0, safe_wal_bytes) / rate / 60


@dataclass(frozen=True, slots=True)
class HeldWal:
    """The WAL that a slot makes the server keep, for displays.

    ``limit_bytes`` is ``max_slot_wal_keep_size``, None where that is off. ``bytes_per_s`` of WAL are written, None
    where that isn't known. After ``minutes_until_full`` the slot is lost, None where nothing says that it will be.
    """

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


class Step(IntEnum):
    """What is done, each with all of those before it."""

    NOTHING = 0
    WARN = 1
    STOP_COPIES = 2
    DROP = 3


@dataclass(frozen=True, slots=True)
class Decision:
    """``say`` is for people, empty when there is nothing new. ``held`` is for displays."""

    step: Step
    say: str
    held: HeldWal


class Ladder:
    """Decides over one look after the other.

    Copies that were stopped begin again below the step before, so that they don't stop and begin with every look.
    """

    def __init__(self, slot: str, settings: SlotGuardSettings) -> None:
        self._slot = slot
        self._settings = settings
        self._looks: collections.deque[SlotLook] = collections.deque()
        self._step = Step.NOTHING
        self._said_s = 0.0

    def decide(self, look: SlotLook) -> Decision:
        rate = self._rate(look)
        minutes = minutes_until_full(look.safe_wal_bytes, rate)
        before, self._step = self._step, self._step_at(look, minutes)
        return Decision(self._step, self._sentence(look, rate, minutes, before), HeldWal.of(look, rate))

    def _rate(self, look: SlotLook) -> float | None:
        """How fast WAL was written for the last minutes: what comes in bursts would be warned of in bursts."""
        self._looks.append(look)
        while len(self._looks) > 2 and look.at_s - self._looks[0].at_s > _RATE_WINDOW_S:
            self._looks.popleft()
        first = self._looks[0]
        return wal_rate(bytes_written=look.wal_end - first.wal_end, seconds=look.at_s - first.at_s)

    def _step_at(self, look: SlotLook, minutes: float | None) -> Step:
        settings, retained = self._settings, look.retained_bytes
        if settings.drop is not None and retained >= settings.drop:
            return Step.DROP
        if settings.stop_copies is not None:
            again_below = settings.warn if settings.warn is not None else settings.stop_copies // 2
            if retained >= (again_below if self._step >= Step.STOP_COPIES else settings.stop_copies):
                return Step.STOP_COPIES
        is_near = look.wal_status == "unreserved" or (minutes is not None and minutes < WARN_MINUTES)
        return Step.WARN if is_near or (settings.warn is not None and retained >= settings.warn) else Step.NOTHING

    def _sentence(self, look: SlotLook, rate: float | None, minutes: float | None, before: Step) -> str:
        if self._step is Step.NOTHING and before is Step.NOTHING:
            return ""
        if self._step == before and look.at_s - self._said_s < _SAY_EVERY_S:
            return ""
        self._said_s = look.at_s
        holds = f"slot {self._slot} makes the server keep {wal_size(look.retained_bytes)} of WAL"
        if self._step is Step.NOTHING:
            return f"{holds}, which is no more than it should"
        grows = "" if not rate else f", which grows by {wal_size(rate)} a second"
        lost = ""
        if look.wal_status == "unreserved":
            lost = "; PostgreSQL may take it away at the next checkpoint, and the slot is lost then"
        elif minutes is not None:
            lost = f"; the slot is lost in {minutes:.0f} minutes"
        stopped = "; no table is copied in the stream meanwhile" if self._step is Step.STOP_COPIES else ""
        return f"warning: {holds}{grows}{lost}{stopped}"


class SlotHoldsTooMuch(LockstepError):
    """The slot is to be dropped, as the operator has allowed. ``reason`` says why, for the state that keeps it."""

    def __init__(self, reason: str, look: SlotLook) -> None:
        super().__init__(reason)
        self.reason = reason
        self.look = look


class SlotGuard:
    """Looks at a slot every few seconds, whenever somebody lets it, over the connection that it is given."""

    def __init__(
        self,
        slot: str,
        settings: SlotGuardSettings,
        say: Callable[[str], None],
        looked: Callable[[HeldWal], None] = lambda _: None,
    ) -> None:
        """``looked`` gets what each look has found."""
        self._slot = slot
        self._settings = settings
        self._ladder = Ladder(slot, settings)
        self._say = say
        self._looked = looked
        self._due_s = 0.0
        self._step = Step.NOTHING
        self._is_ours = False

    def slot_is_ours(self) -> None:
        """The slot of this name is the one that capture has made and reads: only that one is ever dropped."""
        self._is_ours = True

    def copies_allowed(self) -> bool:
        """Whether tables may be copied in the stream, as of the last look."""
        return self._step < Step.STOP_COPIES

    def look_if_due(self, sql: psycopg.Connection[Any]) -> None:
        """Safe to call all the time.

        Raises SlotHoldsTooMuch when the slot is to be dropped, and as ``connection_error`` when PostgreSQL doesn't
        answer.
        """
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + _LOOK_EVERY_S
        try:
            look = look_at_slot(sql, self._slot, at_s=now_s)
            if look is None:
                return
            decision = self._ladder.decide(look)
            self._step = decision.step
            self._looked(decision.held)
            if decision.say:
                self._say(decision.say)
        except psycopg.Error as error:
            raise connection_error(error) from error
        if decision.step is Step.DROP and self._is_ours:
            assert self._settings.drop is not None
            raise SlotHoldsTooMuch(
                f"slot {self._slot} made the server keep {wal_size(look.retained_bytes)} of WAL, and source.slot_guard"
                f" lets capture drop the slot from {wal_size(self._settings.drop)} on",
                look,
            )


def look_at_slot(sql: psycopg.Connection[Any], slot: str, *, at_s: float) -> SlotLook | None:
    """The slot now; None where there is none that holds anything. Raises psycopg's errors."""
    row = sql.execute(
        "select pg_current_wal_insert_lsn()::text, confirmed_flush_lsn::text,"
        " pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)::bigint,"
        " coalesce(wal_status, 'reserved'), safe_wal_size,"
        " nullif(pg_size_bytes(current_setting('max_slot_wal_keep_size')), -1) from pg_replication_slots"
        " where slot_name = %s and restart_lsn is not null",
        (slot,),
    ).fetchone()
    if row is None:
        return None
    wal_end, confirmed, retained_bytes, wal_status, safe_wal_bytes, limit_bytes = row
    return SlotLook(
        at_s,
        parse_lsn(wal_end),
        parse_lsn(confirmed) if confirmed else None,
        retained_bytes,
        wal_status,
        safe_wal_bytes,
        limit_bytes,
    )


def wal_size(count: float) -> str:
    """A number of bytes in PostgreSQL's units, in which the settings are too."""
    if count < 1024:
        return f"{count:.0f} B"
    units = ["TB", "GB", "MB", "kB"]
    while count >= 1024 and units:
        count, unit = count / 1024, units.pop()
    return f"{count:.1f} {unit}"
