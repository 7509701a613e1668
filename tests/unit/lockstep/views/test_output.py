"""How views look to people: at 80 columns, with a sentence for each that isn't kept."""

import io
from dataclasses import replace

from rich.console import RenderableType

from cdc.model.table import TableName
from lockstep.terminal import WholeTexts
from lockstep.views.output import explained_json, explained_text, figures_sentences, views_table
from lockstep.views.status import Explained, ViewState, ViewStatus
from sinks.view_settings import ViewSettings
from tests.view_queries import TABLES
from views.counters import Counters
from views.figures import ViewFigures
from views.sharding import sharding_of
from views.sql.reader import RetainedRows, read_view

FIGURES = ViewFigures(8, 4_120, 1 << 20, Counters(10, 40, 100, 300, 20, 800))
VIEW = ViewSettings(name="timeline", sql="select 1", key=("follower_id", "tweet_id"))
READY = ViewStatus(VIEW, "cache", 1, True, ViewState.READY, lsn=8, figures=FIGURES)


def shown(renderable: RenderableType, *, width: int | None = None) -> str:
    console = WholeTexts(file=io.StringIO(), width=width, force_terminal=width is not None, color_system=None)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_view_is_a_line_in_a_pipe() -> None:
    line = shown(views_table([READY])).splitlines()[-1]
    assert " ".join(line.split()) == "timeline cache follower_id, tweet_id ready 0/8 800 4,120 1.0 MiB"


def test_what_isnt_kept_has_a_sentence_with_the_next_step() -> None:
    stopped = replace(READY, state=ViewState.STOPPED, since_ms=0, reason="the disk is full", hint="make room")
    text = shown(views_table([READY, stopped]))
    assert "timeline: stopped since 1970-01-01 00:00:00 UTC: the disk is full\n    make room\n" in text
    assert (READY.needs_somebody, stopped.needs_somebody) == (False, True)


def test_a_generation_that_isnt_live_needs_somebody_only_when_it_has_stopped() -> None:
    other = replace(READY, number=2, is_live=False)
    assert other.label == "timeline g2"
    assert not replace(other, state=ViewState.SILENT).needs_somebody
    assert replace(other, state=ViewState.STOPPED).needs_somebody


def test_a_building_has_no_rows_of_the_result_yet() -> None:
    building = replace(READY, state=ViewState.BUILDING, lsn=None)
    assert " 800 " not in shown(views_table([building]))


def test_figures_are_sentences() -> None:
    assert list(figures_sentences(FIGURES)) == [
        "the result has 800 rows",
        "the state has 4,120 rows in 1.0 MiB of disk",
        "since it was built, 40 changed rows of tables have changed 100 of the result: 2.5 for each",
        "a step takes 2 transactions and 4 rows, on average of 10 steps",
    ]


def test_a_view_says_by_what_it_is_divided_and_what_every_shard_keeps() -> None:
    plan = read_view("select a.id, b.id as other from a join b on b.y = a.g", TABLES, key=["id", "other"])
    status = replace(READY, settings=VIEW.model_copy(update={"tasks": 4}))
    explained = Explained(status, plan, None, sharding=sharding_of(plan, 4))
    assert "4 shards by id; each keeps all rows of public.b" in shown(explained_text(explained))
    told = explained_json(explained)
    assert (told["tasks"], told["sharded_by"], told["in_every_shard"]) == (4, "id", ["public.b"])
    whole = explained_json(Explained(READY, plan, None))
    assert (whole["tasks"], whole["sharded_by"], whole["in_every_shard"]) == (1, None, [])


def test_a_view_says_which_rows_count_and_as_of_which_time() -> None:
    retain = [RetainedRows(TableName("public", "a"), "d", 48)]
    status = replace(READY, figures=replace(FIGURES, time_ms=1_772_452_800_000))
    for rows, is_told in ((retain, True), ([], False)):
        plan = read_view("select id from a", TABLES, key=["id"], retain=rows)
        text = shown(explained_text(Explained(status, plan, None)))
        assert ("public.a of the last 2 days by d" in text) is is_told
        assert ("rows are too old or not as of 2026-03-02 12:00:00 UTC" in text) is is_told
