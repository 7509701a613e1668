"""Limits the open rejections of one generation: with more of them rows aren't to blame, and the job stops. Pure."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from cdc.model.errors import LockstepError

_NUMBER: Final = re.compile(r"(?<=\s)[\d,.]*\d(?=[\s,;:)]|$)")
_KINDS_NAMED_MAX: Final = 5


def kind_of(reason: str) -> str:
    """A reason without numbers, so that similar reasons count as one kind. An SQLSTATE in front stays."""
    return _NUMBER.sub("N", reason)


def count_kinds(reasons: Iterable[str]) -> list[tuple[str, int]]:
    """The kinds of these reasons and how often each occurs, most frequent first."""
    return Counter(map(kind_of, reasons)).most_common()


def in_words(reasons: Iterable[str]) -> str:
    """The most frequent kinds, as part of a sentence."""
    kinds = count_kinds(reasons)
    text = "; ".join(f"{count:,} x {kind}" for kind, count in kinds[:_KINDS_NAMED_MAX])
    others = sum(count for _, count in kinds[_KINDS_NAMED_MAX:])
    return text + (f"; {others:,} others" if others else "")


class TooManyOpen(LockstepError):
    """More rejections would be open than allowed. Most of the new ones are of this ``topic``."""

    def __init__(self, message: str, *, hint: str, topic: str) -> None:
        super().__init__(message, hint=hint)
        self.topic = topic


def check_open(sink: str, generation: int, reasons: Iterable[str], *, new_topics: Iterable[str], max_open: int) -> None:
    """Raise TooManyOpen if more rejections would be open than allowed. ``reasons`` are those of all that would be open,
    including tables that are held. ``new_topics`` has the topic of each new one, at least one: old rejections
    aren't to blame for what comes now."""
    given = list(reasons)
    if len(given) <= max_open:
        return
    ((topic, _),) = Counter(new_topics).most_common(1)
    raise TooManyOpen(
        f"more rejections of sink {sink!r}, generation {generation}, would be open than max_open_rejections allows,"
        f" {len(given):,} of {max_open:,}: {in_words(given)}",
        hint="nothing was skipped: the batch is read again at the next start. Mend what the reasons say, then"
        f" `lockstep rejections retry {sink} --generation {generation} --all`, or give them up with"
        f" `lockstep rejections discard {sink}`; max_open_rejections in [sinks.{sink}] of lockstep.toml allows more",
        topic=topic,
    )
