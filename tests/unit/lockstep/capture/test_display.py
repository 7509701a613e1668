"""How a copy looks on a terminal."""

import io

from rich.console import Console

from cdc.model.table import TableName
from cdc.stream.slot_watch import HeldWal
from lockstep.capture.display import observer
from snapshot.copy import CopyProgress

MB = 1024 * 1024
HALF = CopyProgress(TableName("public", "orders"), 50, 100, 5000, finished=False)


def test_the_wal_that_is_kept_is_below_the_bars() -> None:
    text = io.StringIO()
    shown = observer(Console(file=text, force_terminal=True, width=200))
    shown.held(HeldWal(40 * MB, 100 * MB, 2 * MB, 0.5))
    shown.copied(HALF)
    shown.say("done")
    told = text.getvalue()
    assert told.rindex("copy public.orders") < told.rindex("keep 40.0 MB of WAL of 100.0 MB at most")


def test_bars_go_on_behind_a_sentence() -> None:
    text = io.StringIO()
    shown = observer(Console(file=text, force_terminal=True, width=200))
    shown.copied(HALF)
    shown.say("the slot makes the server keep much")
    before = len(text.getvalue())
    shown.copied(HALF)
    shown.say("done")
    assert "copy public.orders" in text.getvalue()[before:]
