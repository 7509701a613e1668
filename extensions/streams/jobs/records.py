"""The names of a stream query's coordination records, which lie beside its result."""

from typing import Final

POSTING_PAUSE: Final = "stream_posting_pause"
"""Asks the query's jobs to post nothing, of whatever build: ``extensions.streams.jobs.posting_turn``."""

POSTER: Final = "stream_poster"
"""Which job posts the query's rows, of whatever build: the one that has begun to last."""


def begun_name(generation: int) -> str:
    """What a build of the result was begun with: ``Begun``."""
    return f"g{generation}.stream_begun"


def waiting_name(generation: int) -> str:
    """What its job waits for, in a sentence, while it does."""
    return f"g{generation}.stream_waiting"


def figures_name(generation: int) -> str:
    """What has been done for it: ``Figures``."""
    return f"g{generation}.stream_done"


def posted_name(generation: int) -> str:
    """What of its rows the webhook has: ``Posted``."""
    return f"g{generation}.stream_posted"


def result_name(generation: int) -> str:
    """Which columns the result has, and which are its key: its ``Shape``."""
    return f"g{generation}.stream_result"


def erased_name(generation: int) -> str:
    """Up to which offset the topic of its rows may have tombstones: rows before one of their key aren't posted."""
    return f"g{generation}.stream_erased"
