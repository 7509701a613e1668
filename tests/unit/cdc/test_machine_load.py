"""How busy this machine is."""

import pytest

from cdc.machine_load import slowdown, wait_share_of


def test_the_pressure_is_read() -> None:
    text = "some avg10=37.50 avg60=2.00 avg300=0.10 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    assert wait_share_of(text) == 0.375
    assert wait_share_of("") is None


@pytest.mark.parametrize(
    ("wait_share", "runnable", "times"), [(0.0, 20.0, 1.0), (0.9, 20.0, 10.0), (None, 1.0, 1.0), (0.9, 400.0, 20.0)]
)
def test_work_takes_as_many_times_as_long_as_others_want_to_run(
    wait_share: float | None, runnable: float, times: float
) -> None:
    assert slowdown(wait_share, runnable, processors=2) == times
