"""How one range is copied, whoever copies it."""

from collections.abc import Callable, Iterable, Sequence

import pytest

from cdc.capture.batch_size import COPY_BATCH
from cdc.model.table import Table, TableName
from cdc.protocol.copy_ledger import CopiedRange
from cdc.row_rate import RowRate
from snapshot.ledger import CopyRun
from snapshot.part_copy import PartCopies
from snapshot.ranges import Part
from snapshot.row_events import EncodedRow, Line, RowEvents
from tests.builders import column, table
from tests.copy_lines import copy_line
from tests.history import EPOCH, published
from tests.wal import HANDOFF

KEYED = table(column("id", "int8"), name=TableName("public", "items"))
LOG = table(column("id", "int8"), name=TableName("public", "log"), key=())


class Worker:
    """What a copy of some ranges did, in order."""

    def __init__(self, shape: Table) -> None:
        self.did: list[str] = []
        self._shape = shape
        self._now_s = 0.0
        self._rate = RowRate(1000, lambda: self._now_s)

    def part(
        self, shape: Table, part: Part, *, where: str = "", while_waiting: Callable[[], None] = lambda: None
    ) -> Iterable[list[Line]]:
        for first in range(0, 20, 10):
            yield [copy_line((b"%d" % number,)) for number in range(first, first + 10)]

    def send_rows(self, topic: str, rows: Sequence[EncodedRow]) -> None:
        self.did.append("send")

    def serve(self) -> None:
        self.did.append("serve")

    def _commit(self, rows: int, size: int, done: CopiedRange | None) -> None:
        self.did.append("commit" if done is None else "last commit")

    def _heed(self) -> None:
        self.did.append("heed")
        self._now_s += 1

    def copy(self) -> None:
        name = self._shape.name
        of = published(self._shape)[name]
        events = RowEvents(of.encoder, None, epoch=EPOCH, consistent_point=HANDOFF, commit_time_ms=0)
        run = CopyRun("slot", EPOCH, HANDOFF, HANDOFF, {name: "shape"})
        copies = PartCopies(run, self, self, COPY_BATCH, self._rate, self._heed)
        copies.copy(Part(name, name.sql, "1", 0, 1, 1000), self._shape, "", of.topic, events, self._commit)


@pytest.mark.parametrize("shape", [KEYED, LOG], ids=["keyed", "append-only"])
def test_nobody_is_heeded_behind_the_last_commit(shape: Table) -> None:
    """Whoever has told a worker to copy tells it the next range from then on, which would be taken for the end."""
    worker = Worker(shape)
    worker.copy()
    assert worker.did[-1] == "last commit"


def test_the_rate_is_waited_for_before_the_transaction_of_an_append_only_range() -> None:
    worker = Worker(LOG)
    worker.copy()
    first = len(worker.did)
    worker.copy()
    assert worker.did[first] == "heed"  # while it waits for what the first range has taken
    assert worker.did[first + 1 :].index("send") < worker.did[first + 1 :].index("last commit")


@pytest.mark.parametrize("shape", [KEYED, LOG], ids=["keyed", "append-only"])
def test_what_the_brokers_have_is_let_go_of_while_the_transaction_is_open(shape: Table) -> None:
    """Else a transaction of a hundred thousand rows would be in memory as a whole."""
    worker = Worker(shape)
    worker.copy()
    assert [did for did in worker.did if did != "heed"] == ["serve", "send", "serve", "send", "last commit"]
