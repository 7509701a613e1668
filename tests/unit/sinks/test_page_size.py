"""sinks.page_size"""

from sinks.page_size import PageSize

MIB = 1 << 20


def test_narrow_rows_are_asked_for_in_ever_larger_pages_up_to_a_limit() -> None:
    page_size = PageSize(100)
    asked = []
    for _ in range(5):
        asked.append(page_size.rows)
        page_size.learn(page_size.rows, 100 * page_size.rows)
    assert asked == [16, 32, 64, 100, 100]


def test_wide_rows_make_the_next_page_small_at_once() -> None:
    page_size = PageSize(1000)
    for _ in range(10):
        page_size.learn(page_size.rows, page_size.rows)
    page_size.learn(1000, 1000 * MIB)
    assert page_size.rows == 4
    page_size.learn(4, 400 * MIB)
    assert page_size.rows == 1, "a row of any size is read"


def test_a_few_rows_make_the_next_page_no_larger() -> None:
    page_size = PageSize(1000)
    page_size.learn(1, 10)
    page_size.learn(0, 0)
    assert page_size.rows == 16
