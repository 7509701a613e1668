"""The tag: the source position of a change, and the version of a row everywhere downstream.

``(epoch, commit_lsn, seq)`` is unique and increasing per key, identical whenever the same WAL is decoded again, and
comparable between snapshot and stream. Kafka offsets aren't: they restart with the topic.

The text has 28 lower-case hex digits, ``%04x%016x%08x``. Its fixed width makes text order numeric order in Redis, SQL
and JSON alike. As a number in a double, a tag would silently lose its low digits.
"""

from dataclasses import dataclass
from typing import Self

EPOCH_MAX = 0xFFFF
LSN_MAX = 0xFFFF_FFFF_FFFF_FFFF
SEQ_MAX = 0xFFFF_FFFF
TEXT_LENGTH = 28
TRANSACTION_LENGTH = 20
"""Length of the text's start that all tags of one transaction share: epoch and commit LSN."""

TAG_HEADER = "tag"
"""The header with the tag of a record whose value has none, such as a tombstone."""

SNAPSHOT_SEQ = 0
"""Snapshot rows sort before every change of a transaction that commits exactly at the handoff."""

_HEX_DIGITS = frozenset("0123456789abcdef")

# How a tag fits into the 63 bits of an OpenSearch external version.
_VERSION_EPOCH_BITS = 4
_VERSION_LSN_BITS = 47
_VERSION_SEQ_BITS = 12
VERSION_SEQ_MAX = (1 << _VERSION_SEQ_BITS) - 1
VERSION_EPOCHS = 1 << _VERSION_EPOCH_BITS
_LSN_ALIGNMENT_BITS = 3  # WAL records start at multiples of 8 (MAXALIGN)


@dataclass(frozen=True, slots=True, order=True)
class Tag:
    """A source position. Ordered by epoch, then commit LSN, then place in the transaction.

    ``epoch`` grows only when the source's LSNs start a new line (another system, a restore). ``commit_lsn`` is the LSN
    of the commit record; for snapshot rows the handoff; for a message outside of transactions its end. ``seq`` counts
    the transaction's row events from 1; snapshot rows and such messages have 0.
    """

    epoch: int
    commit_lsn: int
    seq: int

    def __post_init__(self) -> None:
        if not (0 <= self.epoch <= EPOCH_MAX and 0 <= self.commit_lsn <= LSN_MAX and 0 <= self.seq <= SEQ_MAX):
            raise ValueError(f"tag out of range: {self.epoch}, {self.commit_lsn}, {self.seq}")

    def __str__(self) -> str:
        return transaction_prefix(self.epoch, self.commit_lsn) + f"{self.seq:08x}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """28 lower-case hex digits -> Tag. Raises ValueError for anything else, upper case included."""
        if len(text) != TEXT_LENGTH or not _HEX_DIGITS.issuperset(text):
            raise ValueError(f"not a tag: {text!r} (28 lower-case hex digits expected)")
        return cls(int(text[:4], 16), int(text[4:20], 16), int(text[20:], 16))


def transaction_prefix(epoch: int, commit_lsn: int) -> str:
    """The ``TRANSACTION_LENGTH`` digits that all tags of one transaction share."""
    return f"{epoch:04x}{commit_lsn:016x}"


def tag_prefix(epoch: int, commit_lsn: int) -> bytes:
    """``transaction_prefix`` as bytes, for ``tag_text``."""
    return transaction_prefix(epoch, commit_lsn).encode()


def tag_text(prefix: bytes, seq: int) -> bytes:
    """The tag of a transaction's ``seq``-th event."""
    return b"%b%08x" % (prefix, seq)


def external_version(tag: Tag) -> int:
    """A tag as an OpenSearch external version, 0 .. 2**63-1: 4 bits of epoch, 47 of commit_lsn / 8, 12 of seq.

    Order is preserved. From ``VERSION_SEQ_MAX`` on, several changes of a transaction share a number, and their tags
    must be compared (``sinks.opensearch.shared_versions``). Raises ValueError if epoch or LSN don't fit (16 epochs, 1
    PiB of WAL each) or the LSN isn't a multiple of 8.
    """
    if tag.commit_lsn & ((1 << _LSN_ALIGNMENT_BITS) - 1):
        raise ValueError(f"commit LSN {tag.commit_lsn:#x} is not a multiple of 8")
    lsn = tag.commit_lsn >> _LSN_ALIGNMENT_BITS
    if tag.epoch >> _VERSION_EPOCH_BITS or lsn >> _VERSION_LSN_BITS:
        raise ValueError(f"tag {tag} has an LSN from 40000/0 on, or an epoch from 16 on")
    return (tag.epoch << _VERSION_LSN_BITS | lsn) << _VERSION_SEQ_BITS | min(tag.seq, VERSION_SEQ_MAX)
