"""When rejections are too many, and what is said of them."""

import pytest

from jobs.dead_letters.limit import TooManyOpen, check_open, in_words


def test_rare_kinds_are_summed_up() -> None:
    reasons = [kind for n, kind in enumerate("abcdefg") for _ in range(10 - n)]
    assert in_words(reasons) == "10 x a; 9 x b; 8 x c; 7 x d; 6 x e; 9 others"


def test_as_many_as_allowed_may_be_open() -> None:
    check_open("search", 2, ["no"] * 3, new_topics=["t"], max_open=3)
    check_open("search", 2, [], new_topics=[], max_open=0)


def test_one_more_stops_the_job_and_says_why_and_what_to_do() -> None:
    reasons = ["no room for 1 byte", "no room for 2 byte", "too old"]
    with pytest.raises(TooManyOpen) as caught:
        check_open("search", 2, reasons, new_topics=["t", "u", "u"], max_open=2)
    error = caught.value
    assert error.topic == "u", "whatever is open for long"
    assert "'search', generation 2" in error.message
    assert "2 x no room for N byte; 1 x too old" in error.message
    assert error.hint is not None
    for way_out in ("rejections retry search --generation 2 --all", "rejections discard search", "max_open_rejections"):
        assert way_out in error.hint
