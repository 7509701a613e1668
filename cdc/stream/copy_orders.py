"""How an order about copies changes the state of capture. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from cdc.model.table import TableName
from cdc.postgres.copy_orders import CopyAction, CopyOrder
from cdc.protocol.control_records import CaptureState, TableCopy


def unsigned(order: CopyOrder) -> str:
    """The warning about an order with a wrong signature."""
    return (
        f"warning: {order.action} of copies is ignored: any role may write such orders, and this one isn't signed by a"
        " reader of the pipeline's topics. Use `lockstep snapshot`"
    )


def obeyed(
    state: CaptureState, order: CopyOrder, captured: Collection[TableName]
) -> tuple[CaptureState, Sequence[str]]:
    """The new state, and sentences about it. ``captured`` are the configured tables."""
    waiting = [name for name in captured if name not in state.copied]
    if order.table is not None and order.table not in waiting:
        return state, [f"warning: {order.action} of the copy of {order.table} is ignored: it isn't being copied"]
    if not waiting:
        return state, [f"warning: {order.action} is ignored: no copy waits or runs"]
    said = []
    for name in waiting if order.table is None else [order.table]:
        copy = state.copying.get(name, TableCopy())
        match order.action:
            case CopyAction.PAUSE:
                state = state.with_copy(name, replace(copy, paused=True))
                said.append(f"the copy of {name} is paused, until `lockstep snapshot resume`")
            case CopyAction.RESUME:
                resumed = replace(copy, paused=False)
                state = state.with_copy(name, None if resumed == TableCopy() else resumed)
                said.append(f"the copy of {name} may go on")
            case CopyAction.CANCEL:
                why_not = _why_not_cancelled(copy)
                if why_not:
                    said.append(f"warning: the copy of {name} isn't cancelled: {why_not}")
                    continue
                state = state.with_copy(name, None)
                state = replace(state, copied={**state.copied, name: copy.copied_before})
                said.append(f"the copy of {name} is cancelled; the rows that it has published stay, and are right")
    return state, said


def _why_not_cancelled(copy: TableCopy) -> str:
    if copy.copied_before < 0:
        return "the table can't go without it; `lockstep snapshot pause` holds it up"
    if copy.keys or copy.is_incomplete:
        return "rows with an incomplete update wait for it; `lockstep snapshot pause` holds it up"
    return ""
