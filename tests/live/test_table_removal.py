"""A table leaves capture as ``lockstep tables remove`` says: the next look finds each step done."""

import pytest

from cdc.model.errors import ConfigurationError
from lockstep.config import followed, load, parse, read
from lockstep.table_removal import Removal, RemovalReport, look_at_removal
from monitor.collector import LagCollector
from tests.captured import Captured, StartCapture
from tests.databases import Database, until

pytestmark = pytest.mark.live


def _look(captured: Captured, table: str) -> RemovalReport:
    return look_at_removal(read(captured.path), parse(captured.path), [table])


def _state(report: RemovalReport) -> Removal:
    (removal,) = report.tables.values()
    return removal


def _captured_by(collector: LagCollector) -> list[str]:
    collector.collect()
    return list(map(str, collector.pipeline.source.table_names))


@pytest.mark.parametrize("tables", [("public.*",), ("public.t", "public.leaves")])
def test_a_table_leaves_by_the_steps_that_are_told(
    database: Database, capture: StartCapture, tables: tuple[str, ...]
) -> None:
    database.execute(
        "create table t (id int primary key)",
        "create table leaves (id int primary key)",
        "insert into leaves values (1)",
    )
    captured = capture(*tables)
    captured.settle()
    earlier = read(captured.path)
    looking = LagCollector(earlier.as_pipeline(), {}, resolve=followed)
    looking.collect()
    assert len(looking.pipeline.source.table_names) == 2
    report = _look(captured, "public.leaves")
    assert (_state(report), report.is_done) == (Removal.CONFIGURED, False)
    assert report.changes is not None
    text = captured.path.read_text()
    before = next(line for line in text.splitlines() if line.startswith("tables = "))
    settings = report.changes.source
    # A setting that isn't mentioned again stays as it is.
    lines = [*([] if settings[0].startswith("tables") else [before]), *settings]
    captured.path.write_text(text.replace(before, "\n".join(lines)))

    assert _state(_look(captured, "public.leaves")) is Removal.CAPTURED
    captured.stop()
    assert _state(_look(captured, "public.leaves")) is Removal.CAPTURED
    topic = captured.topic("public.leaves")
    captured.config = load(captured.path)
    captured.start()
    report = _look(captured, "public.leaves")
    assert (_state(report), report.is_done, report.changes) == (Removal.OUT, True, None)
    assert any(topic in sentence for sentence in report.kept)
    # Processes with the earlier file, running or starting, go by what is captured.
    with looking, LagCollector(earlier.as_pipeline(), {}, resolve=followed) as begun:
        for collector in (looking, begun):
            until(lambda collector=collector: _captured_by(collector) == ["public.t"])

    (step,) = report.next_steps
    database.execute(step[step.index("alter publication") :].rstrip(";"))
    assert list(_look(captured, "public.leaves").next_steps) == []
    database.execute("insert into t values (1)", "insert into leaves values (2)")
    captured.assert_equal("public.t")


def test_a_table_that_never_was_captured_is_a_slip(database: Database, capture: StartCapture) -> None:
    database.execute("create table t (id int primary key)")
    captured = capture("public.t")
    with pytest.raises(ConfigurationError, match=r"never was: public\.other") as caught:
        _look(captured, "public.other")
    assert caught.value.hint == "captured are: public.t"
