"""What operators keep in a state: counted by whose entries they are, so that the parts make the whole."""

from collections.abc import Sequence

import pytest

from cdc.model.append_only import stored_tables
from cdc.model.event import Position, RowEvent
from cdc.model.table import TableName
from cdc.model.tag import Tag
from tests.unit.views.test_view import HISTORY, NEWEST, a
from tests.view_queries import KeptView, Question, RowWrite, column, shape
from views.operators.stored_entries import Kept, kept_by_operators
from views.plan import Scan, nodes
from views.plan_text import PlanStep, plan_steps
from views.sql.reader import RetainedRows, read_view
from views.state.memory import MemoryState
from views.view import View

LISTS = Question(
    "select g, count(*) as n, string_agg(t, ',' order by t collate \"C\", id) as l from a"
    " where g is not null group by g",
    ("g",),
)
TWICE = Question("select x.id, y.id as other from a x join a y on x.g = y.g", ("id", "other"))


def kept_of(
    question: Question, history: Sequence[Sequence[RowWrite]], *, retain: Sequence[RetainedRows] = ()
) -> tuple[dict[str, Kept], int]:
    """By the operator's text; and how many bytes of the state belong to operators."""
    state = MemoryState()
    view = KeptView(question, state, retain=retain)
    for writes in history:
        view.step(list(writes))
    entries = state.read(lambda reading: list(reading.scan(b"")))
    kept = kept_by_operators(view.plan.root, entries)
    texts: dict[int, str] = {}

    def name(step: PlanStep) -> None:
        texts[step.number] = step.text
        for source in step.sources:
            name(source)

    name(plan_steps(view.plan))
    of_operators = sum(len(key) + len(value) for key, value in entries if key[:1] not in (b"\0", b"p", b"r"))
    return {texts[number]: of for number, of in kept.items()}, of_operators


@pytest.mark.parametrize("question", [NEWEST, LISTS, TWICE], ids=["top", "lists", "twice"])
def test_the_parts_make_the_whole(question: Question) -> None:
    history = [*HISTORY, [a(20, g=1, t="x"), a(21, g=1, t="y"), a(22, g=2, t="z")]]
    kept, of_operators = kept_of(question, history)
    assert sum(each.bytes for each in kept.values()) == of_operators
    assert of_operators > 0


def test_the_times_of_rows_belong_to_their_table_and_are_no_rows() -> None:
    rows = [a(1, g=1, d="2026-03-01T00:00:00"), a(2, g=1)]
    kept, of_operators = kept_of(TWICE, [rows], retain=[RetainedRows(TableName("public", "a"), "d", 1)])
    assert sum(each.bytes for each in kept.values()) == of_operators
    (scan,) = (of for text, of in kept.items() if text.startswith("public.a of the last 1 hour by d"))
    assert scan.rows == 2


def test_tables_and_operators_have_the_rows_that_they_keep() -> None:
    rows = [a(1, g=1, t="x"), a(2, g=1, t="y"), a(3, g=2, t="x"), a(4)]
    kept, _ = kept_of(LISTS, [rows])
    (scan,) = (of for text, of in kept.items() if text.startswith("public.a"))
    (group,) = (of for text, of in kept.items() if text.startswith("group by"))
    assert (scan.rows, group.rows) == (4, 2 + 3)  # the groups, and the values of the lists


def test_scans_of_one_table_share_its_copy() -> None:
    kept, _ = kept_of(TWICE, [[a(1, g=1), a(2, g=1)]])
    assert {text: of.rows for text, of in kept.items()} == {"join on a.g = a_2.g": 4, "public.a": 2}


def test_of_an_append_only_table_each_event_that_is_left_is_a_row() -> None:
    log = TableName("public", "log")
    shapes = {log: shape("log", [], column("line", "text"))}
    plan = read_view(
        "select line, count(*) as n from log where line is not null group by line", stored_tables(shapes), key=["line"]
    )
    state = MemoryState()
    view = View(plan, shapes, state)
    rows = [("insert", "a"), ("truncate", None), ("insert", "a"), ("insert", "b")]
    events = [
        RowEvent(log, {"_event": tag}, tag, {"_event": tag, "_operation": operation, "line": line}, Position("", 0, 0))
        for number, (operation, line) in enumerate(rows, start=1)
        if (tag := str(Tag(1, 8, number)))
    ]
    view.step(events, epoch=1, lsn=8, offsets={})
    kept = kept_by_operators(plan.root, state.read(lambda reading: list(reading.scan(b""))))
    assert [kept[number].rows for number, node in enumerate(nodes(plan.root)) if isinstance(node, Scan)] == [2]
