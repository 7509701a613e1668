"""sinks.opensearch.shared_versions; its behaviour in a server is in tests/contract"""

import pytest

from cdc.model.errors import LockstepError
from cdc.model.tag import Tag, external_version
from sinks.opensearch.documents import first_version
from sinks.opensearch.shared_versions import VERSIONS_OF_TRANSACTION, Condition, condition_for, shares_version
from tests.builders import tag

FIRST = first_version(tag(1)[:20])


def found(at: str, version: int = FIRST + 4095) -> dict[str, object]:
    return {"found": True, "_source": {"_tag": at}, "_version": version, "_seq_no": 7, "_primary_term": 2}


def condition(
    at: str, document: dict[str, object], *, refused: Condition | None = None, or_equal: bool = False
) -> Condition | None:
    return condition_for(at, document, first_version=FIRST, refused=refused, or_equal=or_equal)


def test_versions_are_shared_from_the_4095th_change_on() -> None:
    assert [shares_version(tag(1, seq)) for seq in (0, 4094, 4095, 2**32 - 1)] == [False, False, True, True]


def test_a_change_is_written_to_the_older_document_that_it_was_compared_with() -> None:
    assert condition(tag(1, 5000), found(tag(1, 4999))) == Condition(b'"if_seq_no":7,"if_primary_term":2')
    assert condition(tag(1, 5000), found(tag(1, 5000))) is None
    assert condition(tag(1, 5000), found(tag(1, 5000)), or_equal=True) is not None
    assert condition(tag(1, 5000), found(tag(1, 5001))) is None
    assert condition(tag(1, 5000), found(tag(2, 1)), or_equal=True) is None


def test_what_a_later_transaction_has_deleted_stays_deleted() -> None:
    above_removed = condition(tag(1, 5000), {"found": False})
    assert above_removed is not None
    assert condition(tag(1, 5000), {"found": False}, refused=above_removed) is None
    assert condition(tag(1, 5000), found(tag(1, 4999)), refused=above_removed) is not None


def test_a_marker_that_was_removed_does_not_keep_later_changes_of_its_transaction_out() -> None:
    """Its removal has a version that is greater by one, however often it was written before."""
    above_removed = condition(tag(1, 6000), {"found": False})
    assert above_removed is not None
    version = int(above_removed.clause.split(b":")[1].split(b",")[0])
    assert FIRST + 2 * 4095 < version < FIRST + VERSIONS_OF_TRANSACTION - 2 * 4095


def test_the_next_transactions_versions_are_never_reached() -> None:
    """It commits 40 bytes later at the earliest."""
    following = external_version(Tag(1, Tag.parse(tag(1)).commit_lsn + 40, 0))
    assert following == FIRST + VERSIONS_OF_TRANSACTION
    assert condition(tag(1, 5000), found(tag(1, 4999), following - 2)) is not None
    with pytest.raises(LockstepError, match="more often"):
        condition(tag(1, 5000), found(tag(1, 4999), following - 1))
