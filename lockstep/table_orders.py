"""``lockstep pause``, ``resume`` and ``take-out``: single tables of a sink, while the others go on."""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from cdc.machine_load import patient
from cdc.model.errors import ConfigurationError, LockstepError
from cdc.model.table import TableName
from cdc.model.timeouts import OBEYED_S
from jobs.generations.held_tables import HeldState, Order, Wish, give_again, give_order, is_done, load_held_tables
from jobs.generations.lease import is_running
from jobs.generations.record import Generation, Phase, check_owner
from jobs.generations.status import has_error, job_status
from lockstep.captured_tables import parse_table
from lockstep.config import Config
from lockstep.generations import list_of, settings_of, settings_of_generation
from sinks.contract import CoordinationRecords, OpenedSink
from sinks.registry import open_sink

_LOOK_S: Final = 0.2


def order_tables(config: Config, name: str, tables: Sequence[str], wish: Wish, *, say: Callable[[str], None]) -> bool:
    """Order this for tables of a sink, in every generation in use, and wait until its job has obeyed or refused.

    Returns whether all could: a table that is to be applied again may be refused, or fail again. Raises
    ConfigurationError for a view and for a table that the sink doesn't have.
    """
    if settings_of(config, name).view is not None:
        raise ConfigurationError(
            f"{name!r} is a view, which can't go on without one of its tables",
            hint="to hold up the view as a whole, let `lockstep apply SINK...` name all sinks but this one",
        )
    names = list(map(parse_table, tables))
    generations = _in_use(config, name)
    opened = open_sink(name, settings_of(config, name), 1)
    try:
        for generation in generations:
            _check(config, name, generation, opened.records, names, wish)
        is_done = True
        for generation in generations:
            number = generation.number
            orders = give_order(opened.records, number, names, wish, now_ms=time.time_ns() // 1_000_000)
            label = name if generation.is_live else f"{name}, generation {number}"
            is_done &= _wait_until_obeyed(name, label, opened, number, orders, names, say)
        return is_done
    finally:
        opened.sink.close()


def _in_use(config: Config, name: str) -> list[Generation]:
    generations = list_of(config, name)
    ready = [generation for generation in generations if generation.phase is Phase.READY]
    if not ready:
        raise LockstepError(f"sink {name!r} has no generation that is in use", hint="`lockstep apply` builds one")
    return ready


def _check(
    config: Config,
    name: str,
    generation: Generation,
    records: CoordinationRecords,
    tables: Collection[TableName],
    wish: Wish,
) -> None:
    if generation.record is not None:
        check_owner(name, generation.number, generation.record, config.pipeline.name)
    held_tables = load_held_tables(records, generation.number)
    has = {*config.sink_tables(settings_of_generation(config, name, generation)), *held_tables}
    unknown = [table for table in tables if table not in has]
    if unknown:
        raise ConfigurationError(
            f"sink {name!r} has no table {unknown[0]}", hint=f"it has: {', '.join(sorted(map(str, has)))}"
        )
    for table in tables:
        if table in held_tables and held_tables[table].state is HeldState.UNCAPTURED:
            raise LockstepError(
                f"table {table} of sink {name!r} isn't captured", hint=held_tables[table].next_step(name, "")
            )
        if wish is Wish.PAUSE and table in held_tables and not held_tables[table].awaited:
            is_read = held_tables[table].is_read
            raise LockstepError(
                f"table {table} was taken out of sink {name!r}" + (", and hasn't caught up since" if is_read else ""),
                hint="wait until it has, `lockstep lag` shows it"
                if is_read
                else f"`lockstep resume {name} {table}` takes it in again",
            )


def _wait_until_obeyed(
    name: str,
    label: str,
    opened: OpenedSink,
    number: int,
    orders: dict[TableName, Order],
    tables: Collection[TableName],
    say: Callable[[str], None],
) -> bool:
    if not is_running(opened.records, number):
        give_again(opened.records, number, orders, tables)
        say(f"{label}: no job applies to it now; the next one does what was asked for, `lockstep apply` starts it")
        return True
    deadline, had_error = time.monotonic() + patient(OBEYED_S), has_error(opened.records, number)
    while time.monotonic() < deadline:
        orders = give_again(opened.records, number, orders, tables)
        held_tables = load_held_tables(opened.records, number)
        if all(is_done(orders[table], held_tables.get(table)) for table in tables):
            break
        if not had_error and has_error(opened.records, number):
            status = job_status(opened.records, number, now_ms=time.time_ns() // 1_000_000)
            say(status.sentence(label) or f"{label}: its job has stopped by an error, and was started again")
            return False
        time.sleep(_LOOK_S)
    else:
        say(f"{label}: its job is busy with a batch, and does what was asked for after it; `lockstep lag` shows it")
        return True
    for table in tables:
        held = held_tables.get(table)
        text = f"{table} is applied like all others" if held is None else held.sentence(name, str(table))
        say(f"{label}: {text}")
    return not any(table in held_tables and held_tables[table].has_failed for table in tables)
