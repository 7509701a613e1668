"""Whether a stream query may go on where it was."""

from dataclasses import replace

import pytest

from cdc.model.errors import ConfigurationError, LockstepError, PositionMismatch
from extensions.streams.jobs.resume import (
    FIRST_STATE_FORM,
    PATTERN_STATE_FORM,
    Begun,
    Figures,
    check_checkpoint,
    check_definition,
    check_new_topic,
    check_state_form,
    unfinished_batch,
)
from jobs.offsets import Offsets

ENDS: Offsets = {("web.searches", 0): 17}
DONE = Figures(batch=4, watermark_ms=1_000, results=10, late=2, malformed=1, refused=1, state_rows=7, offsets=ENDS)


def test_figures_are_the_same_once_stored() -> None:
    assert Figures.parse(DONE.text()) == DONE
    assert Figures.parse(None) == Figures()


def test_a_batch_is_counted_once_however_often_it_is_done() -> None:
    once = DONE.after(Figures(batch=5, results=3, late=1, offsets=ENDS))
    assert (once.batch, once.results, once.late, once.malformed) == (5, 13, 3, 1)
    assert once.after(Figures(batch=5, results=3, late=1, offsets=ENDS)) == once


@pytest.mark.parametrize(
    ("figures", "planned", "committed", "ends"),
    [
        (Figures(), None, None, None),
        (Figures(), 0, None, None),
        (DONE, 4, 3, ENDS),
        (DONE, 4, 4, ENDS),
        (DONE, 5, 4, ENDS),
    ],
    ids=["new", "killed in its first batch", "killed before the commit", "killed after it", "killed in a batch"],
)
def test_a_killed_query_goes_on(
    figures: Figures, planned: int | None, committed: int | None, ends: Offsets | None
) -> None:
    check_checkpoint("q", figures, planned=planned, committed=committed, ends=ends)


@pytest.mark.parametrize(
    ("figures", "planned", "committed", "ends", "reason"),
    [
        (Figures(), 3, 2, None, "its result has lost what was written, and its checkpoint is ahead"),
        (Figures(), 0, 0, None, "its result has lost what was written, and its checkpoint is ahead"),
        (DONE, None, None, None, "its checkpoint is gone"),
        (DONE, 3, 3, None, "its checkpoint is an earlier one"),
        (DONE, 4, 3, {("web.searches", 0): 16}, "or another one's"),
        (DONE, 5, 4, None, "or another one's"),
        (DONE, 6, 5, ENDS, "its result has lost what was written last"),
        (DONE, 5, 5, ENDS, "its result has lost what was written last"),
    ],
)
def test_a_query_whose_parts_do_not_belong_together_is_refused(
    figures: Figures, planned: int | None, committed: int | None, ends: Offsets | None, reason: str
) -> None:
    with pytest.raises(LockstepError, match=reason) as refused:
        check_checkpoint("q", figures, planned=planned, committed=committed, ends=ends)
    assert refused.value.hint is not None
    assert "lockstep streams rebuild q" in refused.value.hint


BEGUN = Begun({"sql": "select 1", "key": ["id"]}, {"web.searches": "A"}, {("web.searches", 0): 3}, FIRST_STATE_FORM)


def test_what_a_result_was_begun_with_is_the_same_once_stored() -> None:
    assert Begun.parse(BEGUN.text()) == BEGUN


def test_another_query_is_refused_with_the_settings_that_differ() -> None:
    check_definition("q", BEGUN, {"sql": "select 1", "key": ["id"]})
    with pytest.raises(ConfigurationError, match=r"begun with other settings: key, streams\.clicks"):
        check_definition("q", BEGUN, {"sql": "select 1", "key": ["a"], "streams.clicks": {}})


def test_columns_of_a_stream_in_another_order_are_another_query() -> None:
    """Spark keeps values by their places: one of `a` would come out as `b`."""
    columns = {"a": "int8", "b": "int8"}
    begun = Begun.parse(Begun({"streams.clicks": {"columns": columns}}, {}, {}, FIRST_STATE_FORM).text())
    check_definition("q", begun, {"streams.clicks": {"columns": columns}})
    other = {"streams.clicks": {"columns": dict(reversed(columns.items()))}}
    with pytest.raises(ConfigurationError, match=r"begun with other settings: streams\.clicks"):
        check_definition("q", begun, other)


def test_a_build_that_begins_takes_no_topic_with_rows_of_another_one() -> None:
    check_new_topic("recent", "shop.__stream_queries.recent.g1", end=0)
    with pytest.raises(PositionMismatch, match=r"\.g1 of stream query 'recent' has rows of another build") as error:
        check_new_topic("recent", "shop.__stream_queries.recent.g1", end=1)
    assert "lockstep streams rebuild recent" in (error.value.hint or "")


def test_a_batch_that_was_planned_and_not_done_is_known() -> None:
    assert unfinished_batch(DONE, planned=DONE.batch + 1) == DONE.batch + 1
    assert unfinished_batch(Figures(), planned=0) == 0
    assert unfinished_batch(DONE, planned=DONE.batch) is None
    assert unfinished_batch(Figures(), planned=None) is None


def test_a_pattern_whose_state_another_version_wrote_is_built_again() -> None:
    check_state_form("sessions", BEGUN, form=FIRST_STATE_FORM)
    with pytest.raises(
        LockstepError, match="another version of Lockstep wrote the Spark state of stream query 'failed'"
    ) as error:
        check_state_form("failed", BEGUN, form=PATTERN_STATE_FORM)
    assert "lockstep streams rebuild failed" in (error.value.hint or "")
    check_state_form("failed", replace(BEGUN, state_form=PATTERN_STATE_FORM), form=PATTERN_STATE_FORM)
