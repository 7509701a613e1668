"""Reading the log of an apply, and the figures of hot keys."""

import pytest

from bench.replay import Applied, applied, hot_figures
from cdc.model.errors import LockstepError

LOG = """\
spark: WARN something
2026-01-01 23:59:59,000 INFO sink started sink=other generation=1
2026-01-01 23:59:59,500 INFO sink started sink=cache generation=1
2026-01-02 00:00:01,000 INFO batch applied sink=cache generation=1 batch=1 rows=200 applied=20 \
stale=0 rejected=0 duration_ms=1400 watermark=0/1
2026-01-02 00:00:01,500 INFO batch applied sink=cache generation=1 batch=2 rows=100 applied=10 \
stale=0 rejected=1 duration_ms=400 watermark=0/2
2026-01-02 00:00:07,000 INFO batch applied sink=cache generation=1 batch=3 rows=0 applied=0 \
stale=0 rejected=0 duration_ms=40 watermark=0/2
2026-01-02 00:00:08,000 INFO batch applied sink=other generation=1 batch=1 rows=7 applied=7 \
stale=0 rejected=0 duration_ms=40 watermark=0/2
2026-01-02 00:00:09,000 INFO sink stopped sink=cache generation=1
"""


def replayed(*, events: int, seconds: float, rate_later: float | None = None) -> Applied:
    return Applied(seconds, rows=events, written=events, rejected=0, batch_ms=(1000,), rate_later=rate_later)


def test_a_replay_lasts_from_the_start_of_the_query_to_its_last_batch_with_rows() -> None:
    assert applied(LOG, "cache") == Applied(
        seconds=2.0, rows=300, written=30, rejected=1, batch_ms=(1400, 400), rate_later=200.0
    )


@pytest.mark.parametrize(("sink", "why"), [("search", "didn't start"), ("lake", "applied nothing")])
def test_a_sink_that_did_nothing_is_an_error(sink: str, why: str) -> None:
    log = LOG + "2026-01-02 00:00:09,000 INFO sink started sink=lake generation=1\n"
    with pytest.raises(LockstepError, match=why):
        applied(log, sink)


def test_hot_keys_are_limited_by_one_row_each_and_in_a_history_by_every_version() -> None:
    (figure,) = hot_figures("warehouse", replayed(events=320_000, seconds=2.0), own=20_000.0, limit=40_000.0)
    assert (figure.ratio, figure.passed) == (0.4, True)
    (figure,) = hot_figures("history", replayed(events=10_000, seconds=1.0), own=20_000.0, limit=40_000.0)
    assert (figure.ratio, figure.passed) == (0.25, None)
    figures = hot_figures("cache", replayed(events=160_000, seconds=1.0), own=50_000.0, limit=80_000.0)
    assert [figure.passed for figure in figures] == [True, False]
    later = replayed(events=100_000, seconds=2.0, rate_later=130_000.0)
    figures = hot_figures("search", later, own=1.0, limit=40_000.0)
    assert [(figure.value, figure.passed) for figure in figures] == [(50_000.0, False), (130_000.0, None)]
