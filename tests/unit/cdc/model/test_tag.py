"""The tag: fixed width, ordered the same as text, as value and as an external version."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.tag import EPOCH_MAX, LSN_MAX, SEQ_MAX, VERSION_SEQ_MAX, Tag, external_version

tags = st.builds(Tag, st.integers(0, EPOCH_MAX), st.integers(0, LSN_MAX), st.integers(0, SEQ_MAX))

# Few epochs and LSNs, so that equal transactions and neighbours come up; sequence numbers on both sides of saturation.
versioned = st.builds(
    Tag,
    st.integers(0, 2) | st.just(15),
    (st.integers(0, 3) | st.integers(0, 2**47 - 1)).map(lambda words: words * 8),
    st.integers(0, 3) | st.integers(VERSION_SEQ_MAX - 2, VERSION_SEQ_MAX + 2) | st.integers(0, SEQ_MAX),
)


def test_a_tag_is_epoch_then_commit_lsn_then_seq_in_hex() -> None:
    assert str(Tag(1, 0x16_B374D848, 42)) == "0001" + "00000016b374d848" + "0000002a"


@given(tags)
def test_every_tag_reads_back_as_itself(tag: Tag) -> None:
    assert Tag.parse(str(tag)) == tag


@given(tags)
def test_every_tag_has_28_digits(tag: Tag) -> None:
    assert len(str(tag)) == 28


@given(tags, tags)
def test_text_order_is_tag_order(tag: Tag, other: Tag) -> None:
    assert (str(tag) < str(other)) == (tag < other)


def test_a_snapshot_row_is_older_than_a_transaction_that_commits_at_the_handoff() -> None:
    assert Tag(1, 0x1000, 0) < Tag(1, 0x1000, 1)


@pytest.mark.parametrize(
    ("epoch", "lsn", "seq"),
    [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (EPOCH_MAX + 1, 0, 0), (0, LSN_MAX + 1, 0), (0, 0, SEQ_MAX + 1)],
)
def test_a_tag_that_would_not_fit_its_digits_is_refused(epoch: int, lsn: int, seq: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        Tag(epoch, lsn, seq)


@pytest.mark.parametrize("text", ["", "0" * 27, "0" * 29, "A" * 28, " " + "0" * 27, "0" * 27 + "g", "\u0660" * 28])
def test_anything_else_than_28_lower_case_digits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a tag"):
        Tag.parse(text)


def test_an_external_version_packs_epoch_lsn_and_seq() -> None:
    assert external_version(Tag(1, 8, 5)) == 1 << 59 | 1 << 12 | 5


@given(versioned, versioned)
def test_external_versions_keep_the_order_of_tags(tag: Tag, other: Tag) -> None:
    first, second = sorted([tag, other])
    assert external_version(first) <= external_version(second)


@given(versioned, versioned)
def test_external_versions_are_equal_only_from_the_greatest_seq_on(tag: Tag, other: Tag) -> None:
    if tag != other and external_version(tag) == external_version(other):
        assert min(tag.seq, other.seq) >= VERSION_SEQ_MAX


@given(versioned)
def test_an_external_version_fits_into_63_bits(tag: Tag) -> None:
    assert 0 <= external_version(tag) < 2**63


@pytest.mark.parametrize("tag", [Tag(16, 8, 1), Tag(1, 1 << 50, 1)])
def test_a_tag_beyond_the_external_version_is_refused(tag: Tag) -> None:
    with pytest.raises(ValueError, match="an LSN from 40000/0 on, or an epoch"):
        external_version(tag)


def test_a_commit_lsn_that_is_not_aligned_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 8"):
        external_version(Tag(1, 12, 1))
