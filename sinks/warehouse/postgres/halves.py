"""Statements for many rows, some of which the server may refuse."""

from collections.abc import Callable
from typing import Protocol, Self, TypeVar

from sinks.warehouse.postgres.connection import WarehouseConnection
from sinks.warehouse.postgres.errors import RowChanged, is_of_a_row, reason_of


class _Portion(Protocol):
    """Rows that can be halved."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: slice, /) -> Self: ...


P = TypeVar("P", bound=_Portion)


def in_halves(
    connection: WarehouseConnection, write: Callable[[P], int], rows: P, refuse: Callable[[P, str], object]
) -> int:
    """Write the rows. Returns the sum of what ``write`` returns.

    One bad row fails the whole statement, so halves are tried until it is alone: then ``refuse`` gets it, with the
    reason. k bad rows among n cost about 2 k log n further attempts. ``refuse`` may raise when there are too many.
    """
    savepoint = connection.connected.begin_nested()
    errors: tuple[type[Exception], ...] = (*connection.driver_errors(), RowChanged)
    try:
        written = write(rows)
    except errors as error:
        if not is_of_a_row(error):
            raise
        savepoint.rollback()
        if len(rows) == 1:
            refuse(rows, reason_of(error))
            return 0
    else:
        savepoint.commit()
        return written
    middle = len(rows) // 2
    first = in_halves(connection, write, rows[:middle], refuse)
    return first + in_halves(connection, write, rows[middle:], refuse)
