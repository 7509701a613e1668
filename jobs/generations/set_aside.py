"""Tables that a generation's job sets aside: paused or taken out by a user, or impossible to apply.

Two coordination records, each with one writer, so that nobody overwrites what another has said:

``g<n>.table_orders``
    The orders of users for tables. Commands write it. Each order has a number, greater than that of the one before.
``g<n>.asides``
    The job's response, and the tables that it couldn't apply. The job writes it. An entry names the order that it
    knows, so a newer order makes the job try a failed table again at once.

A failed table is also retried automatically, after pauses that grow from a minute to half an hour (``pause_s``). It
counts as failed until some of it is applied. If deletes may be missing, or the sink has to be built again, it is
retried only on an order.

A table that is set aside isn't read. Progress keeps its position, and the watermark stays where it was. A table that
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


class AsideState(StrEnum):
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
class Aside:
    """A table that is set aside since ``since_ms``. ``order`` is the number of the newest order that the job knew.

    ``reason`` and ``hint`` are those of a failed table's error. ``awaited``: the watermark has waited for the table;
    False for one that was taken out, until it has caught up. ``begun``: the job has found since that order that a
    resumed table may go on, and reads it.

    ``tries`` counts how often a failed table was retried automatically in vain. ``retry_at_ms`` is when it is next
    retried, by the job's clock in milliseconds since 1970; None if only an order does that.
    """

    state: AsideState
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
        return self.state in (AsideState.RESUMING, AsideState.RETRYING)

    @property
    def has_failed(self) -> bool:
        """Whether it couldn't be applied, and nothing of it was since."""
        return self.state in (AsideState.FAILED, AsideState.RETRYING)

    def is_due(self, now_ms: int) -> bool:
        """Whether to retry it now. A clock that was set back doesn't prolong the wait."""
        if self.state is not AsideState.FAILED or self.retry_at_ms is None:
            return False
        return not 0 < self.retry_at_ms - now_ms <= pause_s(self.tries) * 1000

    @property
    def holds_watermark(self) -> bool:
        """Whether the sink claims to have this table but doesn't get its changes. True for every failed table, even one
        that the watermark never waited for."""
        return self.state is AsideState.FAILED or (self.awaited and not self.is_read)

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
    def from_json(cls, fields: Mapping[str, Any]) -> "Aside":
        return cls(AsideState(fields["state"]), **{name: value for name, value in fields.items() if name != "state"})

    def why(self, table: str) -> str:
        """Why readers of the sink find old rows of this table, or will."""
        match self.state:
            case AsideState.PAUSED:
                return f"{table} is paused, and the watermark waits for it"
            case AsideState.FAILED:
                return f"{table} is set aside, since it can't be applied: {self.reason}"
            case AsideState.RETRYING:
                return f"{table} is tried again, since it couldn't be applied: {self.reason}"
            case AsideState.OUT:
                return f"{table} was taken out: its rows stay as they were"
            case AsideState.RESUMING:
                return f"{table} was resumed, and catches up"
            case AsideState.UNCAPTURED:
                return f"{table} isn't captured, and the sink goes on without it"

    def next_step(self, sink: str, table: str) -> str | None:
        """What to do; None if it ends by itself."""
        resume = f"`lockstep resume {sink} {table}`"
        match self.state:
            case AsideState.PAUSED:
                return f"{resume} lets it go on"
            case AsideState.FAILED:
                step = resume if self.hint is None else f"{self.hint}; then {resume}"
                return step if self.retry_at_ms is None else f"{step}, or wait: {self._when()}"
            case AsideState.RETRYING:
                return self.hint
            case AsideState.OUT:
                return f"{resume} takes it in again"
            case AsideState.RESUMING:
                return None
            case AsideState.UNCAPTURED:
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


def is_done(order: Order, aside: Aside | None) -> bool:
    """Whether the job has carried out this order for a table, or refused it. Pure. ``aside`` is the job's entry, None
    if it reads the table like all others."""
    if aside is None:
        return order.wish is Wish.APPLY
    return aside.order >= order.number and (aside.begun or not aside.is_read)


Orders = Mapping[TableName, Order]
Asides = Mapping[TableName, Aside]


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


def load_asides(records: CoordinationRecords, generation: int) -> dict[TableName, Aside]:
    """The tables that a generation's job has set aside. Raises what the destination raises."""
    return asides_of(records.load(asides_name(generation)))


def asides_of(text: str | None) -> dict[TableName, Aside]:
    """As ``load_asides``, from the record's text; None is no record."""
    entries: list[Any] = [] if text is None else orjson.loads(text)
    return {TableName(schema, name): Aside(AsideState(state), *rest) for schema, name, state, *rest in entries}


def dump_asides(asides: Asides) -> str | None:
    """The record's text; None for no record."""
    entries = [
        [
            *(table.schema, table.name, aside.state, aside.since_ms, aside.order),
            *(aside.reason, aside.hint, aside.awaited, aside.begun, aside.tries, aside.retry_at_ms),
        ]
        for table, aside in sorted(asides.items())
    ]
    return orjson.dumps(entries).decode() if entries else None


def asides_name(generation: int) -> str:
    return f"g{generation}.asides"


def next_asides(
    tables: Iterable[TableName],
    orders: Orders,
    asides: Asides,
    *,
    now_ms: int,
    left: Collection[TableName] = (),
    uncaptured: Iterable[TableName] = (),
) -> dict[TableName, Aside]:
    """What a job that begins to read sets aside, given these orders. Pure. ``tables`` are the sink's captured ones,
    ``uncaptured`` the others that it names; entries of any other table are dropped. ``left`` are those that the sink
    had, that it didn't read for a while, and that its watermark didn't wait for."""
    decided = {
        table: _next(orders.get(table, Order()), asides.get(table), now_ms, has_left=table in left) for table in tables
    }
    decided |= {table: _uncaptured(orders.get(table, Order()), asides.get(table), now_ms) for table in uncaptured}
    return {table: aside for table, aside in decided.items() if aside is not None}


def _uncaptured(order: Order, aside: Aside | None, now_ms: int) -> Aside:
    since_ms = aside.since_ms if aside is not None and aside.state is AsideState.UNCAPTURED else now_ms
    return Aside(AsideState.UNCAPTURED, since_ms, order.number, awaited=False)


def _next(order: Order, aside: Aside | None, now_ms: int, *, has_left: bool) -> Aside | None:
    if aside is not None and aside.state is AsideState.UNCAPTURED:
        aside = None  # it has joined
    if aside is not None and order.number <= aside.order and aside.is_due(now_ms):
        return replace(aside, state=AsideState.RETRYING, begun=False)
    if aside is not None and order.number < aside.order:
        return aside  # the order behind the entry was overwritten: whoever gave it gives it again
    match order.wish:
        case Wish.PAUSE | Wish.OUT:
            awaited = order.wish is Wish.PAUSE and (not has_left if aside is None else aside.awaited)
            # The watermark didn't wait for what came while it was out, so it can't become a table that is waited for.
            state = AsideState.PAUSED if awaited else AsideState.OUT
            if aside is not None and aside.state is state:
                return replace(aside, order=order.number)
            return Aside(state, now_ms, order.number, awaited=awaited)
        case Wish.APPLY:
            if aside is None:
                # A table that had left the captured ones is resumed. A table that joins is entirely new.
                return Aside(AsideState.RESUMING, now_ms, order.number, awaited=False) if has_left else None
            if order.number <= aside.order and (aside.has_failed or aside.is_read):
                return aside
            return Aside(AsideState.RESUMING, aside.since_ms, order.number, awaited=aside.awaited)


def begun(asides: Asides) -> Asides:
    """The same entries once resumed tables may go on and are read. Pure."""
    return {table: replace(aside, begun=aside.is_read) for table, aside in asides.items()}


def failed(asides: Asides, errors: Mapping[TableName, LockstepError], orders: Orders, *, now_ms: int) -> Asides:
    """The same entries with tables that can't be applied, each with its error. The first time stays. Pure."""
    set_aside = {
        table: _failed(asides.get(table), error, orders.get(table, Order()), now_ms) for table, error in errors.items()
    }
    return {**asides, **set_aside}


def _failed(before: Aside | None, error: LockstepError, order: Order, now_ms: int) -> Aside:
    tries = before.tries + 1 if before is not None and before.state is AsideState.RETRYING else 0
    ends_by_itself = not isinstance(error, (PositionMismatch, NeedsRebuild))
    return Aside(
        AsideState.FAILED,
        now_ms if before is None else before.since_ms,
        order.number,
        error.message,
        error.hint,
        awaited=before is None or before.awaited,
        tries=tries,
        retry_at_ms=now_ms + pause_s(tries) * 1000 if ends_by_itself else None,
    )


def taken_again(asides: Asides, tables: Collection[TableName]) -> dict[TableName, Aside]:
    """The same entries after some of each of these tables was applied: retried tables become resumed ones. Pure."""
    return {
        table: replace(aside, state=AsideState.RESUMING, reason=None, hint=None, tries=0, retry_at_ms=None)
        if aside.state is AsideState.RETRYING and table in tables
        else aside
        for table, aside in asides.items()
    }


def read_tables(tables: Iterable[TableName], asides: Asides) -> list[TableName]:
    """The sink's tables that its job reads. Pure."""
    return [table for table in tables if table not in asides or asides[table].is_read]
