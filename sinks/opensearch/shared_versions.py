"""Changes of one transaction that share an external version: the tags in their documents decide (pure).

A version has room for ``VERSION_SEQ_MAX`` changes of a transaction. The first change beyond takes the version that all
of these share. Each other one is written only to the very document with whose tag it was compared. The server counts
such a write as one more version. There is room for that: a commit's record is longer than the unit of an LSN in a
version, so the next transaction's versions begin far above.

A deletion among them leaves a marker, since the comparison needs a tag. The marker is removed some time after the whole
transaction was applied. A change may still come then: one that was rejected, or that is read again. The server may
remember the removal, whose version is among those of the transaction, so such a change is written above all of these.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from cdc.model.errors import NeedsRebuild
from cdc.model.tag import TRANSACTION_LENGTH, VERSION_SEQ_MAX, transaction_prefix
from sinks.opensearch.mapping import DELETED_FIELD, TAG_FIELD

_COMMIT_UNITS: Final = 5
"""A commit's shortest record, 40 bytes, in units of 8: the least distance between the LSNs of two transactions."""

VERSIONS_OF_TRANSACTION: Final = _COMMIT_UNITS * (VERSION_SEQ_MAX + 1)
_ABOVE_REMOVED: Final = VERSIONS_OF_TRANSACTION // 2
"""Leaves as much room below, for a marker that was written often, as above, for what follows."""


class Condition(NamedTuple):
    """What a write requires of the existing document. ``is_above_removed``: that there is none."""

    clause: bytes
    is_above_removed: bool = False


def shares_version(tag: str) -> bool:
    return int(tag[TRANSACTION_LENGTH:], 16) >= VERSION_SEQ_MAX


def condition_for(
    tag: str, document: Mapping[str, Any], *, first_version: int, refused: Condition | None, or_equal: bool
) -> Condition | None:
    """How to write a change whose shared version was refused, or whose condition ``refused`` was; None if it is stale.

    ``document`` is the primary's answer for its id, ``first_version`` the version of the transaction's seq 0.
    ``or_equal`` replaces a document of the same tag. Raises LockstepError when a row was written too often.
    """
    if not document["found"]:
        if refused is not None and refused.is_above_removed:
            return None  # deleted by a later transaction, whose version is greater than all of this one
        return Condition(b'"version":%d,"version_type":"external"' % (first_version + _ABOVE_REMOVED), True)
    held = document["_source"][TAG_FIELD]
    if held > tag or (held == tag and not or_equal):
        return None
    if document["_version"] + 1 >= first_version + VERSIONS_OF_TRANSACTION:
        raise NeedsRebuild(
            "one transaction has changed a row more often than an OpenSearch version can count",
            hint="build the index again from the log: `lockstep rebuild SINK --switch`",
        )
    return Condition(b'"if_seq_no":%d,"if_primary_term":%d' % (document["_seq_no"], document["_primary_term"]))


def markers_before(epoch: int, watermark_lsn: int) -> dict[str, Any]:
    """The query for markers of transactions that are wholly applied by this watermark.

    Once something of this epoch is known to be applied, nothing of an earlier epoch comes any more.
    """
    applied = {"range": {TAG_FIELD: {"lt": transaction_prefix(epoch, watermark_lsn)}}}
    return {"bool": {"filter": [{"term": {DELETED_FIELD: True}}, applied]}}
