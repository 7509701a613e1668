"""What more cores would bring, computed."""

import pytest

from bench import scaling
from bench.scaling import Stage


def test_without_a_serial_share_workers_add_up() -> None:
    assert scaling.speed_up(8, serial=0.0) == 8


def test_a_serial_share_bounds_the_speed_up_as_amdahl_says() -> None:
    assert scaling.speed_up(9, serial=0.25) == pytest.approx(3.0)
    assert scaling.speed_up(10**9, serial=0.25) == pytest.approx(4.0)


def test_with_crosstalk_more_workers_can_be_slower() -> None:
    assert scaling.speed_up(64, serial=0.0, crosstalk=0.01) < scaling.speed_up(8, serial=0.0, crosstalk=0.01)


def test_crosstalk_is_what_an_event_got_dearer_by() -> None:
    us = {n: 10 * (1 + 0.02 * n * (n - 1)) for n in (1, 2, 4, 8)}
    assert scaling.crosstalk_of(us) == pytest.approx(0.02)


def test_there_is_none_where_events_got_cheaper_or_nothing_else_was_measured() -> None:
    assert scaling.crosstalk_of({1: 10.0, 8: 9.0}) == 0.0
    assert scaling.crosstalk_of({1: 10.0}) == 0.0


def test_the_serial_share_is_the_driver_s_part_of_a_batch() -> None:
    assert scaling.serial_share(batch_ms=100, event_us=9, events=100_000) == pytest.approx(0.1)


def test_the_first_full_stage_changes_with_the_cores() -> None:
    stages = [Stage("capture", 3, serial=True), Stage("store", 10, serial=False)]
    assert scaling.saturation(stages, 2).name == "store"
    assert scaling.saturation(stages, 8).name == "capture"
    assert scaling.rate(stages[1], 4) == 400_000
