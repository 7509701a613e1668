"""Which rows may have values out of line. Whether the bounds hold, a real server says: tests/live/test_toast.py."""

import pytest

from cdc.toast.rule import ColumnFacts, ToastRule

ID = ColumnFacts("id", "int8", 8, "d")
NOTE = ColumnFacts("note", "text", -1, "i")
OTHER = ColumnFacts("other", "text", -1, "i")


def rule(
    *facts: ColumnFacts, tuple_target: int | None = None, block_size: int = 8192, encoding: str = "UTF8"
) -> ToastRule:
    return ToastRule(
        (ID, *facts), attributes=1 + len(facts), tuple_target=tuple_target, block_size=block_size, encoding=encoding
    )  # fmt: skip


def longest_kept_in_line(toast_rule: ToastRule, item: bytes = b"x") -> int:
    """The number of items in the longest value of which the rule says that it stays."""
    times = 0
    while not toast_rule.out_of_line([b"1", item * (times + 1)]):
        times += 1
    return times


def test_a_table_without_columns_of_variable_length_needs_no_memory() -> None:
    assert rule().columns == ()


def test_columns_are_those_that_can_be_moved() -> None:
    vector = ColumnFacts("vector", "oidvector", -1, "i")
    toast_rule = rule(vector, NOTE, ColumnFacts("at", "timestamptz", 8, "d"), OTHER)
    assert (toast_rule.columns, toast_rule.positions) == (("note", "other"), (2, 4))


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({}, 2032),
        ({"tuple_target": 8160}, 2032),
        ({"tuple_target": 500}, 500),
        ({"block_size": 4096}, 1008),
        ({"block_size": 32768}, 8176),
    ],
)
def test_the_limit_is_the_smaller_of_the_target_and_a_quarter_of_a_page(settings: dict[str, int], limit: int) -> None:
    # Header 24, the key 8 with padding 7, the header of the text 4 with padding 3.
    assert longest_kept_in_line(rule(NOTE, **settings)) == limit - 24 - 15 - 7  # type: ignore[arg-type]


def test_dropped_columns_make_the_header_longer() -> None:
    facts = (ID, NOTE)
    few, many = ToastRule(facts, attributes=2), ToastRule(facts, attributes=802)
    assert longest_kept_in_line(few) - longest_kept_in_line(many) == 104


def test_all_columns_of_a_long_row_count() -> None:
    toast_rule = rule(NOTE, OTHER)
    assert toast_rule.out_of_line([b"1", b"x" * 30, b"x" * 2000]) == (1, 2)


def test_but_not_values_that_are_shorter_than_a_pointer() -> None:
    toast_rule = rule(NOTE, OTHER)
    assert toast_rule.out_of_line([b"1", b"x" * 20, b"x" * 2000]) == (2,)
    assert toast_rule.out_of_line([b"1", None, b"x" * 2000]) == (2,)


def test_what_the_stream_left_out_is_out_of_line_however_short_the_row_is() -> None:
    toast_rule = rule(NOTE, OTHER)
    assert toast_rule.out_of_line([b"1", b"x" * 500, b"x" * 500], {1}) == (1,)
    assert toast_rule.out_of_line([b"1", b"x" * 500, b"x" * 2000], {1}) == (1, 2)


def test_of_a_row_with_an_unknown_past_any_value_is_suspect() -> None:
    toast_rule = rule(NOTE, OTHER)
    assert toast_rule.suspects([b"1", b"x" * 20, b"x" * 21]) == (2,)
    assert toast_rule.suspects([b"1", None, None]) == ()


def test_a_value_of_an_unknown_type_may_be_anything() -> None:
    toast_rule = rule(ColumnFacts("own", "", -1, "d"), NOTE)
    assert toast_rule.out_of_line([b"1", b"x", b"x" * 30]) == (1, 2)
    assert toast_rule.out_of_line([b"1", None, b"x" * 30]) == ()
    assert toast_rule.safe_bytes == -1


@pytest.mark.parametrize("hidden", [NOTE, ColumnFacts("own", "", -1, "d")])
def test_so_may_one_that_isnt_published(hidden: ColumnFacts) -> None:
    unseen = ColumnFacts("hidden", hidden.type_name, -1, "d", published=False)
    toast_rule = rule(unseen, NOTE)
    assert toast_rule.columns == ("note",)
    assert toast_rule.out_of_line([b"1", b"x" * 21]) == (1,)
    assert toast_rule.safe_bytes == -1


def test_one_of_fixed_length_only_takes_its_space() -> None:
    unseen = ColumnFacts("hidden", "uuid", 16, "c", published=False)
    assert longest_kept_in_line(rule(NOTE)) - longest_kept_in_line(rule(unseen, NOTE)) == 16


def test_a_row_within_the_safe_bytes_needs_no_look() -> None:
    toast_rule = rule(NOTE, ColumnFacts("document", "jsonb", -1, "i"))
    assert toast_rule.out_of_line([b"1", None, b"x" * toast_rule.safe_bytes]) == ()
    assert rule(NOTE).safe_bytes == longest_kept_in_line(rule(NOTE))
    assert rule(ColumnFacts("address", "inet", -1, "i")).safe_bytes > 2**60


def test_characters_of_other_encodings_may_be_longer_than_in_utf8() -> None:
    assert longest_kept_in_line(rule(NOTE, encoding="EUC_TW")) == longest_kept_in_line(rule(NOTE)) // 2
    assert longest_kept_in_line(rule(NOTE, encoding="LATIN1")) == longest_kept_in_line(rule(NOTE))


def test_items_are_counted_where_length_alone_says_little() -> None:
    numbers = ColumnFacts("numbers", "_int4", -1, "i", element_name="int4", element_length=4, element_alignment="i")
    # 4 bytes and the bit for NULL an item, header 72 at most.
    assert longest_kept_in_line(rule(numbers), b"1000000,") == int((2032 - 24 - 15 - 3 - 72) / 4.125) - 1
    document = ColumnFacts("document", "jsonb", -1, "i")
    assert longest_kept_in_line(rule(document), b'"a word": "and what it means, in many words of a text", ') > 16


def test_json_is_never_taken_for_less_than_the_text() -> None:
    toast_rule = rule(NOTE)
    length = longest_kept_in_line(toast_rule)
    assert toast_rule.out_of_line([b"1", b'"%b"' % (b"x" * length)]) == (1,)
