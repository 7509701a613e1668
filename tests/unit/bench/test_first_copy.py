"""The figures of a first copy."""

from bench.drain import Rates
from bench.first_copy import Bare, Copied, Noticed, Transactions, figures_of


def _copied(rows_per_s: float, second_half: float, *, worker_mb: float = 0.0) -> Copied:
    rate = Rates(from_first_event=rows_per_s, from_process_start=0.0, second_half=second_half)
    return Copied(rate, 3.0, 90.0, worker_mb)


ALONE, SIDE_BY_SIDE = _copied(50.0, 60.0), _copied(40.0, 110.0, worker_mb=101.0)
BARE = Bare(100.0, 1.0)
NOTICED = Transactions(Noticed(quiet_ms=10.0, alone_ms=12.0, workers_ms=30.0), None)


def test_a_copy_is_set_beside_one_that_goes_nowhere() -> None:
    figures = {figure.name: figure for figure in figures_of(ALONE, SIDE_BY_SIDE, BARE, NOTICED, _copied(20.0, 50.0))}
    assert (figures["rows per second"].ratio, figures["rows per second"].passed) == (0.5, True)
    assert figures["rows per second with 2 workers"].passed is False
    assert figures["processor time"].ratio == 3.0
    assert figures["peak memory of a worker"].passed is False


def test_what_transactions_notice_is_set_beside_a_quiet_source() -> None:
    figures = {figure.name: figure for figure in figures_of(ALONE, SIDE_BY_SIDE, BARE, NOTICED, None)}
    meanwhile = figures["transactions of the source meanwhile, p95"]
    assert (meanwhile.ratio, meanwhile.passed) == (1.2, True)
    assert figures["... with 2 workers, p95"].passed is None


def test_a_source_with_a_core_of_its_own_is_set_beside_itself() -> None:
    apart = Transactions(NOTICED.shared, Noticed(quiet_ms=2.0, alone_ms=3.0, workers_ms=2.0))
    figures = {figure.name: figure for figure in figures_of(ALONE, SIDE_BY_SIDE, BARE, apart, None)}
    assert figures["transactions of the source meanwhile, p95"].ratio == 1.2
    own = figures["transactions of the source on a core of its own meanwhile, p95"]
    assert (own.ratio, own.passed) == (1.5, False)
    assert figures["... on a core of its own with 2 workers, p95"].ratio == 1.0


def test_debezium_is_beside_it_where_it_was_measured() -> None:
    figures = {figure.name: figure for figure in figures_of(ALONE, SIDE_BY_SIDE, BARE, NOTICED, _copied(20.0, 50.0))}
    second_half = figures["... second half with 2 workers"]
    assert (second_half.ratio, second_half.passed) == (2.2, False)
    assert figures["Debezium: second half"].value == 50.0
    without = {figure.name: figure for figure in figures_of(ALONE, SIDE_BY_SIDE, BARE, NOTICED, None)}
    assert without["... second half with 2 workers"].passed is None
    assert not any("Debezium" in name for name in without)
