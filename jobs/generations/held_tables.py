"""Tables that a generation's job holds: paused or taken out by a user, or impossible to apply.

Two coordination records, each with one writer, so that nobody overwrites what another has said:

``g<n>.table_orders``
    The orders of users for tables. Commands write it. Each order has a number, greater than that of the one before.
``g<n>.held_tables``
    The job's response, and the tables that it couldn't apply. The job writes it. An entry names the order that it
    knows, so a newer order makes the job try a failed table again at once.

A failed table is also retried automatically, after pauses that grow from a minute to half an hour (``pause_s``). It
counts as failed until some of it is applied. If deletes may be missing, or the sink has to be built again, it is
retried only on an order.

A table that is held isn't read. Progress keeps its position, and the watermark stays where it was. A table that
was taken out holds nothing up, since the sink no longer claims to have it. When it comes back, it lacks what the
watermark has passed meanwhile, until it has caught up. If it can't come back it has failed, and holds the watermark
from then on, as every failed table does.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import orjson

from cdc.model.errors import LockstepError, NeedsRebuild, PositionMismatch
from cdc.model.table import TableName
from cdc.model.times import time_text
from sinks.contract import CoordinationRecords

PAUSE_FIRST_S: Final = 60
_PAUSE_MAX_S: Final = 30 * 60


class Wish(StrEnum):
    """An order for a table: ``APPLY`` it, ``PAUSE`` it, or take it ``OUT`` of the sink."""

    APPLY = "apply"
    PAUSE = "pause"
    OUT = "out"


@dataclass(frozen=True, slots=True)
class Order:
    """The newest order for a table. ``number`` is 0 if there never was one."""

    wish: Wish = Wish.APPLY
    number: int = 0
    at_ms: int = 0


class HeldState(StrEnum):
    """``PAUSED`` and ``OUT``: by order. ``FAILED``: it couldn't be applied, and the other tables go on. ``RETRYING``:
    it has failed, and is read again to see whether it still does. ``RESUMING``: it is read again, and lacks what came
    meanwhile. ``UNCAPTURED``: the sink names it, and capture doesn't have it yet, or any more."""

    PAUSED = "paused"
    FAILED = "failed"
    RETRYING = "retrying"
    OUT = "out"
    RESUMING = "resuming"
    UNCAPTURED = "uncaptured"


@dataclass(frozen=True, slots=True)
class HeldTable:
    """A table that is held since ``since_ms``. ``order`` is the number of the newest order that the job knew.

    ``reason`` and ``hint`` are those of a failed table's error. ``awaited``: the watermark has waited for the table;
    False for one that was taken out, until it has caught up. ``begun``: the job has found since that order that a
    resumed table may go on, and reads it.

    ``tries`` counts how often a failed table was retried automatically in vain. ``retry_at_ms`` is when it is next
    retried, by the job's clock in milliseconds since 1970; None if only an order does that.
    """

    state: HeldState
    since_ms: int
    order: int = 0
    reason: str | None = None
    hint: str | None = None
    awaited: bool = True
    begun: bool = False
    tries: int = 0
    retry_at_ms: int | None = None

    @property
    def is_read(self) -> bool:
        return self.state in (HeldState.RESUMING, HeldState.RETRYING)

    @property
    def has_failed(self) -> bool:
        """Whether it couldn't be applied, and nothing of it was since."""
        return self.state in (HeldState.FAILED, HeldState.RETRYING)

    def is_due(self, now_ms: int) -> bool:
        """Whether to retry it now. A clock that was set back doesn't prolong the wait."""
        if self.state is not HeldState.FAILED or self.retry_at_ms is None:
            return False
        return not 0 < self.retry_at_ms - now_ms <= pause_s(self.tries) * 1000

    @property
    def holds_watermark(self) -> bool:
        """Whether the sink claims to have this table but doesn't get its changes. True for every failed table, even one
        that the watermark never waited for."""
        return self.state is HeldState.FAILED or (self.awaited and not self.is_read)

    def to_json(self) -> dict[str, Any]:
        return {
            "state": self.state.value,
            "since_ms": self.since_ms,
            "reason": self.reason,
            "hint": self.hint,
            "tries": self.tries,
            "retry_at_ms": self.retry_at_ms,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "HeldTable":
        return cls(HeldState(fields["state"]), **{name: value for name, value in fields.items() if name != "state"})

    def why(self, table: str) -> str:
        """Why readers of the sink find old rows of this table, or will."""
        match self.state:
            case HeldState.PAUSED:
                return f"{table} is paused, and the watermark waits for it"
            case HeldState.FAILED:
                return f"{table} is held, since it can't be applied: {self.reason}"
            case HeldState.RETRYING:
                return f"{table} is tried again, since it couldn't be applied: {self.reason}"
            case HeldState.OUT:
                return f"{table} was taken out: its rows stay as they were"
            case HeldState.RESUMING:
                return f"{table} was resumed, and catches up"
            case HeldState.UNCAPTURED:
                return f"{table} isn't captured, and the sink goes on without it"

    def next_step(self, sink: str, table: str) -> str | None:
        """What to do; None if it ends by itself."""
        resume = f"`lockstep resume {sink} {table}`"
        match self.state:
            case HeldState.PAUSED:
                return f"{resume} lets it go on"
            case HeldState.FAILED:
                if self.hint is None:
                    step = resume
                elif self.retry_at_ms is None:
                    step = f"{self.hint.replace('SINK', sink)}; if the reason ends without that, {resume}"
                else:
                    step = f"{self.hint}; then {resume}"
                return step if self.retry_at_ms is None else f"{step}, or wait: {self._when()}"
            case HeldState.RETRYING:
                return self.hint
            case HeldState.OUT:
                return f"{resume} takes it in again"
            case HeldState.RESUMING:
                return None
            case HeldState.UNCAPTURED:
                return "`lockstep doctor` says what it waits for; once it is captured, the sink takes it up by itself"

    def _when(self) -> str:
        """When a table that is retried automatically is next retried."""
        before = "" if not self.tries else f", after {self.tries} {'try' if self.tries == 1 else 'tries'} in vain"
        return f"it is tried again by itself at {time_text(self.retry_at_ms)}{before}"

    def sentence(self, sink: str, table: str) -> str:
        step = self.next_step(sink, table)
        return self.why(table) if step is None else f"{self.why(table)}; {step}"


def pause_s(tries: int) -> int:
    """How long a failed table isn't retried, after so many tries in vain, in seconds. Pure."""
    return int(min(PAUSE_FIRST_S << min(tries, 10), _PAUSE_MAX_S))


def is_done(order: Order, held: HeldTable | None) -> bool:
    """Whether the job has carried out this order for a table, or refused it. Pure. ``held`` is the job's entry, None
    if it reads the table like all others."""
    if held is None:
        return order.wish is Wish.APPLY
    return held.order >= order.number and (held.begun or not held.is_read)


Orders = Mapping[TableName, Order]
HeldTables = Mapping[TableName, HeldTable]


def load_orders(records: CoordinationRecords, generation: int) -> dict[TableName, Order]:
    """The orders for a generation's tables. Raises what the destination raises."""
    return parse_orders(records.load(orders_name(generation)))


def parse_orders(text: str | None) -> dict[TableName, Order]:
    """The orders in the record's text; None is no record."""
    entries: list[Any] = [] if text is None else orjson.loads(text)
    return {TableName(schema, name): Order(Wish(wish), *numbers) for schema, name, wish, *numbers in entries}


def give_order(
    records: CoordinationRecords, generation: int, tables: Collection[TableName], wish: Wish, *, now_ms: int
) -> dict[TableName, Order]:
    """Give this order for these tables, and return all orders. Of two given at the same moment one may be lost:
    ``give_again`` finds that."""
    orders = load_orders(records, generation)
    number = max((order.number for order in orders.values()), default=0) + 1
    orders |= {table: Order(wish, number, now_ms) for table in tables}
    entries = [[table.schema, table.name, order.wish, order.number, order.at_ms] for table, order in orders.items()]
    records.save(orders_name(generation), orjson.dumps(entries).decode())
    return orders


def give_again(
    records: CoordinationRecords, generation: int, given: Orders, tables: Collection[TableName]
) -> dict[TableName, Order]:
    """The present orders. Gives those that were ``given`` for these tables again if they were lost: another command may
    have read the record before they were in it, and written it afterwards."""
    orders = load_orders(records, generation)
    for table in tables:
        if orders.get(table, Order()).number < given[table].number:
            orders = give_order(records, generation, [table], given[table].wish, now_ms=given[table].at_ms)
    return orders


def orders_name(generation: int) -> str:
    return f"g{generation}.table_orders"


def load_held_tables(records: CoordinationRecords, generation: int) -> dict[TableName, HeldTable]:
    """The tables that a generation's job holds. Raises what the destination raises."""
    return parse_held_tables(records.load(held_tables_name(generation)))


def parse_held_tables(text: str | None) -> dict[TableName, HeldTable]:
    """As ``load_held_tables``, from the record's text; None is no record."""
    entries: list[Any] = [] if text is None else orjson.loads(text)
    return {TableName(schema, name): HeldTable(HeldState(state), *rest) for schema, name, state, *rest in entries}


def dump_held_tables(held_tables: HeldTables) -> str | None:
    """The record's text; None for no record."""
    entries = [
        [
            *(table.schema, table.name, held.state, held.since_ms, held.order),
            *(held.reason, held.hint, held.awaited, held.begun, held.tries, held.retry_at_ms),
        ]
        for table, held in sorted(held_tables.items())
    ]
    return orjson.dumps(entries).decode() if entries else None


def held_tables_name(generation: int) -> str:
    return f"g{generation}.held_tables"


def next_held_tables(
    tables: Iterable[TableName],
    orders: Orders,
    held_tables: HeldTables,
    *,
    now_ms: int,
    left: Collection[TableName] = (),
    uncaptured: Iterable[TableName] = (),
) -> dict[TableName, HeldTable]:
    """What a job that begins to read holds, given these orders. Pure. ``tables`` are the sink's captured ones,
    ``uncaptured`` the others that it names; entries of any other table are dropped. ``left`` are those that the sink
    had, that it didn't read for a while, and that its watermark didn't wait for."""
    decided = {
        table: _next(orders.get(table, Order()), held_tables.get(table), now_ms, has_left=table in left)
        for table in tables
    }
    decided |= {table: _uncaptured(orders.get(table, Order()), held_tables.get(table), now_ms) for table in uncaptured}
    return {table: held for table, held in decided.items() if held is not None}


def _uncaptured(order: Order, held: HeldTable | None, now_ms: int) -> HeldTable:
    since_ms = held.since_ms if held is not None and held.state is HeldState.UNCAPTURED else now_ms
    return HeldTable(HeldState.UNCAPTURED, since_ms, order.number, awaited=False)


def _next(order: Order, held: HeldTable | None, now_ms: int, *, has_left: bool) -> HeldTable | None:
    if held is not None and held.state is HeldState.UNCAPTURED:
        held = None  # it has joined
    if held is not None and order.number <= held.order and held.is_due(now_ms):
        return replace(held, state=HeldState.RETRYING, begun=False)
    if held is not None and order.number < held.order:
        return held  # the order behind the entry was overwritten: whoever gave it gives it again
    match order.wish:
        case Wish.PAUSE | Wish.OUT:
            awaited = order.wish is Wish.PAUSE and (not has_left if held is None else held.awaited)
            # The watermark didn't wait for what came while it was out, so it can't become a table that is waited for.
            state = HeldState.PAUSED if awaited else HeldState.OUT
            if held is not None and held.state is state:
                return replace(held, order=order.number)
            return HeldTable(state, now_ms, order.number, awaited=awaited)
        case Wish.APPLY:
            if held is None:
                # A table that had left the captured ones is resumed. A table that joins is entirely new.
                return HeldTable(HeldState.RESUMING, now_ms, order.number, awaited=False) if has_left else None
            if order.number <= held.order and (held.has_failed or held.is_read):
                return held
            return HeldTable(HeldState.RESUMING, held.since_ms, order.number, awaited=held.awaited)


def begun(held_tables: HeldTables) -> HeldTables:
    """The same entries once resumed tables may go on and are read. Pure."""
    return {table: replace(held, begun=held.is_read) for table, held in held_tables.items()}


def failed(
    held_tables: HeldTables, errors: Mapping[TableName, LockstepError], orders: Orders, *, now_ms: int
) -> HeldTables:
    """The same entries with tables that can't be applied, each with its error. The first time stays. Pure."""
    failures = {
        table: _failed(held_tables.get(table), error, orders.get(table, Order()), now_ms)
        for table, error in errors.items()
    }
    return {**held_tables, **failures}


def _failed(before: HeldTable | None, error: LockstepError, order: Order, now_ms: int) -> HeldTable:
    tries = before.tries + 1 if before is not None and before.state is HeldState.RETRYING else 0
    ends_by_itself = not isinstance(error, (PositionMismatch, NeedsRebuild))
    return HeldTable(
        HeldState.FAILED,
        now_ms if before is None else before.since_ms,
        order.number,
        error.message,
        error.hint,
        awaited=before is None or before.awaited,
        tries=tries,
        retry_at_ms=now_ms + pause_s(tries) * 1000 if ends_by_itself else None,
    )


def taken_again(held_tables: HeldTables, tables: Collection[TableName]) -> dict[TableName, HeldTable]:
    """The same entries after some of each of these tables was applied: retried tables become resumed ones. Pure."""
    return {
        table: replace(held, state=HeldState.RESUMING, reason=None, hint=None, tries=0, retry_at_ms=None)
        if held.state is HeldState.RETRYING and table in tables
        else held
        for table, held in held_tables.items()
    }


def read_tables(tables: Iterable[TableName], held_tables: HeldTables) -> list[TableName]:
    """The sink's tables that its job reads. Pure."""
    return [table for table in tables if table not in held_tables or held_tables[table].is_read]
