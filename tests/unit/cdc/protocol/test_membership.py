"""What is noticed of a table by comparing it with what was recorded, and what is no reason to copy it."""

from dataclasses import replace
from typing import Any

import pytest

from cdc.protocol.membership import Fact, Membership, MembershipChange, Storage, left, read, streamed

RECORDED = Membership(
    oid=16400,
    facts={Fact.PUBLICATION: "16500 740", Fact.ENTRY: "16501 740", Fact.SCHEMA: None, Fact.KEYS: "keys 16403 f"},
    storage=Storage(
        file=16400,
        toast=16402,
        columns="d1",
        attributes=3,
        partitions={"16410": "16410"},
        attached={"16410": "745"},
        born=frozenset(["16410"]),
        can_be_unlogged=False,
    ),
    composites={"16390": "a1"},
    enums={"16380": ((16381, "730"), (16383, "730"))},
    uniques={'["code"]': [16404]},
)
TEXT = RECORDED.to_text()
_MORE = {"partitions": {"16410": "16410", "16420": "16420"}, "attached": {"16410": "745", "16420": "799"}}


def now(*, storage: dict[str, Any] | None = None, **changes: Any) -> MembershipChange:
    """What is found when it has changed like this."""
    return replace(RECORDED, storage=replace(RECORDED.storage, **storage or {}), **changes).since(TEXT)


@pytest.mark.parametrize(("fact", "words"), [
    (Fact.PUBLICATION, "settings of the publication"),
    (Fact.ENTRY, "entry in the publication"),
    (Fact.SCHEMA, "another schema"),
    (Fact.KEYS, "primary key"),
])  # fmt: skip
def test_what_was_changed_and_changed_back_is_noticed_and_named(fact: Fact, words: str) -> None:
    assert words in now(facts={**RECORDED.facts, fact: "16599 799"}).whole


@pytest.mark.parametrize(("changes", "words"), [
    ({"oid": 16999}, "another table"),
    ({"enums": {"16380": ((16381, "730"), (16383, "799"))}}, "renamed"),
    ({"composites": {"16390": "a2"}}, "composite"),
])  # fmt: skip
def test_another_table_and_another_meaning_of_a_type_are_noticed(changes: dict[str, Any], words: str) -> None:
    assert words in now(**changes).whole


@pytest.mark.parametrize("changes", [
    {},
    {"storage": {"file": 16999}},  # VACUUM FULL, or a TRUNCATE, which the stream has
    {"storage": {**_MORE, "born": frozenset(["16410", "16420"])}},
    {"enums": {"16380": ((16381, "730"), (16383, "730"), (16388, "799"))}},
    {"enums": {"16385": ((16386, "799"),)}},
    {"enums": {}, "composites": {}},
    {"composites": {"16390": "a1", "16391": "b1"}},
])  # fmt: skip
def test_what_changes_no_row_is_no_change(changes: dict[str, Any]) -> None:
    assert now(**changes) == MembershipChange("")
    assert now(storage={"columns": "d2"}) == MembershipChange("", altered=True)
    assert RECORDED.since(replace(RECORDED, enums={"16380": ()}).to_text()) == MembershipChange("")


def test_a_table_says_why_its_changes_did_not_come() -> None:
    assert RECORDED.since(left(TEXT, "a partition was unlogged")).whole == "a partition was unlogged"


def test_a_table_that_left_is_copied_when_it_is_back() -> None:
    assert "wasn't published" in RECORDED.since(left(TEXT)).whole
    assert "wasn't published" in RECORDED.since(left(left(TEXT))).whole


@pytest.mark.parametrize(
    "text",
    [
        '["16400 1 t", "1", "d1", {}]',  # an earlier version's
        "",
        "null",
        "[" * 100_000,
        '{"oid":1}',
        TEXT.replace('"d1"', "1"),
        TEXT.replace('[["16380", 16383', '[["16380"'),
    ],
)
def test_what_nobody_can_read_is_no_reason_to_trust_a_table(text: str) -> None:
    assert text != TEXT
    assert "nothing that can be read" in RECORDED.since(text).whole
    assert "nothing that can be read" in RECORDED.since(left(text)).whole


@pytest.mark.parametrize(("toast", "rewritten"), [(16998, True), (0, True), (16402, False)])
def test_a_new_file_of_altered_columns_is_a_rewrite_unless_large_values_stayed(toast: int, rewritten: bool) -> None:
    assert ("ALTER TABLE" in now(storage={"file": 16999, "columns": "d2", "toast": toast}).whole) == rewritten


@pytest.mark.parametrize(
    ("storage", "noticed"),
    [
        ({"file": 16999, "toast": 16998}, True),
        ({"file": 16999, "toast": 0}, True),  # nothing tells it from VACUUM FULL
        ({"file": 16999}, False),
        ({"toast": 16998}, False),  # a column with large values came to a table that had none
    ],
)
def test_a_table_that_was_unlogged_for_a_while_is_noticed(storage: dict[str, Any], noticed: bool) -> None:
    assert ("UNLOGGED" in now(storage={"can_be_unlogged": True, **storage}).whole) == noticed
    assert not now(storage=storage).whole


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        ({"partitions": {"16410": "16999"}}, "went, was emptied"),
        ({"partitions": {}}, "went, was emptied"),
        ({"attached": {"16410": "799"}}, "detached for a while"),
    ],
    ids=["emptied", "went", "out and back"],
)
def test_partitions_that_go_are_noticed(storage: dict[str, Any], words: str) -> None:
    assert words in now(storage=storage).whole


def test_partitions_that_come_are_copied_alone() -> None:
    assert now(storage=_MORE) == MembershipChange("", partitions=(16420,))


def _with_streamed(storage: dict[str, Any]) -> str:
    """What is found where the stream has had rows of partition 16420."""
    changed = replace(RECORDED, storage=replace(RECORDED.storage, **storage))
    return changed.since(streamed(streamed(TEXT, 16410), 16420)).whole


def test_a_partition_that_was_written_and_is_gone_has_the_table_copied() -> None:
    assert "came, was written and went" in _with_streamed({})
    assert "attached, emptied or rewritten" in _with_streamed(_MORE)
    assert not _with_streamed({**_MORE, "born": frozenset(["16410", "16420"])})


@pytest.mark.parametrize(("change", "noticed"), [
    ({}, False),
    ({"partitions": {"16410": "16410"}}, True),
    ({"partitions": {"16410": "16410", "16420": "16999"}}, True),
    ({"attached": {"16410": "745", "16420": "800"}}, True),
])  # fmt: skip
def test_a_partition_that_a_copy_has_read_has_to_stay_as_it_was(change: dict[str, Any], noticed: bool) -> None:
    storage = replace(RECORDED.storage, **_MORE)
    text = streamed(read(TEXT, storage), 16420)
    later = replace(RECORDED, storage=replace(storage, **change)).since(text)
    assert bool(later.whole) == noticed
    assert noticed or later.partitions == (16420,)


def test_rows_of_a_partition_that_was_there_are_nothing_to_record() -> None:
    assert read(TEXT, RECORDED.storage) == TEXT
    assert read("", replace(RECORDED.storage, **_MORE)) == ""
    assert streamed(TEXT, 16410) == TEXT
    assert streamed("", 16420) == ""
    once = streamed(TEXT, 16420)
    assert streamed(once, 16420) == once != TEXT


@pytest.mark.parametrize(("uniques", "noticed"), [([16404, 16405], False), ([16405], True), ([], True)])
def test_a_configured_key_that_was_not_unique_for_a_while_is_noticed(uniques: list[int], noticed: bool) -> None:
    changed = replace(RECORDED, uniques={'["code"]': uniques})
    assert bool(changed.since(TEXT, key=["code"]).whole) == noticed
    assert not changed.since(TEXT).whole
    assert not changed.since(TEXT, key=["id"]).whole


def test_ten_thousand_partitions_take_little_room_in_the_state() -> None:
    """It is written with every Kafka transaction, and a record has a limit."""
    partitions = {str(oid): str(oid) for oid in range(20_000, 50_000, 3)}
    recorded = replace(RECORDED, storage=replace(RECORDED.storage, partitions=partitions))
    assert len(recorded.to_text()) < 600
    more = replace(recorded, storage=replace(recorded.storage, partitions=partitions | {"7": "7"}))
    assert more.since(recorded.to_text()).partitions == (7,)
